//! Where and how a model runs: the options that choose a backend.
//!
//! What this build cannot do is refused by name, before any file is opened.

use std::str::FromStr;

use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};
use glim_cpu::CpuOptions;

use crate::exit::{Exit, Failure};

/// Most threads that can be asked for.
const MAX_THREADS: u64 = 1024;

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
    /// Ranks to split the model over; only 1 in this build
    #[arg(
        long,
        value_name = "RANKS",
        default_value_t = 1,
        help_heading = "Where it runs"
    )]
    tp: usize,
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
        if self.tp != 1 {
            return Err(Failure::usage(format!(
                "--tp {}: this build runs a model on one rank only",
                self.tp
            ))
            .hint("leave --tp out"));
        }
        Ok(())
    }

    /// How the CPU shall compute; `default` where the user does not say in which arithmetic.
    pub(crate) fn cpu(&self, default: Math) -> CpuOptions {
        CpuOptions {
            math: match self.math.unwrap_or(default) {
                Math::Exact => glim_cpu::Math::Exact,
                Math::Fast => glim_cpu::Math::Fast,
            },
            threads: self.threads,
            poison: self.poison,
            ..CpuOptions::default()
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
