//! Prepared steps of one model on one backend, and how a batch is written into their inputs.

use std::collections::HashMap;
use std::sync::Arc;

use glim_model::{EmitRequest, Inventory, OutputRows, emit, states};
use glim_plan::sample::{SampleParams, is_shortlistable};
use glim_plan::{
    Allocated, BackendError, CacheGeometry, Caps, GgmlType, InputKind, Plan, Profile, StepId,
    StepInputs, StepKind, StepResults, check_ranks, check_states, fuse,
};
use glim_text::TokenId;

use crate::error::EngineError;
use crate::ranks::{RankTicket, Ranks};
use crate::sequence::Sequence;

/// A token that the backend has carried from the sequence's last step.
pub(crate) const CARRIED: TokenId = TokenId(u32::MAX);

/// One sequence's rows in a step.
pub(crate) struct BatchRow<'a> {
    pub(crate) tokens: &'a [TokenId],
    pub(crate) sequence: &'a Sequence,
    /// Tokens of the sequence that a step computes which is under way: they come before these.
    pub(crate) under_way: usize,
    /// Slot of carries.
    pub(crate) slot: usize,
    /// How the token after the last row is drawn; `None`: it is not.
    pub(crate) draw: Option<Draw<'a>>,
}

/// Parameters of [`glim_plan::Op::Sample`] for one row.
pub(crate) struct Draw<'a> {
    pub(crate) params: SampleParams,
    pub(crate) mask: &'a [u32],
}

/// The plans of one step, one for each rank.
pub(crate) type RankPlans = Vec<Plan>;

/// A step that every rank has prepared.
pub(crate) struct Prepared {
    /// Rank 0's plan.
    pub(crate) plan: Plan,
    /// The other ranks'.
    others: Vec<Plan>,
    id: StepId,
    /// Shared with the ranks while a step runs.
    inputs: Arc<StepInputs>,
}

impl Prepared {
    pub(crate) fn new(ranks: &mut Ranks, mut plans: RankPlans) -> Result<Self, EngineError> {
        let id = ranks.prepare(&plans)?;
        let others = plans.split_off(1);
        let plan = plans.remove(0);
        let inputs = Arc::new(StepInputs::new(&plan));
        Ok(Self {
            plan,
            others,
            id,
            inputs,
        })
    }

    /// The plan of a rank.
    pub(crate) fn plan_of(&self, rank: usize) -> &Plan {
        match rank.checked_sub(1) {
            None => &self.plan,
            Some(other) => &self.others[other],
        }
    }

    /// Every rank's plan, in their order.
    pub(crate) fn plans(&self) -> impl Iterator<Item = &Plan> {
        std::iter::once(&self.plan).chain(&self.others)
    }

    /// The step's inputs.
    pub(crate) fn inputs(&self) -> &StepInputs {
        &self.inputs
    }

    /// The same, to be written between two runs.
    pub(crate) fn inputs_mut(&mut self) -> &mut StepInputs {
        Arc::make_mut(&mut self.inputs)
    }

    /// Writes a batch into the inputs and runs it; the results are rank 0's, which are every rank's. A plan without sampling gives
    /// every row.
    pub(crate) fn run(
        &mut self,
        ranks: &mut Ranks,
        batch: &[BatchRow<'_>],
    ) -> Result<StepResults, EngineError> {
        let results = self.run_ranks(ranks, batch)?;
        self.first(results)
    }

    /// The same with each rank's results: tapped temporaries differ.
    pub(crate) fn run_ranks(
        &mut self,
        ranks: &mut Ranks,
        batch: &[BatchRow<'_>],
    ) -> Result<Vec<StepResults>, EngineError> {
        self.write(batch)?;
        let ran = ranks.run(self.id, &self.plan, &self.inputs);
        ran.map_err(|error| self.failed(ranks, error))
    }

    /// Writes a batch into the inputs and runs it `repeats` times, watched; the profiles of each rank.
    pub(crate) fn profile(
        &mut self,
        ranks: &mut Ranks,
        batch: &[BatchRow<'_>],
        repeats: usize,
    ) -> Result<Vec<Vec<Profile>>, EngineError> {
        self.write(batch)?;
        let profiles = ranks.profile(self.id, &self.plan, &self.inputs, repeats);
        profiles.map_err(|error| self.failed(ranks, error))
    }

    /// Nodes of the graph that rank 0 runs it as, if it is one.
    pub(crate) fn nodes(&self, ranks: &Ranks) -> Option<usize> {
        ranks.nodes(self.id)
    }

    /// Writes a batch into the inputs and hands the step over.
    pub(crate) fn submit(
        &mut self,
        ranks: &mut Ranks,
        batch: &[BatchRow<'_>],
    ) -> Result<RankTicket, EngineError> {
        self.write(batch)?;
        let ticket = ranks.submit(self.id, &self.plan, &self.inputs);
        ticket.map_err(|error| self.failed(ranks, error))
    }

    /// Rank 0's results of a step that was handed over.
    pub(crate) fn wait(
        &self,
        ranks: &mut Ranks,
        ticket: RankTicket,
    ) -> Result<StepResults, EngineError> {
        let results = ranks.wait(ticket, &self.plan);
        self.first(results.map_err(|error| self.failed(ranks, error))?)
    }

    /// The one place where a step that failed is logged: which rank, in which operation, on what.
    fn failed(&self, ranks: &Ranks, error: BackendError) -> EngineError {
        let known = ranks.failed_in();
        let rank = error.rank().or(known.map(|(rank, _)| rank)).unwrap_or(0);
        let plan = self.plan_of(rank.min(self.others.len()));
        let mut nodes = plan.ops.iter().enumerate();
        let node = nodes.find(|(index, node)| match error.op() {
            Some(label) => node.label == label,
            None => known.is_some_and(|(_, op)| op == *index),
        });
        let node = node.map(|(_, node)| node);
        tracing::error!(
            rank,
            op = node.map(|node| node.label.as_str()),
            kind = node.map(|node| node.op.kind()),
            shapes = node.map(|node| plan.shapes(&node.op)),
            plan = plan.name,
            step = %plan.step,
            %error,
            "a step failed"
        );
        error.into()
    }

    fn first(&self, results: Vec<StepResults>) -> Result<StepResults, EngineError> {
        let first = results.into_iter().next();
        first.ok_or_else(|| EngineError::NoResult {
            plan: self.plan.name.clone(),
            name: "rank".into(),
        })
    }

    /// Writes a batch into the inputs.
    fn write(&mut self, batch: &[BatchRow<'_>]) -> Result<(), EngineError> {
        let geometry = self.plan.geometry;
        // Shared only while a rank has not taken the last ones yet.
        let inputs = Arc::make_mut(&mut self.inputs);
        let positions = |row: &BatchRow<'_>| {
            let first = row.sequence.computed() + row.under_way;
            first..first + row.tokens.len()
        };
        inputs.set(
            InputKind::Tokens,
            batch.iter().flat_map(|r| r.tokens).map(|t| t.0),
        )?;
        inputs.set_i32(
            InputKind::Positions,
            batch.iter().flat_map(positions).map(|p| p as i32),
        )?;
        let mut slots = Vec::new();
        for row in batch {
            slots.extend(positions(row).map(|p| row.sequence.slot(p, geometry.block_size)));
        }
        inputs.set_i32(InputKind::SlotMapping, slots)?;
        let ends = batch.iter().scan(0, |end, row| {
            *end += row.tokens.len();
            Some(*end)
        });
        let ends: Vec<i32> = ends.map(|end| end as i32).collect();
        inputs.set_i32(
            InputKind::CuSeqlens,
            [0].into_iter().chain(ends.iter().copied()),
        )?;
        let tables = batch.iter().flat_map(|r| r.sequence.table(geometry));
        inputs.set_i32(InputKind::BlockTables, tables)?;
        if inputs.has(InputKind::SequenceSlots) {
            inputs.set_i32(
                InputKind::SequenceSlots,
                batch.iter().map(|r| r.slot as i32),
            )?;
        }
        if inputs.has(InputKind::Temperature) {
            let drawn = || {
                batch
                    .iter()
                    .zip(&ends)
                    .filter_map(|(r, end)| Some((r.draw.as_ref()?, *end)))
            };
            inputs.set_i32(InputKind::OutputRows, drawn().map(|(_, end)| end - 1))?;
            let params = || drawn().map(|(d, _)| d.params);
            inputs.set_f32(InputKind::Temperature, params().map(|p| p.temperature))?;
            inputs.set(
                InputKind::TopK,
                params().map(|p| u32::try_from(p.top_k).unwrap_or(0)),
            )?;
            inputs.set_f32(InputKind::TopP, params().map(|p| p.top_p))?;
            inputs.set_f32(InputKind::MinP, params().map(|p| p.min_p))?;
            let seeds = |p: SampleParams| [p.seed as u32, (p.seed >> 32) as u32, p.choice];
            inputs.set(InputKind::Seeds, params().flat_map(seeds))?;
            inputs.set(
                InputKind::TokenMask,
                drawn().flat_map(|(d, _)| d.mask.iter().copied()),
            )?;
        } else {
            let rows = ends.last().copied().unwrap_or(0);
            inputs.set_i32(InputKind::OutputRows, 0..rows)?;
        }
        Ok(())
    }
}

/// Candidates that each rank keeps of its part of the vocabulary.
const SHORTLIST: usize = 64;

/// What a step gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Head {
    /// Tokens. Over ranks they are drawn from a few candidates of each.
    Tokens,
    /// Tokens whose draw goes by the probabilities of all: over ranks these gather the logits.
    WholeTokens,
    /// Logits as a result, and tokens.
    Logits,
}

impl Head {
    /// What a row needs that is drawn like this, over `world_size` ranks.
    pub(crate) fn for_draw(params: &SampleParams, world_size: usize) -> Self {
        match world_size == 1 || is_shortlistable(params, SHORTLIST) {
            true => Self::Tokens,
            false => Self::WholeTokens,
        }
    }

    /// Those that an engine prepares.
    fn of_world(world_size: usize) -> &'static [Self] {
        match world_size {
            1 => &[Self::Tokens, Self::Logits],
            _ => &[Self::Tokens, Self::WholeTokens, Self::Logits],
        }
    }
}

/// A bucket, and what its step gives.
pub(crate) type Key = (StepKind, Head);

/// All steps of an engine.
pub(crate) struct Steps {
    steps: HashMap<Key, Prepared>,
}

/// What all steps of an engine have in common.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepRequest {
    pub(crate) geometry: CacheGeometry,
    pub(crate) sequence_slots: usize,
    /// The only rank, of several.
    pub(crate) lone_rank: Option<usize>,
}

impl Steps {
    /// Emits every rank's plans of all buckets, each for all that it can give. A lone rank, which is measured, gives tokens only.
    pub(crate) fn plans(
        inventory: &Inventory,
        caps: &Caps,
        kinds: &[StepKind],
        request: StepRequest,
    ) -> Result<Vec<(Key, RankPlans)>, EngineError> {
        let heads = match request.lone_rank {
            Some(_) => &[Head::Tokens],
            None => Head::of_world(inventory.world_size()),
        };
        let mut plans = Vec::new();
        for step in kinds {
            for head in heads {
                let emit = EmitRequest {
                    logits: *head == Head::Logits,
                    shortlist: (*head == Head::Tokens).then_some(SHORTLIST),
                    sequence_slots: request.sequence_slots,
                    ..EmitRequest::new(*step, request.geometry)
                };
                let of_ranks = match request.lone_rank {
                    Some(rank) => vec![rank_plan(inventory, &emit, caps, rank)?],
                    None => make_plans(inventory, &emit, caps)?,
                };
                plans.push(((*step, *head), of_ranks));
            }
        }
        Ok(plans)
    }

    /// Prepares plans that [`Self::plans`] made, and all that they run with; what each rank then holds.
    pub(crate) fn prepare(
        ranks: &mut Ranks,
        plans: Vec<(Key, RankPlans)>,
    ) -> Result<Self, EngineError> {
        let mut steps = HashMap::new();
        for (key, plans) in plans {
            steps.insert(key, Prepared::new(ranks, plans)?);
        }
        Ok(Self { steps })
    }

    /// Makes all that they run with; what each rank then holds.
    pub(crate) fn seal(&self, ranks: &mut Ranks) -> Result<Vec<Option<Allocated>>, EngineError> {
        match self.steps.values().next() {
            Some(prepared) => Ok(ranks.seal(&prepared.plan)?),
            None => Ok(Vec::new()),
        }
    }

    /// The step of a bucket.
    pub(crate) fn get(&mut self, kind: StepKind, head: Head) -> Result<&mut Prepared, EngineError> {
        let missing = || EngineError::NoResult {
            plan: kind.to_string(),
            name: "step".into(),
        };
        self.steps.get_mut(&(kind, head)).ok_or_else(missing)
    }
}

/// Every rank's plan of a step.
fn make_plans(
    inventory: &Inventory,
    request: &EmitRequest,
    caps: &Caps,
) -> Result<RankPlans, EngineError> {
    let plan = |rank| rank_plan(inventory, request, caps, rank);
    let plans = (0..inventory.world_size()).map(plan);
    let plans = plans.collect::<Result<Vec<_>, _>>()?;
    check_ranks(&plans)?;
    Ok(plans)
}

/// One rank's plan of a step.
fn rank_plan(
    inventory: &Inventory,
    request: &EmitRequest,
    caps: &Caps,
    rank: usize,
) -> Result<Plan, EngineError> {
    let request = EmitRequest {
        rank,
        world_size: inventory.world_size(),
        ..request.clone()
    };
    make_plan(inventory, &request, caps)
}

/// Emits, fuses and checks a plan.
fn make_plan(
    inventory: &Inventory,
    request: &EmitRequest,
    caps: &Caps,
) -> Result<Plan, EngineError> {
    let mut plan = emit(inventory, request)?;
    let states = states(
        inventory.config(),
        request.latent_type,
        request.index_key_type,
    );
    check_states(&plan, &states)?;
    fuse(&mut plan, &caps.patterns);
    check_states(&plan, &states)?;
    Ok(plan)
}

/// Every rank's plan of a step that gives the logits of every row. `forced`: with an input that replaces the indexer's choices.
pub(crate) fn every_row_plan(
    inventory: &Inventory,
    caps: &Caps,
    geometry: CacheGeometry,
    step: StepKind,
    sequence_slots: usize,
    forced: bool,
) -> Result<RankPlans, EngineError> {
    let request = EmitRequest {
        outputs: OutputRows::All,
        logits: true,
        sample: false,
        forced_topk: forced,
        sequence_slots,
        ..EmitRequest::new(step, geometry)
    };
    make_plans(inventory, &request, caps)
}

/// Rank 0's plan of a step that gives all that it can: the one whose arena is largest.
pub(crate) fn largest_plan(
    inventory: &Inventory,
    caps: &Caps,
    geometry: CacheGeometry,
    step: StepKind,
    sequence_slots: usize,
) -> Result<Plan, EngineError> {
    let request = EmitRequest {
        world_size: inventory.world_size(),
        logits: true,
        sequence_slots,
        ..EmitRequest::new(step, geometry)
    };
    make_plan(inventory, &request, caps)
}

/// F32 caches: what every plan of this engine has.
pub(crate) const CACHE_TYPE: GgmlType = GgmlType::F32;
