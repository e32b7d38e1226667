//! The input block: everything that changes between two runs of one prepared step.
//!
//! All inputs are four-byte words, one after the other in the order of [`InputKind::ALL`], so that a backend moves them to its
//! memory in one copy. Rows that a step does not use hold their kind's pad.

use std::ops::Range;

use thiserror::Error;

use crate::buffer::{BufferKind, InputKind};
use crate::plan::Plan;

/// Wrong use of an input block.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum InputError {
    /// The plan has no such input.
    #[error("plan {plan} has no input {}", kind.name())]
    Absent {
        /// Plan.
        plan: String,
        /// Input.
        kind: InputKind,
    },
    /// More words than the plan's capacity.
    #[error("{found} words for the input {} of plan {plan}, which holds {capacity}", kind.name())]
    TooLong {
        /// Plan.
        plan: String,
        /// Input.
        kind: InputKind,
        /// Words given.
        found: usize,
        /// Words that fit.
        capacity: usize,
    },
    /// The block was made for a plan with other inputs.
    #[error(
        "the inputs were made for plan {found}, whose input block differs from that of plan {plan}"
    )]
    OtherLayout {
        /// Plan that is to run.
        plan: String,
        /// Plan that the inputs were made for.
        found: String,
    },
}

/// One step's inputs for one plan.
#[derive(Debug, Clone, PartialEq)]
pub struct StepInputs {
    plan: String,
    words: Vec<u32>,
    ranges: [Option<Range<usize>>; InputKind::ALL.len()],
}

impl StepInputs {
    /// An input block with only pads: a step without live rows.
    pub fn new(plan: &Plan) -> Self {
        let mut words = Vec::new();
        let ranges = InputKind::ALL.map(|kind| {
            let (_, buffer) = plan
                .buffers_where(|k| *k == BufferKind::Input(kind))
                .next()?;
            let start = words.len();
            words.resize(start + buffer.elements(), kind.pad());
            Some(start..words.len())
        });
        Self {
            plan: plan.name.clone(),
            words,
            ranges,
        }
    }

    /// The block.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Where an input lies in the block, in words.
    pub fn range(&self, kind: InputKind) -> Option<Range<usize>> {
        self.ranges[kind as usize].clone()
    }

    /// An input's words; empty if the plan has no such input.
    pub fn get(&self, kind: InputKind) -> &[u32] {
        self.range(kind).map_or(&[], |r| &self.words[r])
    }

    /// Whether the plan has this input.
    pub fn has(&self, kind: InputKind) -> bool {
        self.ranges[kind as usize].is_some()
    }

    /// Sets an input from its first word on, and the rest of it to pads (for `cu_seqlens`: to the last value given).
    ///
    /// # Errors
    /// If the plan has no such input, or it is shorter.
    pub fn set(
        &mut self,
        kind: InputKind,
        values: impl IntoIterator<Item = u32>,
    ) -> Result<(), InputError> {
        let range = self.range(kind).ok_or_else(|| InputError::Absent {
            plan: self.plan.clone(),
            kind,
        })?;
        let capacity = range.len();
        let slot = &mut self.words[range];
        let mut last = kind.pad();
        let mut used = 0;
        let mut values = values.into_iter();
        while let Some(value) = values.next() {
            let Some(word) = slot.get_mut(used) else {
                let found = capacity + 1 + values.count();
                return Err(InputError::TooLong {
                    plan: self.plan.clone(),
                    kind,
                    found,
                    capacity,
                });
            };
            *word = value;
            last = value;
            used += 1;
        }
        slot[used..].fill(if kind == InputKind::CuSeqlens {
            last
        } else {
            kind.pad()
        });
        Ok(())
    }

    /// [`Self::set`] for `i32`.
    ///
    /// # Errors
    /// As [`Self::set`].
    pub fn set_i32(
        &mut self,
        kind: InputKind,
        values: impl IntoIterator<Item = i32>,
    ) -> Result<(), InputError> {
        self.set(kind, values.into_iter().map(|v| v as u32))
    }

    /// [`Self::set`] for `f32`.
    ///
    /// # Errors
    /// As [`Self::set`].
    pub fn set_f32(
        &mut self,
        kind: InputKind,
        values: impl IntoIterator<Item = f32>,
    ) -> Result<(), InputError> {
        self.set(kind, values.into_iter().map(f32::to_bits))
    }

    /// Takes over all words of another block, as a backend does before a run.
    ///
    /// # Errors
    /// If the other block was made for a plan whose inputs differ.
    pub fn copy_from(&mut self, other: &Self) -> Result<(), InputError> {
        if self.ranges != other.ranges {
            return Err(InputError::OtherLayout {
                plan: self.plan.clone(),
                found: other.plan.clone(),
            });
        }
        self.words.copy_from_slice(&other.words);
        Ok(())
    }

    /// Fills the whole block with one word: tests poison inputs between steps with it.
    pub fn fill(&mut self, word: u32) {
        self.words.fill(word);
    }
}
