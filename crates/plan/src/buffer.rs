//! Buffers: what a plan reads and writes, and who keeps it for how long.

use glim_quant::GgmlType;

use crate::plan::{CacheGeometry, StepKind};

/// Index of a buffer in [`crate::Plan::buffers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

impl BufferId {
    /// The index as a `usize`.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// How state is kept between steps, and so how the engine addresses, rolls back and frees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StateKind {
    /// A row for each token, in blocks behind a block table; rolled back by length.
    Paged {
        /// Bytes of one token's row.
        bytes_per_token: usize,
    },
    /// One row for each sequence (linear attention): a step reads one slot and writes another, the engine commits.
    Slot {
        /// Bytes of one sequence's row.
        bytes_per_sequence: usize,
    },
}

/// Who owns a buffer and how long it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BufferKind {
    /// Immutable after load; resident once for all plans of a model.
    Weight,
    /// Kept across steps for each token or sequence. Every plan of a model appends every state that the model owns.
    State(StateKind),
    /// Written by the engine before each step; lies in the one input block.
    Input(InputKind),
    /// A step's result that the next step reads on the device (a sampled token): `[sequence slots, …]`, shared by all plans.
    Carry,
    /// Lives inside a step, in the arena.
    Temp,
    /// Read by the engine after a step.
    Result,
}

/// What the engine tells a step. All are four-byte words (`I32` or `F32`), so that they form one block and one copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum InputKind {
    /// `[tokens]` i32: token ids; −1: take the carried token of the row's sequence slot.
    Tokens,
    /// `[tokens]` i32: position of each row in its sequence.
    Positions,
    /// `[tokens]` i32: paged slot (`block * block_size + offset`) where the row's state goes; −1 for a pad row.
    SlotMapping,
    /// `[sequences + 1]` i32: rows `cu_seqlens[s]..cu_seqlens[s + 1]` belong to sequence `s`; the last value repeats for
    /// absent sequences, so the final element is the number of live rows.
    CuSeqlens,
    /// `[sequences, max_blocks]` i32: physical block of each logical block; −1 where there is none.
    BlockTables,
    /// `[sequences]` i32: slot of the sequence in carries and slot states.
    SequenceSlots,
    /// `[outputs]` i32: row that each output row is taken from; −1 for a pad row (pads are at the end).
    OutputRows,
    /// `[outputs]` f32: 0 means arg-max.
    Temperature,
    /// `[outputs]` i32: 0 means off.
    TopK,
    /// `[outputs]` f32: 1 means off.
    TopP,
    /// `[outputs]` f32: 0 means off.
    MinP,
    /// `[outputs, 3]` i32: low and high half of the seed, index of the choice.
    Seeds,
    /// `[outputs, ceil(vocab / 32)]` i32: bit set = token allowed (bit `i % 32` of word `i / 32`).
    TokenMask,
    /// `[tokens, full layers · topk]` i32: positions that replace the indexer's choice; a row of a layer that starts with −1 is
    /// not forced.
    ForcedTopk,
}

/// What the capacity of inputs depends on besides the step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InputExtents {
    /// Output rows.
    pub outputs: usize,
    /// Tokens of the vocabulary.
    pub vocab_size: usize,
    /// Columns of [`InputKind::ForcedTopk`].
    pub forced: usize,
}

impl InputKind {
    /// Every kind, in the order of the input block.
    pub const ALL: [InputKind; 14] = [
        Self::Tokens,
        Self::Positions,
        Self::SlotMapping,
        Self::CuSeqlens,
        Self::BlockTables,
        Self::SequenceSlots,
        Self::OutputRows,
        Self::Temperature,
        Self::TopK,
        Self::TopP,
        Self::MinP,
        Self::Seeds,
        Self::TokenMask,
        Self::ForcedTopk,
    ];

    /// Name in prints and errors.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::Positions => "positions",
            Self::SlotMapping => "slot_mapping",
            Self::CuSeqlens => "cu_seqlens",
            Self::BlockTables => "block_tables",
            Self::SequenceSlots => "sequence_slots",
            Self::OutputRows => "output_rows",
            Self::Temperature => "temperature",
            Self::TopK => "top_k",
            Self::TopP => "top_p",
            Self::MinP => "min_p",
            Self::Seeds => "seeds",
            Self::TokenMask => "token_mask",
            Self::ForcedTopk => "forced_topk",
        }
    }

    /// `F32` or `I32`.
    pub fn dtype(self) -> GgmlType {
        match self {
            Self::Temperature | Self::TopP | Self::MinP => GgmlType::F32,
            _ => GgmlType::I32,
        }
    }

    /// What a pad row holds, as a word.
    pub fn pad(self) -> u32 {
        match self {
            Self::Tokens | Self::Positions | Self::CuSeqlens | Self::TopK | Self::Seeds => 0,
            Self::SlotMapping
            | Self::BlockTables
            | Self::SequenceSlots
            | Self::OutputRows
            | Self::ForcedTopk => u32::MAX,
            Self::Temperature | Self::MinP => 0,
            Self::TopP => 1f32.to_bits(),
            Self::TokenMask => u32::MAX,
        }
    }

    /// Capacity of the buffer for a step.
    pub fn shape(
        self,
        step: StepKind,
        geometry: CacheGeometry,
        extents: InputExtents,
    ) -> Vec<usize> {
        let InputExtents {
            outputs,
            vocab_size,
            forced,
        } = extents;
        match self {
            Self::Tokens | Self::Positions | Self::SlotMapping => vec![step.tokens()],
            Self::CuSeqlens => vec![step.sequences() + 1],
            Self::BlockTables => vec![step.sequences(), geometry.max_blocks],
            Self::SequenceSlots => vec![step.sequences()],
            Self::OutputRows | Self::Temperature | Self::TopK | Self::TopP | Self::MinP => {
                vec![outputs]
            }
            Self::Seeds => vec![outputs, 3],
            Self::TokenMask => vec![outputs, vocab_size.div_ceil(32)],
            Self::ForcedTopk => vec![step.tokens(), forced],
        }
    }

    /// What the first axis counts.
    pub fn rows(self) -> Rows {
        match self {
            Self::Tokens | Self::Positions | Self::SlotMapping | Self::ForcedTopk => Rows::Tokens,
            Self::OutputRows
            | Self::Temperature
            | Self::TopK
            | Self::TopP
            | Self::MinP
            | Self::Seeds
            | Self::TokenMask => Rows::Outputs,
            Self::CuSeqlens | Self::BlockTables | Self::SequenceSlots => Rows::Whole,
        }
    }
}

/// What the first axis of a buffer counts, and so which of its rows are live in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rows {
    /// Rows of the step: live up to the end of `cu_seqlens`.
    Tokens,
    /// Output rows: live where `output_rows` is not −1.
    Outputs,
    /// Not rows of a step: all of it is live (weights, state rows, tables).
    Whole,
}

/// How a buffer lies over the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Every rank holds the same values.
    Replicated,
    /// Every rank holds its part of this axis; the shape is the part's.
    Sharded {
        /// The axis that is cut.
        axis: usize,
    },
}

/// A buffer: name, kind, element type, capacity, placement.
#[derive(Debug, Clone, PartialEq)]
pub struct BufferDecl {
    /// Unique in its plan; weights and states have one name across all plans of a model.
    pub name: String,
    /// Who owns it.
    pub kind: BufferKind,
    /// Element or block type. A row (last axis) is a whole number of blocks.
    pub dtype: GgmlType,
    /// Row-major capacity, slowest axis first. For paged state: the shape of one token's row.
    pub shape: Vec<usize>,
    /// What axis 0 counts.
    pub rows: Rows,
    /// How it lies over the ranks.
    pub placement: Placement,
}

impl BufferDecl {
    /// Elements at full capacity (of one row for state).
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes at full capacity (of one row for state); 0 if the last axis is not a whole number of blocks, which [`crate::check()`] refuses.
    pub fn bytes(&self) -> usize {
        let cols = self.shape.last().copied().unwrap_or(1);
        let rows: usize = self.shape.iter().rev().skip(1).product();
        self.dtype.row_bytes(cols).map_or(0, |row| row * rows)
    }

    /// Elements of one entry of axis 0.
    pub fn row_elements(&self) -> usize {
        self.shape.iter().skip(1).product()
    }
}
