//! Figures of an engine, for metrics and for tests.

use crate::kv::MISS_REASONS;

/// How an engine stands, and what it has done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineStats {
    /// Requests that hold blocks.
    pub running: usize,
    /// Requests that wait, those that were preempted among them.
    pub waiting: usize,
    /// Blocks in all.
    pub blocks_total: usize,
    /// Blocks that somebody refers to.
    pub blocks_used: usize,
    /// Free blocks whose rows may be used again.
    pub blocks_cached: usize,
    /// Tokens of a block.
    pub block_size: usize,
    /// Tokens of the prompts that have been started; each prompt counts once, however often it is preempted.
    pub prefix_queries: u64,
    /// Tokens of them that were in the cache. The others are counted in `cache_misses`.
    pub prefix_hits: u64,
    /// Times that a request lost its blocks to a more urgent one.
    pub preemptions: u64,
    /// Ticks that ran something.
    pub steps: u64,
    /// What the last of them ran.
    pub last_step: StepSize,
    /// Tokens of prompts that were not in the cache, by the [reason](crate::MissReason).
    pub cache_misses: [(&'static str, u64); MISS_REASONS],
}

/// What a tick ran.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepSize {
    /// Tokens of the prefill step.
    pub prefill_tokens: usize,
    /// Rows of the decode step.
    pub decode_rows: usize,
}
