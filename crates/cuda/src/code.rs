//! Kernels on one GPU: compiled or taken from the cache when a plan first needs them, loaded once.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::cache::Cache;
use crate::compile;
use crate::driver::{Function, Gpu, Module, write_pointer};
use crate::error::CudaError;
use crate::kernels::{Kernel, Unit};

/// Loaded units and their entry points.
#[derive(Debug)]
pub(crate) struct Code {
    gpu: Gpu,
    cache: Cache,
    arch: String,
    modules: HashMap<Unit, Arc<Module>>,
    /// With the bytes of dynamic shared memory that each may have.
    functions: HashMap<Kernel, (Function, u32)>,
}

impl Code {
    pub(crate) fn new(gpu: &Gpu, cache: Cache) -> Self {
        Self {
            gpu: gpu.clone(),
            cache,
            arch: compile::arch(gpu.facts().capability),
            modules: HashMap::new(),
            functions: HashMap::new(),
        }
    }

    /// Makes all of these ready; what has to be compiled is compiled on all cores.
    pub(crate) fn load<'k>(
        &mut self,
        kernels: impl Iterator<Item = (&'k Kernel, u32)> + Clone,
    ) -> Result<(), CudaError> {
        let missing: BTreeSet<&Unit> = kernels
            .clone()
            .map(|(kernel, _)| &kernel.unit)
            .filter(|unit| !self.modules.contains_key(unit))
            .collect();
        let missing: Vec<&Unit> = missing.into_iter().collect();
        for (unit, cubin) in missing.iter().zip(self.cubins(&missing)?) {
            let module = Module::load(&self.gpu, &cubin)?;
            self.modules.insert((*unit).clone(), module);
        }
        for (kernel, shared) in kernels {
            if !self.functions.contains_key(kernel) {
                let function = self.modules[&kernel.unit].function(kernel.entry)?;
                self.functions
                    .insert(kernel.clone(), (function, DEFAULT_SHARED));
            }
            if let Some((function, allowed)) = self.functions.get_mut(kernel)
                && shared > *allowed
            {
                function.allow_shared(&self.gpu, shared)?;
                *allowed = shared;
            }
        }
        Ok(())
    }

    /// The machine code of each unit.
    fn cubins(&self, units: &[&Unit]) -> Result<Vec<Vec<u8>>, CudaError> {
        let threads = std::thread::available_parallelism()
            .map_or(1, usize::from)
            .min(units.len());
        let next = AtomicUsize::new(0);
        let (next, cache, arch) = (&next, &self.cache, self.arch.as_str());
        let work = move || {
            let mut made = Vec::new();
            while let Some((i, unit)) = {
                let i = next.fetch_add(1, Ordering::Relaxed);
                units.get(i).map(|unit| (i, *unit))
            } {
                made.push((i, cache.cubin(unit, arch)));
            }
            made
        };
        let mut all: Vec<(usize, Result<Vec<u8>, CudaError>)> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let made = workers.into_iter().map(|worker| match worker.join() {
                Ok(made) => made,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            made.flatten().collect()
        });
        all.sort_by_key(|(i, _)| *i);
        all.into_iter().map(|(_, cubin)| cubin).collect()
    }

    /// Points the variable `name` of every loaded unit that has it to an address.
    pub(crate) fn point(&self, name: &str, address: u64) -> Result<(), CudaError> {
        for module in self.modules.values() {
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

/// Dynamic shared memory that every launch may have.
const DEFAULT_SHARED: u32 = 48 << 10;
