//! Where and how a model runs: the options that choose a backend.
//!
//! What this build cannot do is refused by name, before any file is opened.

use std::str::FromStr;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};
use glim_cpu::CpuOptions;
use glim_model::shard::MAX_WORLD_SIZE;

use crate::exit::{Exit, Failure};

/// Most threads that can be asked for.
const MAX_THREADS: u64 = 1024;
/// How long a rank waits for another if nothing else is asked for.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(30);
/// Longest wait for a rank that can be asked for, in seconds.
const MAX_RANK_TIMEOUT: u64 = 3600;

/// Options of the commands that run a model.
#[derive(Debug, Args)]
pub(crate) struct Placement {
    /// Where to run: auto, cpu, cuda, or cuda:0,2 for these GPUs
    #[arg(
        long,
        value_name = "DEVICE",
        default_value = "auto",
        help_heading = "Where it runs"
    )]
    device: Device,
    /// Arithmetic: fast (8-bit activations, integer products) or exact (f32 throughout) [default: fast; eval --check: exact]
    #[arg(
        long,
        value_name = "MATH",
        hide_possible_values = true,
        help_heading = "Where it runs"
    )]
    math: Option<Math>,
    /// Threads of the CPU [default: as many as the process may use]
    #[arg(
        long,
        value_name = "N",
        value_parser = RangedU64ValueParser::<usize>::new().range(1..=MAX_THREADS),
        help_heading = "Where it runs"
    )]
    threads: Option<usize>,
    /// Ranks to split the model over, each with its part of every large weight
    #[arg(
        long,
        value_name = "RANKS",
        default_value_t = 1,
        value_parser = RangedU64ValueParser::<usize>::new().range(1..=MAX_WORLD_SIZE as u64),
        help_heading = "Where it runs"
    )]
    tp: usize,
    /// With --tp: compute the small latents whole on each rank, or by rows and gather them; auto: what costs less
    #[arg(
        long,
        value_name = "HOW",
        default_value = "auto",
        hide_possible_values = true,
        help_heading = "Where it runs"
    )]
    tp_latents: LatentsChoice,
    /// With --tp: how long a rank waits for another before all stop with an error
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = DEFAULT_DEADLINE.as_secs(),
        value_parser = RangedU64ValueParser::<u64>::new().range(1..=MAX_RANK_TIMEOUT),
        help_heading = "Where it runs"
    )]
    rank_timeout: u64,
    /// Fill every buffer with NaN before it is written, and stop at the first operation that leaves some
    #[arg(long, help_heading = "Where it runs")]
    poison: bool,
}

/// A device, as the user names it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Device {
    Auto,
    Cpu,
    /// `cuda`, or `cuda:` and a list of ordinals.
    Cuda,
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_list = |list: &str| list.split(',').all(|n| n.parse::<u32>().is_ok());
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda),
            _ if text.strip_prefix("cuda:").is_some_and(is_list) => Ok(Self::Cuda),
            _ => Err("expected auto, cpu, cuda, or cuda:0,2".to_owned()),
        }
    }
}

/// Arithmetic, as the user names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Math {
    Exact,
    Fast,
}

/// Where the latents are computed, as the user names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LatentsChoice {
    Auto,
    Whole,
    Rows,
}

/// How a model is run: what [`crate::loader::engine`] needs to make the ranks.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    /// Of each rank, but for its place among the others.
    pub(crate) cpu: CpuOptions,
    pub(crate) world_size: usize,
    pub(crate) latents: LatentsChoice,
    pub(crate) deadline: Duration,
}

impl Setup {
    /// One rank.
    pub(crate) fn alone(cpu: CpuOptions) -> Self {
        Self {
            cpu,
            world_size: 1,
            latents: LatentsChoice::Auto,
            deadline: DEFAULT_DEADLINE,
        }
    }

    /// Threads of all ranks together.
    pub(crate) fn threads(&self) -> usize {
        let available = || std::thread::available_parallelism().map_or(1, usize::from);
        self.cpu.threads.unwrap_or_else(available)
    }
}

impl Placement {
    /// Refuses what this build cannot do.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.device == Device::Cuda {
            return Err(Failure::new(
                Exit::Unavailable,
                "--device cuda: this build has no CUDA backend yet",
            )
            .hint("use --device cpu, or leave --device out"));
        }
        Ok(())
    }

    /// How the model shall run; `default` where the user does not say in which arithmetic.
    pub(crate) fn setup(&self, default: Math) -> Setup {
        let cpu = CpuOptions {
            math: match self.math.unwrap_or(default) {
                Math::Exact => glim_cpu::Math::Exact,
                Math::Fast => glim_cpu::Math::Fast,
            },
            threads: self.threads,
            poison: self.poison,
            ..CpuOptions::default()
        };
        Setup {
            cpu,
            world_size: self.tp,
            latents: self.tp_latents,
            deadline: Duration::from_secs(self.rank_timeout),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_as_the_manual_says() {
        assert_eq!("cuda:0,2".parse(), Ok(Device::Cuda));
        assert_eq!("auto".parse(), Ok(Device::Auto));
        for wrong in ["gpu", "cuda:", "cuda:a", "CPU", ""] {
            assert!(wrong.parse::<Device>().is_err(), "{wrong}");
        }
    }
}
