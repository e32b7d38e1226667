//! Libraries that are loaded at run time, and where compiled kernels are kept.

use super::{Verdict, count};
use crate::facts::Facts;
use crate::host::Library;
use crate::reading::{Reading, Unread};

/// Room for the kernels of one GPU, with some.
const ENOUGH_ROOM: u64 = 256 << 20;

/// The library of a part, or the verdict that nothing is known of it.
fn find<'a>(facts: &'a Facts, part: &str) -> Result<&'a Library, Verdict> {
    let not = |why: &Unread| Verdict::unknown(format!("the library of {part}"), why);
    let list = facts.libraries.as_result().map_err(not)?;
    list.iter()
        .find(|library| library.part == part)
        .ok_or_else(|| not(&Unread::Other("it was not looked for".into())))
}

fn found(library: &Library) -> Verdict {
    let path = library.path.known().map_or("", String::as_str);
    Verdict::ok(match library.version.known() {
        Some(version) => format!("{} {version}: {path}", library.part),
        None => format!("{}: {path}", library.part),
    })
}

fn tried(library: &Library) -> String {
    format!("Tried: {}.", library.tried.join(", "))
}

pub(super) fn driver(facts: &Facts) -> Option<Verdict> {
    if facts.gpus.is_empty() {
        return None;
    }
    let library = match find(facts, "driver") {
        Ok(library) => library,
        Err(verdict) => return Some(verdict),
    };
    Some(match library.path.as_result() {
        Ok(_) => found(library),
        Err(Unread::Absent) => Verdict::blocker("libcuda is not there")
            .why(tried(library))
            .fix("install the driver's libraries (libnvidia-compute-VERSION on Ubuntu); in a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility"),
        Err(why) => Verdict::blocker(format!("libcuda cannot be opened: {why}")).why(tried(library)),
    })
}

/// Kernels that are compiled already; unknown counts as none.
fn compiled(facts: &Facts) -> usize {
    let cache = facts.kernel_cache.as_ref();
    cache.map_or(0, |cache| {
        cache.files.get().unwrap_or(0) + cache.prebuilt.get().unwrap_or(0)
    })
}

pub(super) fn nvrtc(facts: &Facts) -> Option<Verdict> {
    if facts.gpus.is_empty() {
        return None;
    }
    let library = match find(facts, "nvrtc") {
        Ok(library) => library,
        Err(verdict) => return Some(verdict),
    };
    let compiled = compiled(facts);
    Some(match library.path.as_result() {
        Ok(_) => found(library),
        Err(why) => {
            let what = match why {
                Unread::Absent => "NVRTC, which compiles the kernels, is not there".to_owned(),
                why => format!("NVRTC, which compiles the kernels, cannot be opened: {why}"),
            };
            let verdict = match compiled {
                0 => Verdict::blocker(what).why("No kernel is compiled yet either."),
                files => Verdict::note(what).why(format!("{} of compiled kernels can be used; another GPU, version of glim or model may need more.", count(files, "file"))),
            };
            verdict
                .why(tried(library))
                .fix("install cuda-nvrtc-13-0 (or 12-9) of NVIDIA's repository, or pip install nvidia-cuda-nvrtc and name its lib folder in GLIM_CUDA_LIBRARIES")
        }
    })
}

pub(super) fn nccl(facts: &Facts) -> Option<Verdict> {
    if !facts.has_several() {
        return None;
    }
    let library = match find(facts, "nccl") {
        Ok(library) => library,
        Err(verdict) => return Some(verdict),
    };
    Some(match library.path.as_result() {
        Ok(_) => found(library),
        Err(why) => Verdict::note(match why {
            Unread::Absent => "NCCL is not there".to_owned(),
            why => format!("NCCL cannot be opened: {why}"),
        })
        .why("Own collectives do without where GPUs reach each other's memory; NCCL is the fallback where they do not. ")
        .why(tried(library))
        .fix("install libnccl2, or pip install nvidia-nccl-cu13 and name its lib folder in GLIM_CUDA_LIBRARIES"),
    })
}

pub(super) fn compiler_and_driver(facts: &Facts) -> Option<Verdict> {
    let nvrtc = find(facts, "nvrtc").ok()?;
    nvrtc.path.known()?;
    facts.driver.nvml.known()?;
    let parse = |version: &String| -> Option<(u32, u32)> {
        let (major, minor) = version.split_once('.')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    };
    let compiler = match nvrtc.version.as_result() {
        Ok(version) => version,
        Err(why) => return Some(Verdict::unknown("the compiler's version", why)),
    };
    let Some((major, minor)) = parse(compiler) else {
        return Some(Verdict::unknown(
            "the compiler's version",
            &Unread::Other(format!("{compiler:?}")),
        ));
    };
    let driver = match facts.driver.cuda.as_result() {
        Ok(&cuda) => (cuda / 1000, cuda % 1000 / 10),
        Err(why) => return Some(Verdict::unknown("the driver's version of CUDA", why)),
    };
    Some(match major > driver.0 {
        true => Verdict::note(format!("the compiler is of CUDA {major}.{minor}, and the driver knows up to {}.{}", driver.0, driver.1))
            .why("Within one major version compiled kernels load on older drivers; across versions they may not.")
            .fix(format!("update the driver, or install NVRTC {}.x", driver.0)),
        false => Verdict::ok(format!("compiler {major}.{minor}, driver {}.{}", driver.0, driver.1)),
    })
}

pub(super) fn kernel_cache(facts: &Facts) -> Option<Verdict> {
    let cache = facts.kernel_cache.as_ref()?;
    if facts.gpus.is_empty() {
        return None;
    }
    let fix =
        "name a folder that can be written in GLIM_CUDA_CACHE; for a service: CacheDirectory=glim";
    Some(match (cache.writable.as_result(), &cache.space) {
        (Ok(false), _) => {
            Verdict::note(format!("compiled kernels cannot be kept in {}", cache.path))
                .why("Every start compiles them again, which takes tens of seconds.")
                .fix(fix)
        }
        (Ok(true), Reading::Known(space)) if space.free < ENOUGH_ROOM => Verdict::note(format!(
            "the file system of {} is nearly full ({} free)",
            cache.path,
            crate::page::bytes(space.free)
        ))
        .why("Compiled kernels take some tens of MiB for each kind of GPU.")
        .fix(fix),
        (Ok(true), Reading::Known(_)) => Verdict::ok(format!(
            "{} of compiled kernels in {}",
            count(cache.files.get().unwrap_or(0), "file"),
            cache.path
        )),
        (Err(why), _) | (_, Reading::Unknown { unknown: why }) => Verdict::unknown(
            format!("whether kernels can be kept in {}", cache.path),
            why,
        ),
    })
}
