//! How ranks meet: one primitive, and the two collectives that are made of it.
//!
//! A [`Communicator`] is one rank's view of all, a [`Group`] that of who drives them. Its one operation is an exchange: every rank brings words, and every rank sees
//! all of them in the order of ranks. Sums are therefore taken in the same order everywhere, and all ranks get the same bits:
//! a router that runs on each of them chooses the same experts. A backend that has something better for its devices (NCCL, its
//! own kernels) keeps to the same contract.
//!
//! Nobody waits for ever. A rank that fails, panics or makes no progress within the deadline ends the exchange on every rank with
//! one [`RankFailure`], which names it and the operation that it was in.

use std::fmt;
use std::time::{Duration, Instant};

use glim_quant::{GgmlType, QuantError, dequantize, quantize};

use crate::backend::BackendError;
use crate::op::CollectiveId;
use crate::plan::Plan;

/// One rank among those of a model.
pub trait Communicator: fmt::Debug + Send + Sync {
    /// This rank.
    fn rank(&self) -> usize;

    /// Ranks.
    fn world_size(&self) -> usize;

    /// Says that this rank begins operation `op` of its plan, so that others can tell where it got stuck. Cheap.
    fn begin(&self, op: usize);

    /// Brings `mine` and sees, for each rank in order, what it brought. Ranks must enter the same `id` one after the other.
    ///
    /// # Errors
    /// If some rank failed or did not come in time. Every later exchange of the group fails the same way.
    fn exchange(
        &self,
        id: CollectiveId,
        mine: &[u32],
        each: &mut dyn FnMut(usize, &[u32]),
    ) -> Result<(), RankFailure>;
}

/// The ranks of a model together, as who drives them sees them.
pub trait Group: fmt::Debug + Send + Sync {
    /// Ranks.
    fn world_size(&self) -> usize;

    /// How long a rank waits for another.
    fn deadline(&self) -> Duration;

    /// The operation that a rank is in, as it has said by [`Communicator::begin`].
    fn op_of(&self, rank: usize) -> usize;

    /// Ends the group because of `rank`: whoever waits for it, or comes later, gets this failure. The first one counts.
    fn fail(&self, rank: usize, fault: RankFault);

    /// Why the group has ended, if it has.
    fn failure(&self) -> Option<RankFailure>;
}

/// Why ranks cannot go on together: the first one that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankFailure {
    /// The rank that failed.
    pub rank: usize,
    /// Index of the operation that it was in.
    pub op: usize,
    /// What it did.
    pub fault: RankFault,
}

/// What a rank did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RankFault {
    /// It did not come to a collective while this rank waited there.
    Stalled {
        /// Who waited.
        waiter: usize,
        /// Index of the operation that the other waited in.
        waiter_op: usize,
        /// For how long.
        waited: Duration,
    },
    /// It panicked, with this message.
    Panicked(String),
    /// It ended with this error.
    Failed(String),
    /// It entered another collective, or brought another number of words, than the rank that came first.
    Differs(String),
}

impl RankFailure {
    /// For [`Self::op`]: it is not known in which operation.
    pub const UNKNOWN_OP: usize = usize::MAX;

    /// As an error of `plan`, whose labels the operations have on every rank.
    pub fn in_plan(self, plan: &Plan) -> BackendError {
        let label = |op: usize| {
            let node = plan.ops.get(op);
            let other = || match op {
                Self::UNKNOWN_OP => "an operation that is not known".to_owned(),
                op => format!("operation {op}"),
            };
            node.map_or_else(other, |node| node.label.clone())
        };
        let what = match &self.fault {
            RankFault::Stalled {
                waiter,
                waiter_op,
                waited,
            } => format!(
                "did not go on within {} s, while rank {waiter} waited in {}",
                waited.as_secs_f64(),
                label(*waiter_op)
            ),
            RankFault::Panicked(message) => format!("panicked: {message}"),
            RankFault::Failed(error) => format!("failed: {error}"),
            RankFault::Differs(what) => what.clone(),
        };
        BackendError::Rank {
            plan: plan.name.clone(),
            op: label(self.op),
            rank: self.rank,
            what,
        }
    }
}

/// A rank that is alone: what it brings is all there is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Alone;

impl Communicator for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn world_size(&self) -> usize {
        1
    }

    fn begin(&self, _op: usize) {}

    fn exchange(
        &self,
        _id: CollectiveId,
        mine: &[u32],
        each: &mut dyn FnMut(usize, &[u32]),
    ) -> Result<(), RankFailure> {
        each(0, mine);
        Ok(())
    }
}

/// One rank of several without the others: at every collective it waits as long as one is said to take, and sees its own words from each
/// of them. It is for measuring a rank; what is computed means nothing.
#[derive(Debug, Clone, Copy)]
pub struct StandIn {
    rank: usize,
    world_size: usize,
    latency: Duration,
}

impl StandIn {
    /// Rank `rank` of `world_size`, whose collectives take `latency`.
    pub fn new(rank: usize, world_size: usize, latency: Duration) -> Self {
        Self {
            rank,
            world_size,
            latency,
        }
    }
}

impl Communicator for StandIn {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world_size
    }

    fn begin(&self, _op: usize) {}

    fn exchange(
        &self,
        _id: CollectiveId,
        mine: &[u32],
        each: &mut dyn FnMut(usize, &[u32]),
    ) -> Result<(), RankFailure> {
        let until = Instant::now() + self.latency;
        (0..self.world_size).for_each(|rank| each(rank, mine));
        // Microseconds: a sleep would take longer.
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        Ok(())
    }
}

/// [`crate::Op::AllReduce`]: `out` = the sum of the ranks' `x`, each rounded to `wire` first, added in f32 in the order of ranks.
///
/// # Errors
/// As [`Communicator::exchange`].
pub fn all_reduce(
    ranks: &dyn Communicator,
    id: CollectiveId,
    wire: GgmlType,
    x: &[f32],
    out: &mut [f32],
) -> Result<(), RankFailure> {
    let rounded;
    let x = match wire {
        GgmlType::F32 => x,
        wire => {
            rounded = round(wire, x);
            &rounded
        }
    };
    ranks.exchange(id, bytemuck::cast_slice(x), &mut |rank, words| {
        let addend: &[f32] = bytemuck::cast_slice(words);
        if rank == 0 {
            out.copy_from_slice(addend);
        } else {
            out.iter_mut().zip(addend).for_each(|(o, a)| *o += a);
        }
    })
}

/// One buffer of an [`all_gather`], live rows only.
#[derive(Debug)]
pub struct GatherRows<'a> {
    /// This rank's rows.
    pub x: &'a [u32],
    /// All ranks' rows, joined row by row.
    pub out: &'a mut [u32],
    /// Words that each rank brings for a row.
    pub widths: Vec<usize>,
    /// Whether the words are f32, and are rounded to the wire's type.
    pub is_f32: bool,
}

/// [`crate::Op::AllGather`]: row by row, the ranks' parts side by side.
///
/// # Errors
/// As [`Communicator::exchange`].
pub fn all_gather(
    ranks: &dyn Communicator,
    id: CollectiveId,
    wire: GgmlType,
    parts: &mut [GatherRows<'_>],
) -> Result<(), RankFailure> {
    let mut mine = Vec::with_capacity(parts.iter().map(|p| p.x.len()).sum());
    for part in parts.iter() {
        match part.is_f32 && wire != GgmlType::F32 {
            true => mine.extend_from_slice(bytemuck::cast_slice(&round(
                wire,
                bytemuck::cast_slice(part.x),
            ))),
            false => mine.extend_from_slice(part.x),
        }
    }
    ranks.exchange(id, &mine, &mut |rank, words| {
        let mut rest = words;
        for part in parts.iter_mut() {
            let (start, width) = (part.widths[..rank].iter().sum(), part.widths[rank]);
            let whole: usize = part.widths.iter().sum();
            let rows = part.out.len().checked_div(whole).unwrap_or(0);
            let (own, others) = rest.split_at(rows * width);
            rest = others;
            if width == 0 {
                continue;
            }
            for (row, own) in part
                .out
                .chunks_exact_mut(whole)
                .zip(own.chunks_exact(width))
            {
                row[start..start + width].copy_from_slice(own);
            }
        }
    })
}

/// To `wire` and back.
fn round(wire: GgmlType, x: &[f32]) -> Vec<f32> {
    let through = |bytes: &mut Vec<u8>, values: &mut Vec<f32>| -> Result<(), QuantError> {
        quantize(wire, x, bytes)?;
        dequantize(wire, bytes, values)
    };
    let mut bytes = vec![0; wire.row_bytes(x.len()).unwrap_or(0)];
    let mut values = vec![0.0; x.len()];
    // `check` lets floats through only, which hold any number of elements.
    if let Err(error) = through(&mut bytes, &mut values) {
        panic!("{wire} is no type for a wire: {error}");
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rank among others who bring what stands here.
    #[derive(Debug)]
    struct Scripted {
        rank: usize,
        all: Vec<Vec<u32>>,
    }

    impl Communicator for Scripted {
        fn rank(&self) -> usize {
            self.rank
        }

        fn world_size(&self) -> usize {
            self.all.len()
        }

        fn begin(&self, _op: usize) {}

        fn exchange(
            &self,
            _id: CollectiveId,
            mine: &[u32],
            each: &mut dyn FnMut(usize, &[u32]),
        ) -> Result<(), RankFailure> {
            assert_eq!(mine, self.all[self.rank], "what rank {} brings", self.rank);
            self.all
                .iter()
                .enumerate()
                .for_each(|(rank, words)| each(rank, words));
            Ok(())
        }
    }

    fn words(values: &[f32]) -> Vec<u32> {
        bytemuck::cast_slice(values).to_vec()
    }

    #[test]
    fn sums_are_taken_in_the_order_of_ranks() {
        // (1e8 + 1) - 1e8 is 0 in f32; in any other order of these three it is 1.
        let all = vec![words(&[1e8, 2.0]), words(&[1.0, 0.5]), words(&[-1e8, 0.25])];
        for rank in 0..3 {
            let x: &[f32] = bytemuck::cast_slice(&all[rank]);
            let (x, mut out) = (x.to_vec(), [9.0; 2]);
            let ranks = Scripted {
                rank,
                all: all.clone(),
            };
            let done = all_reduce(&ranks, CollectiveId(0), GgmlType::F32, &x, &mut out);
            assert_eq!((done, out), (Ok(()), [0.0, 2.75]));
        }
    }

    #[test]
    fn a_narrow_wire_rounds_what_a_rank_brings_also_for_itself() {
        // bf16 keeps 8 bits: 1 + 1/256 lies half-way and goes to the even neighbour, 1.
        let ranks = Scripted {
            rank: 0,
            all: vec![words(&[1.0, 3.0]), words(&[0.5, 0.5])],
        };
        let mut out = [0.0; 2];
        let x = [1.0 + 1.0 / 256.0, 3.0];
        let done = all_reduce(&ranks, CollectiveId(0), GgmlType::BF16, &x, &mut out);
        assert_eq!((done, out), (Ok(()), [1.5, 3.5]));
    }

    #[test]
    fn gathered_rows_stand_side_by_side_whatever_each_rank_brings() {
        // Two rows; rank 0 brings one word of the first buffer and two of the second, rank 1 two and none, rank 2 one and one.
        let brought = [
            ([10, 20].as_slice(), [1, 2, 3, 4].as_slice()),
            (&[11, 12, 21, 22], &[]),
            (&[13, 23], &[5, 6]),
        ];
        let all: Vec<Vec<u32>> = brought.iter().map(|(a, b)| [*a, *b].concat()).collect();
        for (rank, (a, b)) in brought.iter().enumerate() {
            let (mut first, mut second) = ([0; 8], [0; 6]);
            let mut parts = [
                GatherRows {
                    x: a,
                    out: &mut first,
                    widths: vec![1, 2, 1],
                    is_f32: false,
                },
                GatherRows {
                    x: b,
                    out: &mut second,
                    widths: vec![2, 0, 1],
                    is_f32: false,
                },
            ];
            let ranks = Scripted {
                rank,
                all: all.clone(),
            };
            let done = all_gather(&ranks, CollectiveId(0), GgmlType::F32, &mut parts);
            assert_eq!(done, Ok(()));
            assert_eq!(first, [10, 11, 12, 13, 20, 21, 22, 23]);
            assert_eq!(second, [1, 2, 5, 3, 4, 6]);
        }
    }
}
