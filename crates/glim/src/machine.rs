//! What the machine can do at most, measured in the run that is held against it.

use glim_cpu::{Pool, machine};
use glim_engine::bench::Size;
use glim_plan::Cost;

use crate::exit::Failure;
use crate::gpu;
use crate::placement::Setup;
use crate::ui::Ui;

/// Limits of one rank while all of them work.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Machine {
    /// Bytes a second.
    pub(crate) read_bandwidth: f64,
    /// F32 operations a second, where they are measured: on the CPU.
    pub(crate) peak_flops: Option<f64>,
}

impl Machine {
    /// Measures what all ranks together have: on the CPU they share it, on GPUs those that share one.
    pub(crate) fn measure(setup: &Setup, ui: &Ui) -> Result<Self, Failure> {
        ui.detail(|| "measuring the machine".to_owned());
        if let Some(gpus) = &setup.gpus {
            let mut seen = Vec::new();
            let mut read_bandwidth = 0.0;
            for gpu in &gpus.of_ranks {
                if !seen.contains(&gpu.ordinal) {
                    seen.push(gpu.ordinal);
                    read_bandwidth += gpu::read_bandwidth(gpu)?;
                }
            }
            return Ok(Self {
                read_bandwidth,
                peak_flops: None,
            });
        }
        let mut pool = Pool::new(setup.threads());
        Ok(Self {
            read_bandwidth: machine::read_bandwidth(&mut pool),
            peak_flops: Some(machine::peak_flops(&mut pool)),
        })
    }

    /// One rank's share.
    pub(crate) fn of_rank(self, ranks: usize) -> Self {
        let ranks = ranks as f64;
        Self {
            read_bandwidth: self.read_bandwidth / ranks,
            peak_flops: self.peak_flops.map(|peak| peak / ranks),
        }
    }

    /// What a step did of the arithmetic that the machine could have done in its time.
    pub(crate) fn flops_ratio(self, flops: f64, seconds: f64) -> Option<f64> {
        self.peak_flops.map(|peak| flops / seconds / peak)
    }

    /// Shortest time that a part of a step can take, in seconds. A decode step waits for memory; in prefill, a weight serves many
    /// rows, so that arithmetic can be what takes longest.
    pub(crate) fn roofline(self, size: Size, cost: &Cost) -> f64 {
        let read = read_bytes(cost) / self.read_bandwidth;
        match size {
            Size::Decode { .. } => read,
            Size::Prefill { .. } => read.max(self.peak_flops.map_or(0.0, |peak| cost.flops / peak)),
        }
    }
}

/// Bytes that must come from memory at least: weights, and cached rows.
pub(crate) fn read_bytes(cost: &Cost) -> f64 {
    cost.weight_bytes + cost.state_bytes
}
