//! The model that is to run, against the machine's memory and disk.
//!
//! Only weights are counted: caches and scratch come on top, and `glim inspect --memory` has the exact account.

use super::{Verdict, count, few};
use crate::facts::{Facts, Model};
use crate::page::bytes;
use crate::reading::{Reading, Unread};

/// File systems of a network, and those that a program serves.
const REMOTE: &[&str] = &[
    "nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "gpfs", "beegfs", "afs", "virtiofs",
];

fn share(whole: u64) -> u64 {
    // What the engine lets itself take of free GPU memory.
    whole / 100 * 95
}

fn size(model: &Model) -> Option<u64> {
    model.bytes.get()
}

pub(super) fn files(facts: &Facts) -> Option<Verdict> {
    let model = facts.model.as_ref()?;
    Some(match model.bytes.as_result() {
        _ if !model.missing.is_empty() => Verdict::blocker(format!("{} of the set missing: {}", count(model.missing.len(), "part"), few(&model.missing)))
            .why("A model is loaded whole or not at all.")
            .fix("download them again; hf download REPOSITORY --local-dir FOLDER goes on where it stopped"),
        Ok(&all) => Verdict::ok(format!("{} in {}", bytes(all), count(model.files, "file"))),
        Err(Unread::Absent) => Verdict::blocker(format!("{} is not there", model.path)).fix("name a .gguf file, any part of a split set, or a folder of them"),
        Err(Unread::NeedsRoot) => Verdict::blocker(format!("{} cannot be read by this user", model.path)).fix("chmod -R a+rX, for the folders above it too; a service needs it for its own user"),
        Err(why) => Verdict::blocker(format!("{}: {why}", model.path)).fix("name a .gguf file, any part of a split set, or a folder of them"),
    })
}

pub(super) fn gpu_memory(facts: &Facts) -> Option<Verdict> {
    let weights = facts.model.as_ref().and_then(size)?;
    if facts.gpus.is_empty() || facts.driver.nvml.known().is_none() {
        return None;
    }
    let (mut total, mut free) = (0_u64, 0_u64);
    for gpu in &facts.gpus {
        match gpu.nvml.clone().and_then(|nvml| nvml.memory).as_result() {
            Ok(memory) => {
                total = total.saturating_add(memory.total.saturating_sub(memory.reserved));
                free = free.saturating_add(memory.free);
            }
            Err(why) => {
                return Some(Verdict::unknown(
                    format!("the memory of GPU {}", gpu.index),
                    why,
                ));
            }
        }
    }
    let of = format!(
        "{} of weights, {} free on {}",
        bytes(weights),
        bytes(free),
        count(facts.gpus.len(), "GPU")
    );
    Some(if weights > share(total) {
        Verdict::note(format!(
            "the model does not fit on the GPUs: {of} ({} in all)",
            bytes(total)
        ))
        .why("It would run on the CPU.")
        .fix("use a smaller quantisation (glim quantize --type q4_k_m), or more GPUs")
    } else if weights > share(free) {
        Verdict::blocker(format!(
            "the model would fit, but others hold the memory: {of}"
        ))
        .why("See gpu-holders and gpu-unattributed-memory.")
        .fix("end what holds the memory, or serve --wait-for-gpu")
    } else {
        Verdict::ok(of).why("Caches and scratch come on top: glim inspect MODEL --tp N --memory SIZE says which context fits.")
    })
}

pub(super) fn host_memory(facts: &Facts) -> Option<Verdict> {
    let weights = facts.model.as_ref().and_then(size)?;
    let available = match facts.cpu.memory_available.as_result() {
        Ok(&available) => available,
        Err(why) => return Some(Verdict::unknown("available memory", why)),
    };
    let limit = facts
        .cpu
        .memory_limit
        .get()
        .filter(|&limit| limit < available);
    let of = match limit {
        None => format!(
            "{} of weights, {} of memory available",
            bytes(weights),
            bytes(available)
        ),
        Some(limit) => format!(
            "{} of weights, {} of memory allowed by the control group",
            bytes(weights),
            bytes(limit)
        ),
    };
    Some(if weights <= limit.unwrap_or(available) {
        Verdict::ok(of)
    } else if facts.gpus.is_empty() {
        Verdict::blocker(format!("the model does not fit in memory: {of}"))
            .why("On the CPU every token reads the weights; those that are not in memory come from the disk, each time.")
            .fix(match limit {
                None => "use a smaller quantisation, or add memory",
                Some(_) => "use a smaller quantisation, or raise the limit: systemd MemoryMax=, Docker --memory, Kubernetes resources.limits.memory",
            })
    } else {
        Verdict::note(format!(
            "the model does not fit in memory beside the rest: {of}"
        ))
        .why("Loading onto GPUs works, but the file is read from the disk again at every start.")
    })
}

pub(super) fn file_system(facts: &Facts) -> Option<Verdict> {
    let model = facts.model.as_ref()?;
    size(model)?;
    let kind = match &model.file_system {
        Reading::Known(kind) => kind,
        Reading::Unknown { unknown } => {
            return Some(Verdict::unknown("the model's file system", unknown));
        }
    };
    let room = model.space.get().map_or(String::new(), |space| {
        format!(", {} free", bytes(space.free))
    });
    Some(
        if REMOTE.contains(&kind.as_str()) || kind.starts_with("fuse") {
            Verdict::note(format!("the model lies on {kind}{room}"))
            .why("A start reads all of it; over a network or a program's file system that often takes ten times as long as from a local NVMe disk, and a server that goes away ends the process (SIGBUS).")
            .fix("copy it to a local disk")
        } else if kind == "tmpfs" {
            Verdict::note(format!("the model lies in memory (tmpfs){room}"))
                .why("It takes memory that the weights need too, where it runs on the CPU.")
        } else if kind == "overlay" {
            Verdict::note("the model lies in the container's own layer (overlay)")
                .why("It is lost with the container, and reads go through one more layer.")
                .fix("mount the folder: -v /models:/models:ro")
        } else {
            Verdict::ok(format!("the model lies on {kind}{room}"))
        },
    )
}
