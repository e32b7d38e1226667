//! What evaluation, proofs and benchmarks use of an engine: steps without requests.

use glim_plan::{Plan, Profile, ReadTarget, StepKind, StepResults};
use glim_text::TokenId;

use super::Engine;
use crate::buckets::bucket_for;
use crate::error::EngineError;
use crate::ranks::RankTicket;
use crate::sequence::Sequence;
use crate::steps::{BatchRow, Head, Prepared, every_row_plan};

impl Engine {
    // --- for traces ---

    /// Capacities of prefill steps, ascending.
    pub(crate) fn buckets(&self) -> &[usize] {
        &self.prefill_buckets
    }

    /// Longest chunk.
    pub(crate) fn max_chunk(&self) -> usize {
        self.options.max_chunk
    }

    /// Prepares a prefill step of one sequence that gives every row, changed by `edit` first.
    pub(crate) fn prepare_every_row(
        &mut self,
        tokens: usize,
        forced: bool,
        edit: impl FnMut(&mut Plan) -> Result<(), EngineError>,
    ) -> Result<Prepared, EngineError> {
        let step = StepKind::Prefill {
            tokens,
            sequences: 1,
        };
        self.settle()?;
        let slots = self.options.max_num_seqs;
        let caps = self.ranks.caps();
        let mut plans = every_row_plan(&self.inventory, &caps, self.geometry, step, slots, forced)?;
        plans.iter_mut().try_for_each(edit)?;
        Prepared::new(&mut self.ranks, plans)
    }

    /// Runs the next rows of a sequence through a step that gives every row.
    pub(crate) fn run_rows(
        &mut self,
        prepared: &mut Prepared,
        sequence: &mut Sequence,
        tokens: &[TokenId],
    ) -> Result<StepResults, EngineError> {
        let length = sequence.computed() + tokens.len();
        sequence.reserve(length, self.scheduler.kv_mut())?;
        let row = BatchRow {
            tokens,
            sequence,
            under_way: 0,
            slot: 0,
            draw: None,
        };
        let results = prepared.run(&mut self.ranks, &[row])?;
        sequence.advance(tokens.len());
        Ok(results)
    }

    /// Runs `f` with a fresh sequence, whose blocks are free again afterwards.
    pub(crate) fn with_sequence<T>(
        &mut self,
        f: impl FnOnce(&mut Self, &mut Sequence) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        self.with_sequences(1, |engine, sequences| f(engine, &mut sequences[0]))
    }

    /// The same with several.
    pub(crate) fn with_sequences<T>(
        &mut self,
        n: usize,
        f: impl FnOnce(&mut Self, &mut [Sequence]) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        self.settle()?;
        let mut sequences: Vec<Sequence> = (0..n).map(|_| Sequence::default()).collect();
        let result = f(self, &mut sequences);
        sequences
            .into_iter()
            .for_each(|sequence| sequence.release(self.scheduler.kv_mut()));
        result
    }

    // --- for proofs ---

    /// Prepares the plan of a serving step once more, changed by `edit` first.
    pub(crate) fn prepare_edited(
        &mut self,
        kind: StepKind,
        edit: impl FnMut(Plan) -> Result<Plan, EngineError>,
    ) -> Result<Prepared, EngineError> {
        self.settle()?;
        let plans = self.steps.get(kind, Head::Tokens)?.plans().cloned();
        let plans = plans.map(edit).collect::<Result<_, _>>()?;
        Prepared::new(&mut self.ranks, plans)
    }

    /// Runs a batch through such a step; the sequences stay as they are. The results are each rank's.
    pub(crate) fn run_prepared(
        &mut self,
        prepared: &mut Prepared,
        batch: &[BatchRow<'_>],
    ) -> Result<Vec<StepResults>, EngineError> {
        prepared.run_ranks(&mut self.ranks, batch)
    }

    /// Reads a rank's memory.
    pub(crate) fn read(&self, rank: usize, target: ReadTarget<'_>) -> Result<Vec<u8>, EngineError> {
        Ok(self.ranks.read(rank, target)?)
    }

    /// The hash of a rank's weight where it lies, if its backend has a way to that.
    pub(crate) fn hash(&self, rank: usize, weight: &str) -> Result<Option<u64>, EngineError> {
        Ok(self.ranks.hash(rank, weight)?)
    }

    /// The plan of a prefill step of one sequence that gives every row, if one rank had the whole model.
    pub(crate) fn whole_plan(&self, tokens: usize) -> Result<Plan, EngineError> {
        let step = StepKind::Prefill {
            tokens,
            sequences: 1,
        };
        let (whole, caps) = (self.inventory.whole(), self.ranks.caps());
        let slots = self.options.max_num_seqs;
        let mut plans = every_row_plan(&whole, &caps, self.geometry, step, slots, false)?;
        Ok(plans.swap_remove(0))
    }

    // --- for benchmarks ---

    /// The decode step that holds `rows` rows.
    pub(crate) fn decode_kind(&self, rows: usize) -> StepKind {
        StepKind::Decode {
            rows: bucket_for(&self.decode_buckets, rows),
        }
    }

    /// The prefill step that holds `tokens` tokens.
    pub(crate) fn prefill_kind(&self, tokens: usize) -> StepKind {
        let tokens = bucket_for(&self.prefill_buckets, tokens);
        StepKind::Prefill {
            tokens,
            sequences: self.prefill_seqs,
        }
    }

    /// Bounds the prefill steps of what comes, within what is prepared; returns the bound until now.
    pub(crate) fn set_max_chunk(&mut self, tokens: usize) -> usize {
        let most = self.prefill_buckets.last().copied().unwrap_or(1);
        self.scheduler.set_max_chunk(tokens.clamp(1, most))
    }

    /// A step, without logits as a result.
    pub(crate) fn step_of(&mut self, kind: StepKind) -> Result<&Prepared, EngineError> {
        Ok(self.steps.get(kind, Head::Tokens)?)
    }

    /// Nodes of the graph that rank 0 runs a step as, if it is one.
    pub(crate) fn nodes_of(&mut self, kind: StepKind) -> Result<Option<usize>, EngineError> {
        Ok(self.steps.get(kind, Head::Tokens)?.nodes(&self.ranks))
    }

    /// Takes blocks for a sequence.
    pub(crate) fn reserve(
        &mut self,
        sequence: &mut Sequence,
        tokens: usize,
    ) -> Result<(), EngineError> {
        sequence.reserve(tokens, self.scheduler.kv_mut())
    }

    /// Runs a batch; the sequences stay as they are.
    pub(crate) fn run_batch(
        &mut self,
        kind: StepKind,
        batch: &[BatchRow<'_>],
    ) -> Result<StepResults, EngineError> {
        self.steps
            .get(kind, Head::Tokens)?
            .run(&mut self.ranks, batch)
    }

    /// Hands a batch over; the sequences stay as they are.
    pub(crate) fn submit_batch(
        &mut self,
        kind: StepKind,
        batch: &[BatchRow<'_>],
    ) -> Result<RankTicket, EngineError> {
        self.steps
            .get(kind, Head::Tokens)?
            .submit(&mut self.ranks, batch)
    }

    /// Waits for a batch that was handed over.
    pub(crate) fn wait_batch(
        &mut self,
        kind: StepKind,
        ticket: RankTicket,
    ) -> Result<StepResults, EngineError> {
        self.steps
            .get(kind, Head::Tokens)?
            .wait(&mut self.ranks, ticket)
    }

    /// Whether a decode step is handed over before the one in front of it is done.
    pub(crate) fn launches_ahead(&self) -> bool {
        self.launches_ahead
    }

    /// Runs a batch `repeats` times, watched; the profiles of each rank.
    pub(crate) fn profile_batch(
        &mut self,
        kind: StepKind,
        batch: &[BatchRow<'_>],
        repeats: usize,
    ) -> Result<Vec<Vec<Profile>>, EngineError> {
        self.steps
            .get(kind, Head::Tokens)?
            .profile(&mut self.ranks, batch, repeats)
    }
}
