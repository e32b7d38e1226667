//! What the machine can do at most, measured in the run that is held against it.

use glim_cpu::{Pool, machine};
use glim_engine::bench::Size;
use glim_plan::Cost;

use crate::placement::Setup;
use crate::ui::Ui;

/// Limits of one rank while all of them work.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Machine {
    /// Bytes a second.
    pub(crate) read_bandwidth: f64,
    /// F32 operations a second.
    pub(crate) peak_flops: f64,
}

impl Machine {
    /// Measures what all ranks together have.
    pub(crate) fn measure(setup: &Setup, ui: &Ui) -> Self {
        ui.detail(|| "measuring the machine".to_owned());
        let mut pool = Pool::new(setup.threads());
        Self {
            read_bandwidth: machine::read_bandwidth(&mut pool),
            peak_flops: machine::peak_flops(&mut pool),
        }
    }

    /// One rank's share.
    pub(crate) fn of_rank(self, world_size: usize) -> Self {
        let ranks = world_size as f64;
        Self {
            read_bandwidth: self.read_bandwidth / ranks,
            peak_flops: self.peak_flops / ranks,
        }
    }

    /// Shortest time that a part of a step can take, in seconds. A decode step waits for memory; in prefill, a weight serves many
    /// rows, so that arithmetic can be what takes longest.
    pub(crate) fn roofline(self, size: Size, cost: &Cost) -> f64 {
        let read = read_bytes(cost) / self.read_bandwidth;
        match size {
            Size::Decode { .. } => read,
            Size::Prefill { .. } => read.max(cost.flops / self.peak_flops),
        }
    }
}

/// Bytes that must come from memory at least: weights, and cached rows.
pub(crate) fn read_bytes(cost: &Cost) -> f64 {
    cost.weight_bytes + cost.state_bytes
}
