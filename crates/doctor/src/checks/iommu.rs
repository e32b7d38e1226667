//! Translation of addresses, and what a virtual machine hides of it.

use super::{Verdict, few};
use crate::facts::Facts;
use crate::reading::Unread;

const OFF: &str = "kernel command line: iommu=off (with intel_iommu=off or amd_iommu=off; GRUB_CMDLINE_LINUX in /etc/default/grub, update-grub, reboot), or IOMMU/VT-d off in the firmware. iommu=pt is enough on some hosts and hangs on others";

pub(super) fn mode(facts: &Facts) -> Option<Verdict> {
    if facts.gpus.is_empty() {
        return None;
    }
    let units = match facts.iommu.units.as_result() {
        Ok(units) => units,
        Err(why) => return Some(Verdict::unknown("the IOMMU", why)),
    };
    if units.is_empty() {
        return Some(Verdict::ok(match facts.is_virtual() {
            true => {
                "this virtual machine has no IOMMU of its own; the host's cannot be seen from here"
            }
            false => "the IOMMU is off",
        }));
    }
    let (mut translated, mut identity, mut unknown) = (Vec::new(), Vec::new(), None);
    for gpu in &facts.gpus {
        let name = format!("GPU {}", gpu.index);
        match gpu.iommu_group.as_result().map(String::as_str) {
            Ok("identity") => identity.push(name),
            // In no group: this unit does not translate for it.
            Err(Unread::Absent) => {}
            Ok(kind) => translated.push(format!("{name} ({kind})")),
            Err(why) => unknown = Some((name, why)),
        }
    }
    Some(if !translated.is_empty() {
        let is_blocker = facts.shares_over_pcie();
        Verdict::bad(is_blocker, format!("the IOMMU translates addresses of {}", few(&translated)))
            .why(match is_blocker {
                true => "Transfers between GPUs over PCIe then go through the root to be translated: they are slow, hang in the first collective, or on some hosts give wrong bytes.",
                false => "Transfers between host and GPU cost more; there are no transfers between GPUs over PCIe here that it could break.",
            })
            .fix(OFF)
    } else if let Some((name, why)) = unknown {
        Verdict::unknown(format!("the IOMMU's mode for {name}"), why)
    } else if identity.is_empty() {
        Verdict::ok("the IOMMU is on, and translates for no GPU")
    } else if facts.shares_over_pcie() {
        Verdict::note("the IOMMU is on and passes addresses through (identity)")
            .why("That works on most hosts; on some, transfers between GPUs hang.")
            .fix(format!("if a collective hangs: {OFF}"))
    } else {
        Verdict::ok("the IOMMU is on and passes addresses through (identity)")
    })
}

pub(super) fn virtual_machine(facts: &Facts) -> Option<Verdict> {
    Some(match facts.cpu.hypervisor.as_result() {
        Ok(false) => return None,
        Ok(true) if !facts.has_several() || !facts.shares_over_pcie() => Verdict::ok("a virtual machine; nothing between GPUs depends on the host's bridges"),
        Ok(true) => Verdict::note("a virtual machine: ACS, IOMMU and links of the host cannot be seen from here")
            .why("The host may send transfers between GPUs through its root or refuse them, and nothing inside tells.")
            .fix("glim doctor --probe copies and checks bytes between every pair; or run glim doctor on the host"),
        // An ARM processor does not say it this way.
        Err(Unread::Absent) => return None,
        Err(why) => Verdict::unknown("whether this is a virtual machine", why),
    })
}

pub(super) fn hmm(facts: &Facts) -> Option<Verdict> {
    if facts.gpus.is_empty() || facts.driver.nvml.known().is_none() {
        return None;
    }
    Some(match facts.driver.hmm_disabled.as_result() {
        Ok(true) => Verdict::ok("HMM is off"),
        // With one GPU nothing was seen to go wrong.
        Ok(false) if !facts.shares_over_pcie() => Verdict::ok("HMM is on; GPUs here do not share over PCIe"),
        Ok(false) => Verdict::note("the driver mirrors page tables (HMM is on)")
            .why("On hosts with several cards on PCIe it has slowed and hung transfers between them; glim does not use it.")
            .fix("in /etc/modprobe.d/glim-nvidia.conf: options nvidia_uvm uvm_disable_hmm=1; then update-initramfs -u and reboot"),
        // The module is loaded by the first user of CUDA, and older ones have no HMM.
        Err(Unread::Absent) => Verdict::ok("nvidia_uvm is not loaded yet, or has no HMM"),
        Err(why) => Verdict::unknown("whether HMM is on", why),
    })
}
