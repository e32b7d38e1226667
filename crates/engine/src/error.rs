//! What can go wrong between a request and its tokens.

use glim_model::EmitError;
use glim_plan::{BackendError, CheckError, InputError, PlanError};
use thiserror::Error;

use crate::constraint::ConstraintError;

/// Why the engine refused or failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The backend failed, or the plan or inputs it was given are wrong.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// A plan broke a rule.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// A plan could not be made.
    #[error(transparent)]
    Emit(#[from] EmitError),
    /// A plan was misused.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Inputs did not fit a plan.
    #[error(transparent)]
    Input(#[from] InputError),
    /// Two plans want one weight in different groups.
    #[error(transparent)]
    Groups(#[from] glim_plan::groups::GroupError),
    /// The request cannot fit.
    #[error(
        "the request needs {needed} tokens of context, but the engine was started with {available}: shorten the prompt, lower the token limit, or raise --context"
    )]
    ContextExceeded {
        /// Prompt and tokens to be generated.
        needed: usize,
        /// What the engine has.
        available: usize,
    },
    /// No free blocks.
    #[error("{needed} cache blocks are needed, but only {free} of {total} are free")]
    OutOfBlocks {
        /// Needed now.
        needed: usize,
        /// Free.
        free: usize,
        /// Blocks of the pool.
        total: usize,
    },
    /// The memory does not hold one context.
    #[error(
        "weights, arena and caches for one whole context need {needed} bytes, but {available} are allowed: lower --context, or allow more"
    )]
    OutOfMemory {
        /// For one context.
        needed: u64,
        /// Allowed.
        available: u64,
    },
    /// The cache is to hold less than one context.
    #[error(
        "a cache of {found} tokens does not hold one whole context, which takes {least}: lower --context, or allow more"
    )]
    BadCache {
        /// Asked for, in whole blocks.
        found: usize,
        /// One context, in whole blocks.
        least: usize,
    },
    /// Too many requests wait.
    #[error("the queue is full: {waiting} requests wait, of at most {max}; try again later")]
    QueueFull {
        /// Requests that wait.
        waiting: usize,
        /// Most.
        max: usize,
    },
    /// What binds a request's tokens cannot go on.
    #[error("the constraint of the answer failed: {0}")]
    Constraint(#[from] ConstraintError),
    /// The model cannot be cut over so many ranks.
    #[error(transparent)]
    Shards(#[from] glim_model::shard::ShardError),
    /// Ranks and weights do not fit.
    #[error(
        "the weights are cut over {expected} ranks, but there are {found} backends, which meet in a group of {together}"
    )]
    BadRanks {
        /// Backends.
        found: usize,
        /// Ranks of their group.
        together: usize,
        /// Ranks of the inventory.
        expected: usize,
    },
    /// More sequences than a step can hold, or none.
    #[error("{found} sequences at a time are not possible: expected 1 to {max}")]
    BadSequences {
        /// Asked for.
        found: usize,
        /// Most.
        max: usize,
    },
    /// A lone generation beside other requests.
    #[error("other requests are under way: submit this one to the queue instead")]
    Busy,
    /// Nothing to start from.
    #[error("the prompt is empty: there is no token to predict from")]
    EmptyPrompt,
    /// A token id that the model does not have.
    #[error(
        "token id {id} at position {position} lies outside the model's vocabulary of {vocab_size}"
    )]
    BadToken {
        /// Id.
        id: u32,
        /// Where.
        position: usize,
        /// Rows of the embedding.
        vocab_size: usize,
    },
    /// Sampling parameters that mean nothing.
    #[error("{name} is {found}: expected {expected}")]
    BadSampling {
        /// Parameter.
        name: &'static str,
        /// Value.
        found: f32,
        /// Range.
        expected: &'static str,
    },
    /// The context is not one that the model or the engine can have.
    #[error(
        "a context of {found} tokens is not possible: expected 1 to {max}, the model's own limit"
    )]
    BadContext {
        /// Asked for.
        found: usize,
        /// The model's.
        max: usize,
    },
    /// The model produced NaN or infinite logits.
    #[error(
        "the logits of position {position} hold NaN or infinity: the weights or a kernel are broken; run with --poison to find the first operation that does it"
    )]
    CorruptLogits {
        /// Position of the token that could not be drawn.
        position: usize,
    },
    /// Every token is masked.
    #[error("no token is allowed at position {position}")]
    NoTokenAllowed {
        /// Position.
        position: usize,
    },
    /// A plan lacks a result that the engine reads.
    #[error("plan {plan} has no result {name}")]
    NoResult {
        /// Plan.
        plan: String,
        /// Buffer.
        name: String,
    },
    /// The reference file does not fit the model.
    #[error("reference {name}: {reason}")]
    BadReference {
        /// Array.
        name: String,
        /// Found and expected.
        reason: String,
    },
    /// An activation grew beyond f32, or is NaN.
    #[error(
        "what tensor {tensor} is multiplied with is not finite in column {column}: the weights or a kernel are broken; run with --poison to find the first operation that does it"
    )]
    CorruptActivation {
        /// The weight.
        tensor: String,
        /// Column, counted over all matrices.
        column: usize,
    },
    /// The checkpoint cannot hand out a weight.
    #[error(transparent)]
    Model(#[from] glim_model::ModelError),
    /// A weight cannot be decoded.
    #[error("a weight cannot be decoded: {reason}")]
    BadWeight {
        /// Why.
        reason: String,
    },
    /// The text is too short to measure.
    #[error("the text has {found} tokens: at least {expected} are needed for one window")]
    TextTooShort {
        /// Tokens.
        found: usize,
        /// One window.
        expected: usize,
    },
}
