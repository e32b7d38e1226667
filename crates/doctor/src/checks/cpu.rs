//! Processors and memory.

use super::{Survey, Verdict, few};
use crate::facts::Facts;
use crate::reading::Unread;

pub(super) fn features(facts: &Facts) -> Option<Verdict> {
    Some(match facts.cpu.features.as_result() {
        Ok(features) if features.is_empty() => Verdict::note("the processor has none of the instruction sets that the CPU backend has kernels for")
            .why("On the CPU glim then computes with scalar code, tens of times slower. GPUs are not concerned.")
            .fix("use a processor with AVX2; in a virtual machine pass the host's processor through (-cpu host)"),
        Ok(features) if !features.iter().any(|feature| feature == "avx512_vnni" || feature == "avx_vnni") => {
            Verdict::ok(format!("{} (no VNNI: the CPU backend takes its AVX2 kernels)", features.join(" ")))
        }
        Ok(features) => Verdict::ok(features.join(" ")),
        Err(why) => Verdict::unknown("the processor's instruction sets", why),
    })
}

pub(super) fn governor(facts: &Facts) -> Option<Verdict> {
    Some(match facts.cpu.governors.as_result() {
        Ok(governors) => {
            let bad: Vec<String> = governors
                .iter()
                .filter(|(_, governor)| governor != "performance")
                .map(|(cpu, governor)| format!("processor {cpu}: {governor}"))
                .collect();
            match bad.is_empty() {
                true => Verdict::ok("processors run at full clocks (performance)"),
                false => Verdict::note(format!("clocks follow the load: {}", few(&bad)))
                    .why("The step loop wakes for a few microseconds a step, so its processor never looks busy: launches and sampling take longer, most with one user.")
                    .fix("cpupower frequency-set -g performance; to keep it: the service cpupower, or a tuned profile (tuned-adm profile throughput-performance)"),
            }
        }
        Err(Unread::Absent) => {
            Verdict::ok("the system does not choose clocks here (firmware or hypervisor do)")
        }
        Err(why) => Verdict::unknown("how clocks are chosen", why),
    })
}

pub(super) fn numa_balancing(facts: &Facts) -> Option<Verdict> {
    let nodes = facts.cpu.nodes.known().map_or(1, Vec::len);
    Some(match facts.cpu.numa_balancing.as_result() {
        Ok(true) if nodes > 1 => Verdict::note(format!("the kernel moves pages between {nodes} nodes"))
            .why("It unmaps pages to see who touches them; weights in memory and pinned buffers pay faults, in bursts of milliseconds.")
            .fix("sysctl kernel.numa_balancing=0; to keep it: echo kernel.numa_balancing=0 > /etc/sysctl.d/90-glim.conf"),
        Ok(true) => Verdict::ok("NUMA balancing is on, with one node"),
        Ok(false) => Verdict::ok("NUMA balancing is off"),
        Err(Unread::Absent) => Verdict::ok("this kernel has no NUMA balancing"),
        Err(why) => Verdict::unknown("NUMA balancing", why),
    })
}

pub(super) fn gpu_numa(facts: &Facts) -> Option<Verdict> {
    let nodes = match facts.cpu.nodes.as_result() {
        Ok(nodes) => nodes.len(),
        Err(Unread::Absent) => 1,
        Err(why) if !facts.gpus.is_empty() => return Some(Verdict::unknown("NUMA nodes", why)),
        Err(_) => return None,
    };
    if facts.gpus.is_empty() || nodes < 2 {
        return None;
    }
    let mut survey = Survey::default();
    let mut of_nodes: Vec<(i32, Vec<String>)> = Vec::new();
    for gpu in &facts.gpus {
        match gpu.numa_node.as_result() {
            Ok(-1) => survey.bad(format!("GPU {}", gpu.index)),
            Ok(&node) => {
                survey.good();
                match of_nodes.iter_mut().find(|(of, _)| *of == node) {
                    Some((_, gpus)) => gpus.push(gpu.index.to_string()),
                    None => of_nodes.push((node, vec![gpu.index.to_string()])),
                }
            }
            Err(why) => survey.unknown(format!("GPU {}", gpu.index), why),
        }
    }
    survey.verdict(
        "the node",
        |bad| {
            Verdict::note(format!("the firmware does not say which node is near {}", few(bad)))
                .why(format!("There are {nodes} nodes. A rank's thread on the wrong one crosses the sockets for every launch, and host buffers go over the link between them."))
                .fix("update the firmware (its ACPI tables lack _PXM for these slots)")
        },
        || {
            let each: Vec<String> = of_nodes.iter().map(|(node, gpus)| format!("node {node}: GPU {}", few(gpus))).collect();
            Verdict::ok(each.join("; "))
        },
    )
}

pub(super) fn huge_pages(facts: &Facts) -> Option<Verdict> {
    let set_aside = facts
        .cpu
        .huge_pages
        .get()
        .map_or(String::new(), |(all, free)| match all {
            0 => String::new(),
            all => format!("; {all} pages set aside, {free} free"),
        });
    Some(match facts.cpu.transparent_huge_pages.as_result() {
        Ok(mode) if mode == "never" => Verdict::note(format!("transparent huge pages are off{set_aside}"))
            .why("On the CPU weights are read through pages of 4 KiB then, and translation costs part of the bandwidth. GPUs are not concerned.")
            .fix("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled; to keep it: transparent_hugepage=madvise on the kernel command line"),
        Ok(mode) => Verdict::ok(format!("transparent huge pages: {mode}{set_aside}")),
        Err(Unread::Absent) => Verdict::ok("this kernel has no transparent huge pages"),
        Err(why) => Verdict::unknown("transparent huge pages", why),
    })
}
