//! Where and how a model runs: the options that choose a backend.
//!
//! What this build cannot do is refused by name, before any file is opened.

use std::str::FromStr;

use clap::{Args, ValueEnum};

use crate::exit::{Exit, Failure};

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
    /// Arithmetic: exact (f32 throughout), or fast (not available yet)
    #[arg(
        long,
        value_name = "MATH",
        default_value = "exact",
        hide_possible_values = true,
        help_heading = "Where it runs"
    )]
    math: Math,
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
    pub(crate) poison: bool,
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Math {
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
        if self.math == Math::Fast {
            return Err(Failure::usage(
                "--math fast is not available yet: this build computes in exact math only",
            )
            .hint("use --math exact, or leave --math out"));
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
