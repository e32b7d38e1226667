//! Kernels on one GPU: compiled or taken from the cache when a plan first needs them, loaded once.
//!
//! Machine code takes milliseconds to load, and the driver stops the GPU for it. All backends on a GPU have the same code, so what one has
//! loaded is there for all, as long as the process lives. Only code that differs in a variable of its module, the kernels with time
//! stamps, is a backend's own.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use crate::cache::Cache;
use crate::compile;
use crate::driver::{Function, Gpu, Module, write_pointer};
use crate::error::CudaError;
use crate::kernels::{Kernel, Unit};

/// The kernels that one backend uses.
#[derive(Debug)]
pub(crate) struct Code {
    gpu: Gpu,
    cache: Cache,
    arch: String,
    loaded: Arc<Loaded>,
    /// Those that this backend has asked for, with the shared memory that it needs.
    functions: HashMap<Kernel, (Function, u32)>,
}

/// What is loaded on a GPU.
#[derive(Debug, Default)]
struct Loaded {
    units: Mutex<HashMap<Unit, Arc<Place>>>,
    /// With the bytes of dynamic shared memory that each may have.
    functions: Mutex<HashMap<Kernel, (Function, u32)>>,
}

/// Where a unit's module is or will be: whoever makes it holds the lock, so that it is made once.
type Place = Mutex<Option<Arc<Module>>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A compile that panicked has left nothing behind.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Code {
    /// What all backends on the GPU share.
    pub(crate) fn new(gpu: &Gpu, cache: Cache) -> Self {
        static SHARED: Mutex<BTreeMap<usize, Arc<Loaded>>> = Mutex::new(BTreeMap::new());
        let loaded = Arc::clone(lock(&SHARED).entry(gpu.ordinal()).or_default());
        Self::with(gpu, cache, loaded)
    }

    /// Code of one's own, whose variables may be [written](Self::point).
    pub(crate) fn own(gpu: &Gpu, cache: Cache) -> Self {
        Self::with(gpu, cache, Arc::default())
    }

    fn with(gpu: &Gpu, cache: Cache, loaded: Arc<Loaded>) -> Self {
        Self {
            gpu: gpu.clone(),
            cache,
            arch: compile::arch(gpu.facts().capability),
            loaded,
            functions: HashMap::new(),
        }
    }

    /// Makes all of these ready; what has to be compiled is compiled on all cores.
    pub(crate) fn load<'k>(
        &mut self,
        kernels: impl Iterator<Item = (&'k Kernel, u32)> + Clone,
    ) -> Result<(), CudaError> {
        let is_here = |kernel: &Kernel, shared: u32| {
            let here = self.functions.get(kernel);
            here.is_some_and(|(_, allowed)| *allowed >= shared)
        };
        let missing: Vec<_> = kernels.filter(|(k, shared)| !is_here(k, *shared)).collect();
        let units: BTreeSet<&Unit> = missing.iter().map(|(kernel, _)| &kernel.unit).collect();
        let units: Vec<&Unit> = units.into_iter().collect();
        let modules: HashMap<&Unit, Arc<Module>> =
            units.iter().copied().zip(self.modules(&units)?).collect();
        for (kernel, shared) in missing {
            let mut functions = lock(&self.loaded.functions);
            if !functions.contains_key(kernel) {
                let function = modules[&kernel.unit].function(kernel.entry)?;
                if BESIDE.contains(&kernel.unit.file) {
                    function.prefer_shared(&self.gpu)?;
                }
                functions.insert(kernel.clone(), (function, DEFAULT_SHARED));
            }
            if let Some((function, allowed)) = functions.get_mut(kernel) {
                if shared > *allowed {
                    function.allow_shared(&self.gpu, shared)?;
                    *allowed = shared;
                }
                let own = (function.clone(), *allowed);
                self.functions.insert(kernel.clone(), own);
            }
        }
        Ok(())
    }

    /// The module of each unit, loaded by whoever comes first.
    fn modules(&self, units: &[&Unit]) -> Result<Vec<Arc<Module>>, CudaError> {
        let threads = std::thread::available_parallelism()
            .map_or(1, usize::from)
            .min(units.len());
        let next = AtomicUsize::new(0);
        let next = &next;
        let work = move || {
            let mut made = Vec::new();
            while let Some((i, unit)) = {
                let i = next.fetch_add(1, Ordering::Relaxed);
                units.get(i).map(|unit| (i, *unit))
            } {
                made.push((i, self.module(unit)));
            }
            made
        };
        if threads <= 1 {
            return work().into_iter().map(|(_, module)| module).collect();
        }
        let mut all: Vec<(usize, Result<Arc<Module>, CudaError>)> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let made = workers.into_iter().map(|worker| match worker.join() {
                Ok(made) => made,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            made.flatten().collect()
        });
        all.sort_by_key(|(i, _)| *i);
        all.into_iter().map(|(_, module)| module).collect()
    }

    fn module(&self, unit: &Unit) -> Result<Arc<Module>, CudaError> {
        let place = {
            let mut units = lock(&self.loaded.units);
            Arc::clone(units.entry(unit.clone()).or_default())
        };
        let mut place = lock(&place);
        if let Some(module) = &*place {
            return Ok(Arc::clone(module));
        }
        Ok(Arc::clone(place.insert(self.make(unit)?)))
    }

    /// What came with the program, or what is compiled here. A driver that is older than the compiler of what came refuses it.
    fn make(&self, unit: &Unit) -> Result<Arc<Module>, CudaError> {
        static TOLD: Once = Once::new();
        let Some(cubin) = self.cache.prebuilt(unit, &self.arch)? else {
            return Module::load(&self.gpu, &self.cache.compiled(unit, &self.arch)?);
        };
        let refused = match Module::load(&self.gpu, &cubin) {
            Ok(module) => return Ok(module),
            Err(refused) => refused,
        };
        let compiled = self.cache.compiled(unit, &self.arch).map_err(|error| {
            let reason = format!(
                "the one that came with glim is of no use ({refused}), which is so for a driver older than its compiler; and another cannot be made: {error}"
            );
            CudaError::Kernel {
                kernel: unit.to_string(),
                reason,
            }
        })?;
        TOLD.call_once(|| {
            tracing::warn!(
                %unit, %refused,
                "kernels that came with glim are refused, as by a driver older than their compiler: they are compiled here"
            );
        });
        Module::load(&self.gpu, &compiled)
    }

    /// Points the variable `name` of every unit that has it to an address. For code of [one's own](Self::own).
    pub(crate) fn point(&self, name: &str, address: u64) -> Result<(), CudaError> {
        for place in lock(&self.loaded.units).values() {
            let Some(module) = &*lock(place) else {
                continue;
            };
            if let Some(variable) = module.global(name)? {
                write_pointer(&self.gpu, variable, address)?;
            }
        }
        Ok(())
    }

    /// A kernel that was loaded.
    pub(crate) fn function(&self, kernel: &Kernel) -> Result<&Function, CudaError> {
        let loaded = self.functions.get(kernel).map(|(function, _)| function);
        loaded.ok_or_else(|| CudaError::Kernel {
            kernel: kernel.to_string(),
            reason: "it was not loaded when its plan was prepared".into(),
        })
    }
}

/// Files of kernels of which one asks for its weights while the one before it is still there.
const BESIDE: &[&str] = &["experts_int"];

/// Dynamic shared memory that every launch may have.
const DEFAULT_SHARED: u32 = 48 << 10;
