//! The plan: a model's step as straight-line data, and what can be known about it without running it.
//!
//! A [`Plan`] is a list of coarse operations ([`Op`]) over named buffers, for one rank and one step shape. It is emitted by
//! `glim-model`, checked ([`check()`]), rewritten ([`fuse()`]), laid out in one arena ([`arrange()`]), priced ([`cost`]) and handed to
//! a [`Backend`], which replays it for every step of that shape. The same plan serves a CPU loop and a captured GPU graph:
//! all that changes between two steps lies in one block of inputs ([`StepInputs`]).
//!
//! This crate does not know what a request, a token's text or a layer is: labels and buffer names are opaque strings here.
//! It carries the scalar truth ([`reference`]) that other backends are measured against.
//!
//! ```
//! use glim_plan::{GgmlType, InputKind, Op, PlanBuilder, Rows, StepKind, CacheGeometry, check};
//!
//! let mut b = PlanBuilder::new("example", StepKind::Decode { rows: 2 }, CacheGeometry { block_size: 16, max_blocks: 4 });
//! let tokens = b.input(InputKind::Tokens);
//! let table = b.weight("token_embd.weight", GgmlType::F32, &[100, 8]);
//! let out = b.result("embedding", GgmlType::F32, &[2, 8], Rows::Tokens);
//! b.op("embed", Op::Embed { tokens, carry: None, table, out });
//! let plan = b.finish();
//! check(&plan).expect("every buffer is written before it is read, and read after it is written");
//! println!("{plan}");
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod arrange;
pub mod backend;
pub mod bind;
pub mod buffer;
pub mod check;
pub mod collective;
pub mod cost;
pub mod fingerprint;
pub mod fuse;
pub mod groups;
pub mod inputs;
pub mod live;
pub mod op;
pub mod plan;
mod print;
pub mod profile;
pub mod reference;
pub mod results;
pub mod sample;
mod shape;

pub use arrange::{Arrangement, arrange, check_arrangement};
pub use backend::{
    Allocated, Backend, BackendError, Caps, MAX_IN_FLIGHT, RandomBlocks, ReadTarget, StepId,
    Ticket, WeightData, WeightSource,
};
pub use bind::{Resident, bind};
pub use buffer::{
    BufferDecl, BufferId, BufferKind, InputExtents, InputKind, Placement, Rows, StateKind,
};
pub use check::{CheckError, check, check_ranks, check_states};
pub use collective::{Communicator, RankFailure, RankFault};
pub use cost::{Cost, Load, op_cost, plan_cost};
pub use fuse::{FusePattern, fuse};
pub use glim_quant::GgmlType;
pub use groups::{WeightGroup, weight_groups};
pub use inputs::{InputError, StepInputs};
pub use live::{LiveBounds, LiveStep};
pub use op::{
    CarryRef, CollectiveId, Cols, Gather, Op, OpNode, Paging, Precision, RopeSpec, RopeStyle,
    RouterSpec, SampleInputs, Scoring,
};
pub use plan::{CacheGeometry, Plan, PlanBuilder, PlanError, StateDecl, StepKind};
pub use profile::{OpTime, Profile};
pub use results::{ResultLayout, StepResults};
