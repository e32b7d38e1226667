//! Where ranks meet on GPUs: one seam, and what can stand behind it.
//!
//! [`Collective`] turns a collective operation into what a rank's step launches. [`pull`] is our own: kernels that meet in each
//! other's memory, also where ranks share a GPU; [`nccl`] hands the bytes to NVIDIA's library; [`alone`] meets nobody, at once or after a
//! stated time. Something faster joins them without a change elsewhere: `program` says *what* is summed and gathered ([`Sum`],
//! [`Gathering`]), and only here is decided how.
//!
//! [`GpuGroup`] is the ranks of a model together, as the engine sees them: nobody waits for another longer than its deadline, and the
//! first failure is everybody's.

mod alone;
mod group;
mod nccl;
mod pieces;
mod pull;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use glim_plan::{BufferId, RankFailure};

pub use group::{GpuGroup, Transport};

use crate::driver::Stream;
use crate::error::CudaError;
use crate::program::Builder;

/// Most ranks that meet; as `MAX_RANKS` in `kernels/include/ranks.cuh`.
pub const MAX_RANKS: usize = 8;

/// Element type on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wire {
    F32,
    Bf16,
}

/// [`glim_plan::Op::AllReduce`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sum {
    pub(crate) x: BufferId,
    pub(crate) out: BufferId,
    /// Elements of a row.
    pub(crate) width: usize,
    pub(crate) wire: Wire,
    /// No collective follows in the step.
    pub(crate) is_last: bool,
}

/// [`glim_plan::Op::AllGather`]. All parts have the same rows.
#[derive(Debug)]
pub(crate) struct Gathering {
    pub(crate) parts: Vec<Part>,
    pub(crate) wire: Wire,
    /// No collective follows in the step.
    pub(crate) is_last: bool,
}

/// One buffer of a [`Gathering`].
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) x: BufferId,
    pub(crate) out: BufferId,
    /// Words that each rank brings for a row.
    pub(crate) widths: Vec<usize>,
    /// Whether they are f32, which are rounded to the wire's type.
    pub(crate) is_float: bool,
}

/// How one rank meets the others.
pub(crate) trait Collective: fmt::Debug + Send + Sync {
    fn rank(&self) -> usize;

    fn world_size(&self) -> usize;

    /// Adds what sums.
    ///
    /// # Errors
    /// Why it cannot.
    fn sum(&self, b: &mut Builder<'_>, sum: &Sum) -> Result<(), String>;

    /// Adds what gathers.
    ///
    /// # Errors
    /// Why it cannot.
    fn gather(&self, b: &mut Builder<'_>, gathering: &Gathering) -> Result<(), String>;

    /// Bytes on this rank's GPU that it meets the others in.
    fn bytes(&self) -> usize {
        0
    }

    /// Meets the others before the first step, from the rank's own thread. Every rank calls it, once for each plan.
    ///
    /// # Errors
    /// If they cannot be met.
    fn connect(&self, _stream: &Stream) -> Result<(), CudaError> {
        Ok(())
    }

    /// Waits until the hosts of all ranks have come here; all of them do, as often.
    ///
    /// # Errors
    /// If one does not come in time, or the group has ended.
    fn assemble(&self) -> Result<(), RankFailure> {
        Ok(())
    }

    /// Says that the host begins operation `op` of its plan.
    fn begin(&self, _op: usize) {}

    /// Why the ranks cannot go on together, if so. Asked after each step.
    fn failure(&self) -> Option<RankFailure> {
        None
    }
}

/// A rank's place among those of a model, for [`crate::CudaOptions::ranks`].
#[derive(Debug, Clone)]
pub struct Place(pub(crate) Arc<dyn Collective>);

impl Place {
    /// The place of who is alone.
    pub fn alone() -> Self {
        Self::without_others(0, 1, None)
    }

    /// Rank `rank` of `world_size` without the others: each collective takes `latency`, or no more than moving the rank's own data, and gives
    /// what would come if all ranks had brought nothing, or the same. For measuring one rank of many.
    pub fn without_others(rank: usize, world_size: usize, latency: Option<Duration>) -> Self {
        Self(Arc::new(alone::WithoutOthers {
            rank,
            world_size,
            latency: latency.unwrap_or_default(),
        }))
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.0.rank()
    }

    /// Ranks.
    pub fn world_size(&self) -> usize {
        self.0.world_size()
    }
}

impl Default for Place {
    fn default() -> Self {
        Self::alone()
    }
}
