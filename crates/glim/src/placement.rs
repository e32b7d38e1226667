//! Where and how a model runs: the options that choose a backend.
//!
//! What is not there is refused by name, before any file is opened. Where the user leaves the device open (`auto`), whatever keeps the
//! model off a GPU is a reason that is told in a line, and no failure.

use std::str::FromStr;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};
use glim_cpu::CpuOptions;
use glim_model::shard::MAX_WORLD_SIZE;

use crate::exit::{Exit, Failure};
use crate::gpu::{self, Found, Gpus};

/// Most threads that can be asked for.
const MAX_THREADS: u64 = 1024;
/// How long a rank waits for another if nothing else is asked for.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(30);
/// Longest wait for a rank that can be asked for, in seconds.
const MAX_RANK_TIMEOUT: u64 = 3600;

/// What we may take of a GPU's free memory: the rest is for kernels, graphs, scratch, and what the driver takes for itself.
pub(crate) fn usable(free: u64) -> u64 {
    free / 100 * 95
}

/// Options of the commands that run a model.
#[derive(Debug, Args)]
pub(crate) struct Placement {
    #[command(flatten)]
    device: DeviceArgs,
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
    /// Ranks to split the model over, each with its part of every large weight [default: 1; with several GPUs named, one on each]
    #[arg(
        long,
        value_name = "RANKS",
        value_parser = RangedU64ValueParser::<usize>::new().range(1..=MAX_WORLD_SIZE as u64),
        help_heading = "Where it runs"
    )]
    tp: Option<usize>,
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
}

/// The device, and how it is watched; also of `verify`, which asks for ranks in its own way.
#[derive(Debug, Args)]
pub(crate) struct DeviceArgs {
    /// Where to run: auto, cpu, cuda, or cuda:0,2 for these GPUs
    #[arg(
        long,
        value_name = "DEVICE",
        default_value = "auto",
        help_heading = "Where it runs"
    )]
    device: Device,
    /// Fill every buffer with NaN before it is written, and stop at the first operation that leaves some
    #[arg(long, help_heading = "Where it runs")]
    poison: bool,
    /// On GPUs: replay each step as a graph (on), or launch its kernels one by one (off)
    #[arg(
        long,
        value_name = "WHETHER",
        default_value = "on",
        hide_possible_values = true,
        help_heading = "Where it runs"
    )]
    graphs: Switch,
    /// On GPUs: wait after each operation, so that a failure names the one that failed
    #[arg(long, help_heading = "Where it runs")]
    sync_launches: bool,
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

/// A device, as the user names it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Device {
    Auto,
    Cpu,
    /// `cuda`, or `cuda:` and a list of ordinals.
    Cuda(Option<Vec<usize>>),
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let list = |list: &str| -> Option<Vec<usize>> {
            let ordinals = list.split(',').map(|n| n.parse::<u16>().ok());
            ordinals.map(|n| n.map(usize::from)).collect()
        };
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(None)),
            _ => match text.strip_prefix("cuda:").and_then(list) {
                Some(ordinals) => Ok(Self::Cuda(Some(ordinals))),
                None => Err("expected auto, cpu, cuda, or cuda:0,2".to_owned()),
            },
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
    /// Arithmetic, threads and poison; of each rank that runs on the CPU, but for its place among the others.
    pub(crate) cpu: CpuOptions,
    /// `None`: on the CPU.
    pub(crate) gpus: Option<Gpus>,
    /// Why the CPU was chosen, if the user left that open.
    pub(crate) why_cpu: Option<String>,
    pub(crate) world_size: usize,
    pub(crate) latents: LatentsChoice,
    pub(crate) deadline: Duration,
    /// One rank by itself.
    pub(crate) lone: Option<Lone>,
}

/// One rank of several, measured without the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lone {
    pub(crate) rank: usize,
    /// What each collective takes; `None`: nothing.
    pub(crate) latency: Option<Duration>,
}

impl Setup {
    /// Threads of all ranks together.
    pub(crate) fn threads(&self) -> usize {
        let available = || std::thread::available_parallelism().map_or(1, usize::from);
        self.cpu.threads.unwrap_or_else(available)
    }

    /// Ranks that run here.
    pub(crate) fn ranks(&self) -> usize {
        match self.lone {
            Some(_) => 1,
            None => self.world_size,
        }
    }

    /// What each rank may take of its GPU's memory; `None` on the CPU.
    ///
    /// # Errors
    /// If a GPU cannot be opened.
    pub(crate) fn free_memory(&self) -> Result<Option<u64>, Failure> {
        let Some(Gpus { of_ranks: gpus, .. }) = &self.gpus else {
            return Ok(None);
        };
        let sharing = |gpu: &Found| gpus.iter().filter(|g| g.ordinal == gpu.ordinal).count();
        let share = |gpu| Ok(gpu::free_memory(gpu)? / sharing(gpu) as u64);
        let shares = gpus
            .iter()
            .map(share)
            .collect::<Result<Vec<_>, Failure>>()?;
        Ok(shares.into_iter().min().map(usable))
    }

    /// On the CPU after all, and why.
    pub(crate) fn on_cpu(self, why: String) -> Self {
        Self {
            gpus: None,
            why_cpu: Some(why),
            ..self
        }
    }
}

impl Placement {
    /// How the model shall run; `default` where the user does not say in which arithmetic. GPUs are looked for, if they are asked for or
    /// it is left open.
    ///
    /// # Errors
    /// If the GPUs that are asked for are not there, or are not as many as the ranks.
    pub(crate) fn setup(&self, default: Math) -> Result<Setup, Failure> {
        self.place(default, self.tp, None)
    }

    /// The same for one rank of so many, by itself.
    pub(crate) fn lone(
        &self,
        default: Math,
        world_size: usize,
        lone: Lone,
    ) -> Result<Setup, Failure> {
        if self.tp.is_some() {
            return Err(Failure::usage(
                "--rank says how many ranks there are: leave --tp out",
            ));
        }
        self.place(default, Some(world_size), Some(lone))
    }

    fn place(
        &self,
        default: Math,
        tp: Option<usize>,
        lone: Option<Lone>,
    ) -> Result<Setup, Failure> {
        let wanted = Wanted {
            math: self.math.unwrap_or(default),
            threads: self.threads,
            tp,
            latents: self.tp_latents,
            deadline: Duration::from_secs(self.rank_timeout),
            lone,
        };
        self.device.place(wanted)
    }
}

/// How a model shall run, but for the device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) math: Math,
    pub(crate) threads: Option<usize>,
    pub(crate) tp: Option<usize>,
    pub(crate) latents: LatentsChoice,
    pub(crate) deadline: Duration,
    pub(crate) lone: Option<Lone>,
}

impl Wanted {
    /// On so many ranks, all else as it is by default.
    pub(crate) fn on_ranks(math: Math, threads: Option<usize>, ranks: usize) -> Self {
        Self {
            math,
            threads,
            tp: Some(ranks),
            latents: LatentsChoice::Auto,
            deadline: DEFAULT_DEADLINE,
            lone: None,
        }
    }
}

impl DeviceArgs {
    /// See [`Placement::setup`].
    pub(crate) fn place(&self, wanted: Wanted) -> Result<Setup, Failure> {
        let lone = wanted.lone;
        let named = match &self.device {
            Device::Cuda(Some(ordinals)) if lone.is_none() => ordinals.len(),
            _ => 1,
        };
        let cpu = CpuOptions {
            math: match wanted.math {
                Math::Exact => glim_cpu::Math::Exact,
                Math::Fast => glim_cpu::Math::Fast,
            },
            threads: wanted.threads,
            poison: self.poison,
            ..CpuOptions::default()
        };
        let setup = Setup {
            cpu,
            gpus: None,
            why_cpu: None,
            world_size: wanted.tp.unwrap_or(named),
            latents: wanted.latents,
            deadline: wanted.deadline,
            lone,
        };
        let gpus = |found, is_choice| Gpus {
            of_ranks: found,
            is_choice,
            insists: false,
            graphs: self.graphs == Switch::On,
            sync_launches: self.sync_launches,
        };
        let ranks = setup.ranks();
        match &self.device {
            Device::Cpu => Ok(setup),
            Device::Auto => Ok(match gpu::find() {
                Ok(found) if found.len() >= ranks => Setup {
                    gpus: Some(gpus(found[..ranks].to_vec(), true)),
                    ..setup
                },
                Ok(found) => {
                    let n = found.len();
                    setup.on_cpu(format!(
                        "there are {ranks} ranks and {n} GPUs (see --device)"
                    ))
                }
                Err(absent) => setup.on_cpu(absent.reason),
            }),
            Device::Cuda(named) => {
                let found = gpu::find().map_err(|absent| {
                    let message = format!("--device cuda: {}", absent.reason);
                    Failure::new(Exit::Unavailable, message).hint(absent.hint)
                })?;
                let of_ranks = choose(&found, named.as_deref(), ranks)?;
                Ok(Setup {
                    gpus: Some(gpus(of_ranks, false)),
                    ..setup
                })
            }
        }
    }
}

/// The GPU of each rank, of those that were found: one for all ranks if one is named, else one each.
fn choose(found: &[Found], named: Option<&[usize]>, ranks: usize) -> Result<Vec<Found>, Failure> {
    let Some(named) = named else {
        return match found.get(..ranks) {
            Some(found) => Ok(found.to_vec()),
            None => Err(Failure::new(
                Exit::Unavailable,
                format!(
                    "--device cuda: {ranks} ranks want a GPU each, and there are {}",
                    found.len()
                ),
            )
            .hint("lower --tp, or name one GPU for all ranks: --device cuda:0")),
        };
    };
    let one = |ordinal: &usize| {
        let gpu = found.iter().find(|gpu| gpu.ordinal == *ordinal).cloned();
        gpu.ok_or_else(|| {
            let usable = found.iter().map(|gpu| gpu.ordinal.to_string());
            let usable = usable.collect::<Vec<_>>().join(", ");
            let message =
                format!("--device: there is no GPU {ordinal} that can be used; there is {usable}");
            Failure::new(Exit::Unavailable, message)
        })
    };
    let named = named.iter().map(one).collect::<Result<Vec<_>, _>>()?;
    match named.len() {
        1 => Ok(vec![named[0].clone(); ranks]),
        n if n == ranks => Ok(named),
        n => Err(Failure::usage(format!(
            "--device names {n} GPUs, and --tp {ranks} ranks: name one for each, or one for all"
        ))),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_as_the_manual_says() {
        assert_eq!("cuda:0,2".parse(), Ok(Device::Cuda(Some(vec![0, 2]))));
        assert_eq!("cuda".parse(), Ok(Device::Cuda(None)));
        assert_eq!("auto".parse(), Ok(Device::Auto));
        for wrong in ["gpu", "cuda:", "cuda:a", "CPU", ""] {
            assert!(wrong.parse::<Device>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn ranks_get_a_gpu_each_or_share_the_one_that_is_named() {
        let found: Vec<Found> = [0, 2, 3]
            .map(|ordinal| Found {
                ordinal,
                name: "A".into(),
                bus_id: String::new(),
                memory: 2,
            })
            .into();
        let chosen = |named: Option<&[usize]>, ranks| {
            let gpus = choose(&found, named, ranks);
            gpus.map(|gpus| gpus.iter().map(|gpu| gpu.ordinal).collect::<Vec<_>>())
        };
        assert_eq!(chosen(None, 2).unwrap(), [0, 2]);
        assert_eq!(chosen(Some(&[2]), 3).unwrap(), [2, 2, 2]);
        assert_eq!(chosen(Some(&[3, 0]), 2).unwrap(), [3, 0]);
        let code = |failure: Result<_, Failure>| failure.unwrap_err().exit().code();
        assert_eq!(code(chosen(None, 4)), 69);
        assert_eq!(code(chosen(Some(&[1]), 1)), 69);
        assert_eq!(code(chosen(Some(&[0, 2]), 3)), 64);
    }
}
