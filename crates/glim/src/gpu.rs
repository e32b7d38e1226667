//! What the binary knows of GPUs. Built without the feature `cuda`, it knows that there are none.
//!
//! Where compiled kernels are kept: `GLIM_CUDA_CACHE`, or `glim/kernels` in the user's cache folder; kernels that come with the
//! program lie in the folder `kernels` beside it. `GLIM_CUDA_LIBRARIES` names a folder that driver and compiler are looked for in
//! first. `GLIM_CUDA_APART` gives each buffer an allocation of its own.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use glim_doctor::probe::Measured;
use glim_plan::Backend;
use glim_plan::collective::Group;

use crate::exit::{Exit, Failure};

/// A GPU that can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) ordinal: usize,
    pub(crate) name: String,
    /// `domain:bus:device.function`: the same in every process, whatever it calls visible.
    pub(crate) bus_id: String,
    /// Bytes of memory, whoever holds them.
    pub(crate) memory: u64,
}

/// Why there is no GPU to use, and what can be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Absent {
    pub(crate) reason: String,
    pub(crate) hint: &'static str,
}

/// The GPUs of the ranks, and how they run.
#[derive(Debug, Clone)]
pub(crate) struct Gpus {
    /// For each rank.
    pub(crate) of_ranks: Vec<Found>,
    /// Whether the user may be served by the CPU instead.
    pub(crate) is_choice: bool,
    /// Whether it is no reason for that if others hold the memory, or a GPU cannot be opened: a service fails rather than be slow.
    pub(crate) insists: bool,
    pub(crate) graphs: bool,
    pub(crate) sync_launches: bool,
}

/// What the ranks' backends have in common.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ranks {
    pub(crate) exact: bool,
    pub(crate) poison: bool,
    pub(crate) deadline: Duration,
    /// One rank of so many by itself: its number, theirs, and what a collective takes.
    pub(crate) lone: Option<(usize, usize, Option<Duration>)>,
}

/// One backend for each rank, and where they meet.
pub(crate) type Backends = (Vec<Box<dyn Backend>>, Option<Arc<dyn Group>>);

/// Where things of CUDA lie, or would.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// Folders of libraries that the user named.
    pub(crate) preferred: Vec<PathBuf>,
    /// Folders of libraries that are looked into besides.
    pub(crate) libraries: Vec<PathBuf>,
    /// Where compiled kernels are kept.
    pub(crate) kernels: Option<PathBuf>,
    /// Kernels that came with the program.
    pub(crate) prebuilt: Option<PathBuf>,
}

const CPU_HINT: &str = "use --device cpu, or leave --device out";

#[cfg(not(feature = "cuda"))]
mod backend {
    use super::*;

    pub(crate) fn find() -> Result<Vec<Found>, Absent> {
        Err(Absent {
            reason: "this glim was built without the feature cuda".into(),
            hint: CPU_HINT,
        })
    }

    pub(crate) fn backends(_gpus: &Gpus, _ranks: Ranks) -> Result<Backends, Failure> {
        Err(absent())
    }

    pub(crate) fn read_bandwidth(_gpu: &Found) -> Result<f64, Failure> {
        Err(absent())
    }

    pub(crate) fn free_memory(_gpu: &Found) -> Result<u64, Failure> {
        Err(absent())
    }

    pub(crate) fn places() -> Places {
        Places::default()
    }

    pub(crate) fn probe_pair(_from: usize, _to: usize) -> Result<Measured, Failure> {
        Err(absent())
    }

    fn absent() -> Failure {
        Failure::new(
            Exit::Unavailable,
            "this glim was built without the feature cuda",
        )
    }
}

#[cfg(feature = "cuda")]
mod backend {
    use glim_cuda::cache::Cache;
    use glim_cuda::{
        CudaBackend, CudaError, CudaOptions, GpuGroup, Math, Place, ProbeError, Transport,
    };

    use super::*;

    /// The GPUs that the driver shows.
    pub(crate) fn find() -> Result<Vec<Found>, Absent> {
        if let Some(folder) = std::env::var_os("GLIM_CUDA_LIBRARIES") {
            glim_cuda::libraries::preload(&PathBuf::from(folder));
        }
        let gpus = glim_cuda::probe().map_err(Absent::from)?;
        let cache = cache();
        let holds_some = |folder: &Option<PathBuf>| {
            let entries = folder.as_ref().and_then(|folder| folder.read_dir().ok());
            entries.is_some_and(|mut entries| entries.next().is_some())
        };
        if !holds_some(&cache.folder) && !holds_some(&cache.prebuilt) {
            glim_cuda::probe::compiler().map_err(Absent::from)?;
        }
        let found = |gpu: glim_cuda::GpuFacts| Found {
            ordinal: gpu.ordinal,
            name: gpu.name,
            bus_id: gpu.bus_id,
            memory: gpu.memory as u64,
        };
        Ok(gpus.into_iter().map(found).collect())
    }

    impl From<ProbeError> for Absent {
        fn from(error: ProbeError) -> Self {
            let hint = match error {
                ProbeError::NoDriver => {
                    "install the NVIDIA driver, or give the container access to it (--gpus all), or use --device cpu"
                }
                ProbeError::NoGpu { .. } => {
                    "see what nvidia-smi says, and CUDA_VISIBLE_DEVICES, or use --device cpu"
                }
                ProbeError::OldDriver { .. } => "update the driver, or use --device cpu",
                ProbeError::NoCompiler => {
                    "install it; GLIM_CUDA_LIBRARIES names its folder if it is in an unusual place; or use --device cpu"
                }
                _ => CPU_HINT,
            };
            Self {
                reason: error.to_string(),
                hint,
            }
        }
    }

    fn cache() -> Cache {
        let folder = |name| {
            std::env::var_os(name)
                .filter(|v| !v.is_empty())
                .map(PathBuf::from)
        };
        let own = folder("GLIM_CUDA_CACHE");
        let user = || folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")));
        let beside = std::env::current_exe().ok();
        let beside = beside.and_then(|path| Some(path.parent()?.join("kernels")));
        Cache {
            folder: own.or_else(|| Some(user()?.join("glim/kernels"))),
            prebuilt: beside.filter(|folder| folder.is_dir()),
        }
    }

    fn failed(error: CudaError) -> Failure {
        Failure::new(Exit::Unavailable, error.to_string()).hint(CPU_HINT)
    }

    pub(crate) fn backends(gpus: &Gpus, ranks: Ranks) -> Result<Backends, Failure> {
        let ordinals: Vec<usize> = gpus.of_ranks.iter().map(|gpu| gpu.ordinal).collect();
        let group = match ordinals.len() {
            0 | 1 => None,
            _ => Some(GpuGroup::new(&ordinals, Transport::Pull, ranks.deadline).map_err(failed)?),
        };
        let backend = |(rank, gpu): (usize, &usize)| -> Result<Box<dyn Backend>, Failure> {
            let place = match (&group, ranks.lone) {
                (_, Some((rank, of, latency))) => Place::without_others(rank, of, latency),
                (Some(group), None) => group.rank(rank),
                (None, None) => Place::alone(),
            };
            let options = CudaOptions {
                gpu: *gpu,
                math: match ranks.exact {
                    true => Math::Exact,
                    false => Math::Fast,
                },
                graphs: gpus.graphs,
                poison: ranks.poison,
                sync_launches: gpus.sync_launches,
                apart: std::env::var_os("GLIM_CUDA_APART").is_some(),
                ranks: place,
                cache: cache(),
                // What is measured alone has no context of its own.
                random_caches: ranks.lone.is_some(),
            };
            Ok(Box::new(CudaBackend::new(options).map_err(failed)?))
        };
        let backends = ordinals.iter().enumerate().map(backend);
        let backends = backends.collect::<Result<Vec<_>, _>>()?;
        let group = group.map(|group| -> Arc<dyn Group> { Arc::new(group) });
        Ok((backends, group))
    }

    pub(crate) fn read_bandwidth(gpu: &Found) -> Result<f64, Failure> {
        glim_cuda::read_bandwidth(gpu.ordinal, &cache()).map_err(failed)
    }

    /// Bytes that nobody holds, now. From here on this process holds some itself.
    pub(crate) fn free_memory(gpu: &Found) -> Result<u64, Failure> {
        let free = glim_cuda::free_memory(gpu.ordinal).map_err(failed)?;
        Ok(free as u64)
    }

    /// What `glim doctor` looks at.
    pub(crate) fn places() -> Places {
        let Cache { folder, prebuilt } = cache();
        Places {
            preferred: std::env::var_os("GLIM_CUDA_LIBRARIES")
                .map(PathBuf::from)
                .into_iter()
                .collect(),
            libraries: glim_cuda::libraries::folders(),
            kernels: folder,
            prebuilt,
        }
    }

    /// One probe of `glim doctor --probe`; it may hang, so only a process of its own calls it.
    pub(crate) fn probe_pair(from: usize, to: usize) -> Result<Measured, Failure> {
        let found = glim_cuda::probe_pair(from, to, &cache()).map_err(failed)?;
        Ok(Measured {
            bytes: found.bytes,
            wrong_bytes: found.wrong_bytes,
            read_gb_s: found.read / 1e9,
            write_gb_s: found.write / 1e9,
            flag_round_trip_us: found.round_trip.as_secs_f64() * 1e6,
        })
    }
}

pub(crate) use backend::{backends, find, free_memory, places, probe_pair, read_bandwidth};
