//! All units for all architectures, on all cores; what was compiled before is kept.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, thread};

use anyhow::{Context as _, Result, bail};
use glim_cuda::kernels::Unit;
use glim_cuda::{cache, compile};

/// A unit as compiled for one architecture.
pub(crate) struct Built {
    pub(crate) unit: Unit,
    pub(crate) arch: String,
    /// Its name in the product's cache, which stands for source, options and architecture.
    pub(crate) name: String,
    pub(crate) cubin: Vec<u8>,
    /// What the compiler said.
    pub(crate) log: String,
}

/// Compiles everything; the errors of all units that do not compile are told together.
pub(crate) fn all(units: &[Unit], archs: &[&str], folder: &Path) -> Result<Vec<Built>> {
    fs::create_dir_all(folder).with_context(|| format!("{} was not made", folder.display()))?;
    let work: Vec<(&Unit, &str)> = archs
        .iter()
        .flat_map(|arch| units.iter().map(move |unit| (unit, *arch)))
        .collect();
    let done = on_all_cores(&work, |(unit, arch)| one(unit, arch, folder));
    let mut built = Vec::new();
    let mut errors = Vec::new();
    for one in done {
        match one {
            Ok(one) => built.push(one),
            Err(error) => errors.push(format!("{error:#}")),
        }
    }
    if !errors.is_empty() {
        bail!(
            "{} units do not compile:\n{}",
            errors.len(),
            errors.join("\n")
        );
    }
    Ok(built)
}

/// What `f` makes of each item, in the items' order.
pub(crate) fn on_all_cores<T: Sync, R: Send>(items: &[T], f: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let run = || {
        let mut done = Vec::new();
        while let Some((i, item)) = {
            let i = next.fetch_add(1, Ordering::Relaxed);
            items.get(i).map(|item| (i, item))
        } {
            done.push((i, f(item)));
        }
        done
    };
    let mut done: Vec<(usize, R)> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        let done = workers.into_iter().map(|worker| match worker.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        done.flatten().collect()
    });
    done.sort_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, made)| made).collect()
}

fn one(unit: &Unit, arch: &str, folder: &Path) -> Result<Built> {
    let name = cache::name(unit, arch)?;
    let (cubin_path, log_path) = (folder.join(&name), folder.join(format!("{name}.log")));
    // The log is written last.
    let (cubin, log) = match (fs::read(&cubin_path), fs::read_to_string(&log_path)) {
        (Ok(cubin), Ok(log)) => (cubin, log),
        _ => {
            let compiled = compile::compile(unit, arch)?;
            fs::write(&cubin_path, &compiled.cubin)
                .and_then(|()| fs::write(&log_path, &compiled.log))
                .with_context(|| format!("{} was not written", log_path.display()))?;
            (compiled.cubin, compiled.log)
        }
    };
    Ok(Built {
        unit: unit.clone(),
        arch: arch.to_owned(),
        name,
        cubin,
        log,
    })
}
