//! Where the time of a step goes, operation by operation.
//!
//! Medians of operations do not add up to the median of steps: a machine that does other work delays another operation in each run,
//! and the medians drop all of that. So the runs are chosen first, those of the middle half by length, and every time is the mean over
//! these: then operations and gaps add up to the step.

use glim_plan::{Cost, Profile, op_cost};

use super::{Size, times, with_batch};
use crate::engine::Engine;
use crate::error::EngineError;

/// A step, taken apart. Times are in seconds, each the mean over the runs of the middle half by length.
#[derive(Debug, Clone, PartialEq)]
pub struct Explained {
    /// What the step did.
    pub size: Size,
    /// Rank 0's operations, in order.
    pub ops: Vec<ExplainedOp>,
    /// The step of rank 0 while it was watched, by a measurement apart from that of the operations.
    pub step: f64,
    /// The step as generation runs it, unwatched and seen from the host: where it is launched ahead, from the end of the step in front of it
    /// to its own.
    pub unwatched: f64,
    /// For each rank, the run whose length is the median.
    pub profiles: Vec<Profile>,
}

/// One operation.
#[derive(Debug, Clone, PartialEq)]
pub struct ExplainedOp {
    /// Its name in the model.
    pub label: String,
    /// Kind of operation.
    pub kind: &'static str,
    /// Whether it waits for other ranks.
    pub is_collective: bool,
    /// How long it took.
    pub seconds: f64,
    /// How long nothing ran before it.
    pub gap: f64,
    /// What it must move and do, on this rank.
    pub cost: Cost,
}

impl Explained {
    /// Time of all operations and of the gaps before them, as a share of the step's own.
    pub fn accounted(&self) -> f64 {
        let sum: f64 = self.ops.iter().map(|op| op.seconds + op.gap).sum();
        sum / self.step
    }

    /// Time of the operations in which ranks meet, as a share of the step. It includes the wait for the slowest rank.
    pub fn collective_share(&self) -> f64 {
        let collectives = self.ops.iter().filter(|op| op.is_collective);
        collectives.map(|op| op.seconds).fold(0.0, |sum, s| sum + s) / self.step
    }
}

/// Runs a step of this size `repeats` times unwatched, and as often watched.
///
/// # Errors
/// If the engine has no room for it, the step fails, or the backend cannot time operations.
pub fn explain(engine: &mut Engine, size: Size, repeats: usize) -> Result<Explained, EngineError> {
    let (kind, unwatched, mut ranks) = with_batch(engine, size, |engine, kind, batch| {
        let unwatched = times(engine, kind, batch, repeats)?;
        // The first watched run may have to make room for stamps.
        let mut ranks = engine.profile_batch(kind, batch, repeats + 1)?;
        ranks
            .iter_mut()
            .for_each(|profiles| drop(profiles.remove(0)));
        Ok((kind, unwatched, ranks))
    })?;
    let plan = &engine.step_of(kind)?.plan;
    for profiles in &mut ranks {
        profiles.sort_by_key(|run| run.step_ns);
    }
    let own = ranks.first().map_or(&[][..], |runs| middle_half(runs));
    let load = size.load();
    let gaps: Vec<Vec<u64>> = own.iter().map(|run| run.gaps().collect()).collect();
    let op = |(i, node): (usize, &glim_plan::OpNode)| ExplainedOp {
        label: node.label.clone(),
        kind: node.op.kind(),
        is_collective: node
            .op
            .parts()
            .iter()
            .any(|part| part.collective().is_some()),
        seconds: mean(own.iter().filter_map(|run| Some(run.ops.get(i)?.ns()))),
        gap: mean(gaps.iter().filter_map(|run| run.get(i).copied())),
        cost: op_cost(plan, &node.op, &load),
    };
    let ops = plan.ops.iter().enumerate().map(op).collect();
    let step = mean(own.iter().map(|run| run.step_ns));
    let mut unwatched = unwatched;
    unwatched.sort_unstable();
    let unwatched = mean(
        middle_half(&unwatched)
            .iter()
            .map(|time| time.as_nanos() as u64),
    );
    let middle = |mut profiles: Vec<Profile>| match profiles.len() {
        0 => Profile::default(),
        n => profiles.swap_remove(n / 2),
    };
    Ok(Explained {
        size,
        ops,
        step,
        unwatched,
        profiles: ranks.into_iter().map(middle).collect(),
    })
}

/// Of what is in order, the middle half: at least one, if there is one.
fn middle_half<T>(sorted: &[T]) -> &[T] {
    let quarter = sorted.len().saturating_sub(1) / 4;
    &sorted[quarter..sorted.len() - quarter]
}

/// The mean of times in nanoseconds, in seconds; 0 of none.
fn mean(nanos: impl Iterator<Item = u64>) -> f64 {
    let (sum, n) = nanos.fold((0u64, 0u32), |(sum, n), ns| (sum + ns, n + 1));
    sum as f64 / 1e9 / f64::from(n.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_half_leaves_out_as_many_at_each_end() {
        let middle = |n: usize| {
            let all: Vec<usize> = (0..n).collect();
            middle_half(&all).to_vec()
        };
        assert_eq!(middle(0), [0usize; 0]);
        assert_eq!(middle(1), [0]);
        assert_eq!(middle(4), [0, 1, 2, 3]);
        assert_eq!(middle(5), [1, 2, 3]);
        assert_eq!(middle(20).len(), 12);
    }
}
