//! The steps that a proof looks into: the end of a prompt, and the token after it.
//!
//! The prompt is longer than the indexer keeps, if the context is: all but its last rows run in chunks, as any prompt does. The last
//! chunk is the prefill step of the proof. It can run any number of times: it writes the same rows to the same slots.

use glim_model::{Inventory, names};
use glim_plan::sample::SampleParams;
use glim_plan::{ReadTarget, StepKind, StepResults};
use glim_text::TokenId;

use crate::buckets::prefill_chunks;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::sequence::Sequence;
use crate::steps::{BatchRow, CARRIED, Draw, Prepared};

/// Rows of the prefill step.
pub const ROWS: usize = 64;

/// Context that a proof needs to look beyond what the model's indexer keeps, in tokens.
pub fn context(inventory: &Inventory) -> usize {
    let c = inventory.config();
    (c.indexer.topk + ROWS + 1).min(c.max_context)
}

/// Which step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    Prefill,
    Decode,
}

impl Which {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

/// A prompt whose beginning goes into the cache, and is then there.
pub(super) struct Stage<'e> {
    engine: &'e mut Engine,
    sequence: &'e mut Sequence,
    /// What comes before the steps.
    head: Vec<TokenId>,
    /// Its last rows.
    tail: Vec<TokenId>,
    mask: Vec<u32>,
    which: Which,
    rank: usize,
}

/// One run of a step, and what it found when it began.
pub(super) struct Ran {
    /// Of each rank.
    pub(super) results: Vec<StepResults>,
    pub(super) carry_before: Vec<i32>,
}

/// Runs `f` with a prompt made of `ids`.
pub(super) fn at_end_of_prompt<T>(
    engine: &mut Engine,
    ids: &[TokenId],
    f: impl FnOnce(&mut Stage<'_>) -> Result<T, EngineError>,
) -> Result<T, EngineError> {
    let length = context(engine.inventory()).min(engine.context()).max(2) - 1;
    let vocab = engine.inventory().config().vocab_size;
    let mut head = prompt(ids, length, vocab);
    let rows = ROWS.min(length).min(engine.max_chunk());
    let tail = head.split_off(length - rows);
    engine.with_sequence(|engine, sequence| {
        engine.reserve(sequence, (length + 1).min(engine.context()))?;
        f(&mut Stage {
            engine,
            sequence,
            head,
            tail,
            mask: vec![u32::MAX; vocab.div_ceil(32)],
            which: Which::Prefill,
            rank: 0,
        })
    })
}

/// `length` ids of a text, which is repeated; without a text ids that spread over the vocabulary.
pub(super) fn prompt(ids: &[TokenId], length: usize, vocab: usize) -> Vec<TokenId> {
    let known = ids.iter().filter(|id| (id.0 as usize) < vocab);
    let mut prompt: Vec<TokenId> = known.copied().cycle().take(length).collect();
    let spread = |i: usize| TokenId((i as u64 * 7919 % vocab as u64) as u32);
    prompt.extend((prompt.len()..length).map(spread));
    prompt
}

impl Stage<'_> {
    /// Chunks of the prompt before the steps.
    pub(super) fn chunks(&self) -> usize {
        prefill_chunks(self.head.len(), self.engine.max_chunk()).count()
    }

    /// Runs the next of them; whether there was one.
    pub(super) fn next_chunk(&mut self) -> Result<bool, EngineError> {
        let rest = &self.head[self.sequence.computed()..];
        let Some(chunk) = prefill_chunks(rest.len(), self.engine.max_chunk()).next() else {
            return Ok(false);
        };
        let kind = self.engine.prefill_kind(chunk.len());
        let row = BatchRow {
            tokens: &rest[chunk.clone()],
            sequence: self.sequence,
            under_way: 0,
            slot: 0,
            draw: None,
        };
        self.engine.run_batch(kind, &[row])?;
        self.sequence.advance(chunk.len());
        Ok(true)
    }

    /// Turns to a rank's part of a step; its prompt must be in the cache when it runs.
    pub(super) fn look_at(&mut self, which: Which, rank: usize) {
        (self.which, self.rank) = (which, rank);
    }

    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    /// The step's kind: that of the smallest bucket which holds it.
    pub(super) fn kind(&self) -> StepKind {
        match self.which {
            Which::Prefill => self.engine.prefill_kind(self.tail.len()),
            Which::Decode => self.engine.decode_kind(1),
        }
    }

    pub(super) fn which(&self) -> Which {
        self.which
    }

    /// Positions of the step's rows.
    pub(super) fn positions(&self) -> std::ops::Range<usize> {
        let first = self.sequence.computed();
        match self.which {
            Which::Prefill => first..first + self.tail.len(),
            Which::Decode => first + self.tail.len()..first + self.tail.len() + 1,
        }
    }

    pub(super) fn engine(&mut self) -> &mut Engine {
        self.engine
    }

    /// Runs a form of the step. A decode step finds the token that the prefill step before it has drawn.
    pub(super) fn run(&mut self, prepared: &mut Prepared) -> Result<Ran, EngineError> {
        if self.which == Which::Prefill {
            let carry_before = self.carry()?;
            let batch = [row(&self.tail, self.sequence, &self.mask)];
            let results = self.engine.run_prepared(prepared, &batch)?;
            return Ok(Ran {
                results,
                carry_before,
            });
        }
        let kind = self.engine.prefill_kind(self.tail.len());
        self.engine
            .run_batch(kind, &[row(&self.tail, self.sequence, &self.mask)])?;
        let carry_before = self.carry()?;
        self.sequence.advance(self.tail.len());
        let batch = [row(&[CARRIED], self.sequence, &self.mask)];
        let results = self.engine.run_prepared(prepared, &batch);
        self.sequence.rewind(self.tail.len());
        Ok(Ran {
            results: results?,
            carry_before,
        })
    }

    /// The carried tokens as they are now.
    pub(super) fn carry(&self) -> Result<Vec<i32>, EngineError> {
        let bytes = self
            .engine
            .read(self.rank, ReadTarget::Carry(names::CARRIED_TOKEN))?;
        let words = bytes.as_chunks::<4>().0.iter();
        Ok(words.map(|word| i32::from_ne_bytes(*word)).collect())
    }

    /// The rows of a state as they are now.
    pub(super) fn state(&self, name: &str) -> Result<Vec<f32>, EngineError> {
        let bytes = self.engine.read(self.rank, ReadTarget::State(name))?;
        let words = bytes.as_chunks::<4>().0.iter();
        Ok(words.map(|word| f32::from_ne_bytes(*word)).collect())
    }
}

/// The tokens as a batch, the next one drawn greedily.
fn row<'b>(tokens: &'b [TokenId], sequence: &'b Sequence, mask: &'b [u32]) -> BatchRow<'b> {
    let params = SampleParams {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        seed: 0,
        choice: 0,
        position: (sequence.computed() + tokens.len()) as u32,
    };
    BatchRow {
        tokens,
        sequence,
        under_way: 0,
        slot: 0,
        draw: Some(Draw { params, mask }),
    }
}
