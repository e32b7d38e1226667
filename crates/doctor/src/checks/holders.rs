//! Who holds GPUs now. Nothing here ends a process: who does, compares number and start time first.

use super::{Verdict, count, few};
use crate::facts::{Facts, Holder};
use crate::page::bytes;

pub(super) fn holders(facts: &Facts) -> Option<Verdict> {
    if facts.gpus.is_empty() || facts.driver.nvml.known().is_none() {
        return None;
    }
    let all: Vec<usize> = facts.gpus.iter().map(|gpu| gpu.index).collect();
    let held = facts.holders.held(&all);
    let others = facts.holders.of(&all);
    let others = others.known().into_iter().flatten();
    let others = others.filter(|holder| !held.processes.contains(holder));
    let others: Vec<String> = others.map(|holder| holder.line()).collect();
    let displays = match others.is_empty() {
        true => String::new(),
        false => format!(
            "Displays and open handles, which do not matter: {}.",
            few(&others)
        ),
    };
    let unseen = match facts.holders.unreadable {
        0 => String::new(),
        many => format!(
            "Open files of {many} other processes cannot be seen (needs root): there may be more handles."
        ),
    };
    if held.processes.is_empty() {
        return Some(match &held.unknown {
            Some(why) => Verdict::unknown("processes that hold GPUs", why),
            None => Verdict::ok("no process computes on a GPU")
                .why(displays)
                .why(unseen),
        });
    }
    let of_all: u64 = held.processes.iter().map(|holder| holder.bytes()).sum();
    let lines: Vec<String> = held.processes.iter().map(|holder| holder.line()).collect();
    let pids: Vec<String> = held
        .processes
        .iter()
        .map(|holder| holder.pid.to_string())
        .collect();
    Some(
        Verdict::note(format!("GPUs are held by pid {}: {} in all", few(&pids), bytes(of_all)))
            .why(format!("{}. glim serve refuses to start on a GPU that is held (exit 69).", few(&lines)))
            .why(displays)
            .why(unseen)
            .fix(format!("if they are not meant to run: stop their units or containers, or kill {}; glim serve --wait-for-gpu waits for them", pids.join(" "))),
    )
}

pub(super) fn stuck(facts: &Facts) -> Option<Verdict> {
    let holders = facts.holders.processes.known()?;
    let stuck: Vec<String> = holders
        .iter()
        .filter(|holder| holder.is_stuck() && !holder.is_daemon())
        .map(Holder::line)
        .collect();
    if holders.is_empty() {
        return None;
    }
    Some(match stuck.is_empty() {
        true => Verdict::ok("every holder can be ended by a signal"),
        false => Verdict::blocker(format!("{} cannot be ended", count(stuck.len(), "holder")))
            .why(format!("{}. A process that waits in the driver (D), or has ended and is kept by it (Z), does not heed SIGKILL; its memory stays taken.", few(&stuck)))
            .fix("a parent that does not wait for a zombie: end the parent; otherwise reset the GPU once its other users are gone, or reboot"),
    })
}

pub(super) fn unattributed(facts: &Facts) -> Option<Verdict> {
    if facts.gpus.is_empty() || facts.driver.nvml.known().is_none() {
        return None;
    }
    if facts.holders.unattributed.is_empty() {
        let why = facts.gpus.iter().find_map(|gpu| {
            let nvml = gpu.nvml.known()?;
            nvml.memory.why().or(nvml.processes.why())
        });
        return Some(match why {
            Some(why) => Verdict::unknown("memory in use without a holder", why),
            None => Verdict::ok("all memory in use belongs to a process"),
        });
    }
    let each: Vec<String> = facts
        .holders
        .unattributed
        .iter()
        .map(|(gpu, held)| format!("GPU {gpu}: {}", bytes(*held)))
        .collect();
    Some(
        Verdict::note(format!("memory is in use that no process in sight holds: {}", few(&each)))
            .why("In a container: a process outside of it. Otherwise memory that a dead process left in the driver, or that a peer was given and keeps.")
            .fix("on the host, as root: fuser -v /dev/nvidia*; if nobody is there, reset the GPU (nvidia-smi --gpu-reset) once it has no users, or reboot"),
    )
}
