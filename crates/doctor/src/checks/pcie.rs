//! The bus: bridges, links, regions, errors.
//!
//! Figures are those of public measurements on hosts with eight RTX PRO 6000 (local-inference-lab/rtx6kpro, `hardware/`) and of our own
//! on H200.

use std::collections::BTreeMap;

use super::{Survey, Verdict, few, gpu_names};
use crate::facts::{Acs, Bridge, Facts, Gpu, Link, Port};
use crate::page::bytes;
use crate::reading::Unread;

/// Makers of switches whose chips are cut into partitions: Broadcom, and Microchip (Switchtec) under both of its numbers.
const BROADCOM: u32 = 0x1000;
const MICROCHIP: u32 = 0x11f8;
const SWITCHTEC: u32 = 0x1f18;

pub(super) fn acs(facts: &Facts) -> Option<Verdict> {
    if !facts.has_several() {
        return None;
    }
    let mut survey = Survey::default();
    let (mut commands, mut controls) = (Vec::new(), Vec::new());
    let mut in_switch = false;
    // A switch's upstream port has no ACS by the specification, and is asked for nothing.
    for bridge in facts
        .bridges
        .iter()
        .filter(|bridge| bridge.port != Port::Upstream)
    {
        match bridge.acs.as_result() {
            Ok(acs) if acs.redirects() => {
                in_switch |= bridge.port == Port::Downstream;
                survey.bad(bridge.bus_id.clone());
                commands.push(format!(
                    "setpci -s {} ECAP_ACS+6.w=0:{:x}",
                    bridge.bus_id,
                    Acs::REDIRECT
                ));
                let control = acs.words();
                if !controls.contains(&control) {
                    controls.push(control);
                }
            }
            Ok(_) | Err(Unread::Absent) => survey.good(),
            Err(why) => survey.unknown(bridge.bus_id.clone(), why),
        }
    }
    let is_blocker = in_switch && facts.shares_over_pcie();
    survey.verdict(
        "ACS",
        |bad| {
            Verdict::bad(is_blocker, format!("{} traffic between GPUs up to the root (ACS): {}", match bad.len() { 1 => "1 bridge sends".to_owned(), many => format!("{many} bridges send") }, few(bad)))
                .why(match facts.shares_over_pcie() {
                    true => "Two GPUs on one switch then talk through its uplink and the processor: 50 GB/s instead of 103 (both directions), and some hosts hang in the first collective. Root ports and the switch's downstream ports have to be changed, both. With several virtual machines on this host, leave it: ACS is what keeps their devices apart.",
                    false => "GPUs here are joined by NVLink, so their exchange does not pass these bridges; transfers between a GPU and a network card or disk on the same switch do.",
                })
                .why(format!("On now: {}.", controls.join("; ")))
                .fix(format!(
                    "turn ACS off in the firmware, or at each start, in a unit before glim's: {}; pcie_acs_override= needs a patched kernel",
                    commands.join(" && ")
                ))
        },
        || Verdict::ok("no bridge sends traffic between GPUs up to the root"),
    )
}

/// Each link once, by its lower end: name, its own link, and that of the port above it.
fn links(facts: &Facts) -> Vec<(String, &Link, Option<&Bridge>, Option<&Gpu>)> {
    let bridge = |place: &String| facts.bridges.iter().find(|bridge| bridge.bus_id == *place);
    let mut links = Vec::new();
    for gpu in &facts.gpus {
        let above = gpu
            .parents
            .known()
            .and_then(|parents| bridge(parents.last()?));
        links.push((format!("GPU {}", gpu.index), &gpu.link, above, Some(gpu)));
    }
    for below in facts
        .bridges
        .iter()
        .filter(|bridge| bridge.port == Port::Upstream)
    {
        let gpu = facts
            .gpus
            .iter()
            .find(|gpu| below.gpus.first() == Some(&gpu.index));
        let parents = gpu.and_then(|gpu| gpu.parents.known());
        let above = parents.and_then(|parents| {
            let at = parents.iter().position(|place| *place == below.bus_id)?;
            bridge(parents.get(at.checked_sub(1)?)?)
        });
        links.push((format!("switch {}", below.bus_id), &below.link, above, None));
    }
    links
}

pub(super) fn link_width(facts: &Facts) -> Option<Verdict> {
    let mut survey = Survey::default();
    let mut narrow = false;
    for (name, link, above, _) in links(facts) {
        match (link.width.as_result(), link.max_width.as_result()) {
            (Ok(now), Ok(most)) if now < most => {
                narrow |= *now <= 4;
                let slot = above.and_then(|above| above.link.max_width.get());
                let slot = slot
                    .filter(|slot| slot < most)
                    .map_or(String::new(), |slot| {
                        format!(", the port above has x{slot}")
                    });
                survey.bad(format!("{name}: x{now} of x{most}{slot}"));
            }
            (Ok(_), Ok(_)) => survey.good(),
            // A virtual function, or a guest's bridge, has no link.
            (Err(Unread::Absent), _) if facts.is_virtual() => {}
            (Err(why), _) | (_, Err(why)) => survey.unknown(name, why),
        }
    }
    let is_blocker = narrow && facts.shares_over_pcie();
    survey.verdict(
        "the width of links",
        |bad| {
            Verdict::bad(is_blocker, format!("links with fewer lanes than they could have: {}", few(bad)))
                .why("Lanes do not come and go with load: these are lost. x16 of generation 5 carries 53 to 57 GB/s each way, x4 about 13; pairs of GPUs over such a link were measured at 13.5 GB/s instead of 103.")
                .fix("seat the card or riser again, use a slot of full width, and set the port to x16 in the firmware (bifurcation)")
        },
        || Verdict::ok("every link has all its lanes"),
    )
}

pub(super) fn link_speed(facts: &Facts) -> Option<Verdict> {
    let mut survey = Survey::default();
    let mut idle = 0;
    for (name, link, above, gpu) in links(facts) {
        let (now, most) = match (link.speed.as_result(), link.max_speed.as_result()) {
            (Ok(&now), Ok(&most)) => (now, most),
            (Err(Unread::Absent), _) if facts.is_virtual() => continue,
            (Err(why), _) | (_, Err(why)) => {
                survey.unknown(name, why);
                continue;
            }
        };
        let slot = above.and_then(|above| above.link.max_speed.get());
        // Bit 0 of the reasons: idle. A GPU at rest slows its link, and that is fine.
        let is_idle = gpu.is_none_or(|gpu| {
            gpu.nvml
                .known()
                .and_then(|nvml| nvml.clock_reasons.get())
                .is_none_or(|reasons| reasons & 1 != 0)
        });
        match slot {
            Some(slot) if slot < most => survey.bad(format!(
                "{name}: {most} GT/s, but the port above only {slot}"
            )),
            _ if now < most && !is_idle => {
                survey.bad(format!("{name}: {now} of {most} GT/s while it works"))
            }
            _ => {
                idle += usize::from(now < most);
                survey.good();
            }
        }
    }
    survey.verdict(
        "the speed of links",
        |bad| {
            Verdict::note(format!("links are slower than they could be: {}", few(bad)))
                .why("Each step down halves what GPUs can exchange over PCIe, and doubles the time to load a model.")
                .fix("set the slot to its highest generation in the firmware; a riser or cable of an older generation makes links fall back")
        },
        || match idle {
            0 => Verdict::ok("every link has its full speed"),
            idle => Verdict::ok(format!("every link can have its full speed; {idle} are slowed while idle, which is normal")),
        },
    )
}

pub(super) fn uplink(facts: &Facts) -> Option<Verdict> {
    // A device without a bridge above is on a virtual bus.
    if facts
        .gpus
        .iter()
        .any(|gpu| gpu.parents.known().is_some_and(Vec::is_empty))
    {
        return None;
    }
    let shared: Vec<String> = facts
        .bridges
        .iter()
        .filter(|bridge| bridge.port == Port::Root && bridge.gpus.len() > 1)
        .map(|bridge| {
            format!(
                "{} share root port {}",
                gpu_names(&bridge.gpus),
                bridge.bus_id
            )
        })
        .collect();
    if facts.gpus.iter().any(|gpu| gpu.parents.known().is_none()) {
        let why = facts.gpus.iter().find_map(|gpu| gpu.parents.why())?;
        return facts
            .has_several()
            .then(|| Verdict::unknown("which GPUs share a link to the processor", why));
    }
    if shared.is_empty() {
        return facts
            .has_several()
            .then(|| Verdict::ok("every GPU has a link to the processor of its own"));
    }
    Some(Verdict::ok(shared.join("; ")).why("GPUs on one switch reach each other at full speed, but share one link to the host: about 56 GB/s together. Loading and offload to host memory are bounded by it."))
}

pub(super) fn switch_partitions(facts: &Facts) -> Option<Verdict> {
    // Switches with GPUs, by maker, and the roots that they hang on.
    let mut roots: BTreeMap<u32, Vec<&str>> = BTreeMap::new();
    let mut unknown = None;
    for bridge in facts
        .bridges
        .iter()
        .filter(|bridge| bridge.port == Port::Upstream)
    {
        match bridge.vendor.as_result() {
            Ok(&vendor) => roots.entry(vendor).or_default().push(&bridge.bus_id),
            Err(why) => unknown = Some(why),
        }
    }
    if roots.is_empty() {
        return unknown.map(|why| Verdict::unknown("the makers of switches", why));
    }
    let (broadcom, others): (Vec<_>, Vec<_>) = roots
        .into_iter()
        .partition(|(vendor, _)| *vendor == BROADCOM);
    let microchip: usize = others
        .iter()
        .filter(|(vendor, _)| [MICROCHIP, SWITCHTEC].contains(vendor))
        .map(|(_, list)| list.len())
        .sum();
    Some(match broadcom.first() {
        Some((_, list)) if list.len() > 1 && facts.shares_over_pcie() => {
            let names: Vec<String> = list.iter().map(|place| (*place).to_owned()).collect();
            Verdict::note(format!("Broadcom switches on {} roots, perhaps partitions of fewer chips: {}", list.len(), few(&names)))
                .why("No register tells which partitions are one chip. Between partitions of such chips writes to a peer were measured to collapse to 2.6 GB/s while reads hold 52, and all-to-all of eight cards to 52 GB/s instead of 254.")
                .fix("glim doctor --probe measures both directions of every pair; use the collective that pulls where pushes collapse")
        }
        _ if microchip > 0 => Verdict::ok(format!(
            "{microchip} Switchtec switch{}",
            if microchip == 1 { "" } else { "es" }
        )),
        _ => Verdict::ok("no switch that is known for partitions on several roots"),
    })
}

pub(super) fn order(facts: &Facts) -> Option<Verdict> {
    let islands = &facts.topology.islands;
    let joined: Vec<&Vec<usize>> = islands.iter().filter(|island| island.len() > 1).collect();
    if joined.is_empty() || islands.len() == 1 {
        return facts.has_several().then(|| {
            Verdict::ok(if islands.len() == 1 {
                "all GPUs are one island"
            } else {
                "no GPUs are nearer to each other than to the rest"
            })
        });
    }
    let is_contiguous = |island: &&Vec<usize>| island.windows(2).all(|pair| pair[1] == pair[0] + 1);
    let names: Vec<String> = joined.iter().map(|island| gpu_names(island)).collect();
    let order: Vec<String> = islands.iter().flatten().map(usize::to_string).collect();
    Some(match joined.iter().all(is_contiguous) {
        true => Verdict::ok(format!("islands are contiguous: {}", names.join("; "))),
        false => Verdict::note(format!("GPUs that are near each other do not have neighbouring numbers: {}", names.join("; ")))
            .why("Ranks take GPUs in the order in which they are named. Where neighbours are far apart, collectives that overlap were measured up to 8 times slower.")
            .fix(format!("--device cuda:{} (with CUDA_DEVICE_ORDER=PCI_BUS_ID)", order.join(","))),
    })
}

pub(super) fn bar1(facts: &Facts) -> Option<Verdict> {
    let mut survey = Survey::default();
    for gpu in &facts.gpus {
        let nvml = gpu.nvml.known();
        let told = nvml.and_then(|nvml| nvml.bar1.get());
        let (region, memory) = match (
            told.or(gpu.bar1.get()),
            nvml.and_then(|nvml| nvml.memory.get()),
        ) {
            (Some(region), Some(memory)) => (region, memory.total),
            _ => {
                let why = gpu
                    .nvml
                    .why()
                    .or(gpu.bar1.why())
                    .cloned()
                    .unwrap_or(Unread::Unsupported);
                survey.unknown(format!("GPU {}", gpu.index), &why);
                continue;
            }
        };
        match region < memory {
            true => survey.bad(format!(
                "GPU {}: {} of {}",
                gpu.index,
                bytes(region),
                bytes(memory)
            )),
            false => survey.good(),
        }
    }
    let is_blocker = facts.shares_over_pcie();
    survey.verdict(
        "BAR1",
        |bad| {
            Verdict::bad(is_blocker, format!("the bus sees only a part of GPU memory (BAR1): {}", few(bad)))
                .why("Peers and network cards reach what BAR1 shows. With 256 MiB direct transfers between GPUs on PCIe are refused or go through the host.")
                .fix("in the firmware: Above 4G Decoding on, Resizable BAR on, CSM off; then look at nvidia-smi -q -d MEMORY (BAR1)")
        },
        || Verdict::ok("the bus sees all of every GPU's memory"),
    )
}

pub(super) fn forced_p2p(facts: &Facts) -> Option<Verdict> {
    // Only where cards hang directly on root ports, without NVLink.
    let is_direct = |gpu: &Gpu| {
        gpu.parents
            .known()
            .is_some_and(|parents| parents.len() == 1)
    };
    if !facts.has_several()
        || !facts.shares_over_pcie()
        || facts.is_virtual()
        || !facts.gpus.iter().any(is_direct)
    {
        return None;
    }
    Some(match facts.driver.registry.as_result() {
        Ok(words) if words.contains("ForceP2P") => Verdict::ok(format!("direct transfers between root ports are forced: {words}")),
        Ok(_) | Err(Unread::Absent) => Verdict::note("GPUs hang on root ports, and nothing forces direct transfers between them")
            .why("On some boards the driver then takes a slow way: kernels that load from a peer get less than 20 GB/s of 53 to 57. Where --probe shows full speed, leave it.")
            .fix("in /etc/modprobe.d/glim-nvidia.conf: options nvidia NVreg_RegistryDwords=\"ForceP2P=0x11;RMForceP2PType=1;RMPcieP2PType=2;GrdmaPciTopoCheckOverride=1;EnableResizableBar=1\"; then update-initramfs -u and reboot"),
        Err(why) => Verdict::unknown("settings of the driver (RegistryDwords)", why),
    })
}

pub(super) fn aspm(facts: &Facts) -> Option<Verdict> {
    let mut survey = Survey::default();
    let gpus = facts
        .gpus
        .iter()
        .map(|gpu| (format!("GPU {}", gpu.index), &gpu.aspm));
    let bridges = facts
        .bridges
        .iter()
        .map(|bridge| (bridge.bus_id.clone(), &bridge.aspm));
    for (name, aspm) in gpus.chain(bridges) {
        match aspm.as_result() {
            Ok(0) | Err(Unread::Absent) => survey.good(),
            Ok(states) => {
                let states = ["", "L0s", "L1", "L0s and L1"][usize::from(states & 3)];
                survey.bad(format!("{name} ({states})"));
            }
            Err(why) => survey.unknown(name, why),
        }
    }
    survey.verdict(
        "whether links may sleep (ASPM)",
        |bad| {
            Verdict::note(format!("links may go to sleep (ASPM): {}", few(bad)))
                .why("Waking takes microseconds, which small collectives wait for; on hosts with several cards it has made links drop by surprise (Xid 79).")
                .fix("kernel command line: pcie_aspm=off pcie_port_pm=off (GRUB_CMDLINE_LINUX in /etc/default/grub, update-grub, reboot); or until the next start: echo performance > /sys/module/pcie_aspm/parameters/policy")
        },
        || Verdict::ok("no link goes to sleep"),
    )
}

pub(super) fn port_power(facts: &Facts) -> Option<Verdict> {
    let mut survey = Survey::default();
    let gpus = facts.gpus.iter().map(|gpu| {
        (
            gpu.bus_id.known().cloned().unwrap_or_default(),
            &gpu.power_control,
        )
    });
    let bridges = facts
        .bridges
        .iter()
        .map(|bridge| (bridge.bus_id.clone(), &bridge.power_control));
    for (name, control) in gpus.chain(bridges) {
        match control.as_result() {
            Ok(control) if control == "auto" => survey.bad(name),
            Ok(_) | Err(Unread::Absent) => survey.good(),
            Err(why) => survey.unknown(name, why),
        }
    }
    let command_line = facts.iommu.command_line.known();
    let is_off =
        command_line.is_some_and(|words| words.iter().any(|word| word == "pcie_port_pm=off"));
    survey.verdict(
        "power management",
        |bad| match is_off {
            true => Verdict::ok("suspending of ports is off (pcie_port_pm=off)"),
            false => Verdict::note(format!("may be suspended while idle: {}", few(bad)))
                .why("A port that is suspended and woken has made cards fall off the bus on hosts with many of them; otherwise it costs nothing.")
                .fix("kernel command line: pcie_port_pm=off; or until the next start, for each: echo on > /sys/bus/pci/devices/PLACE/power/control"),
        },
        || Verdict::ok("nothing is suspended"),
    )
}

pub(super) fn packets(facts: &Facts) -> Option<Verdict> {
    let mut survey = Survey::default();
    let mut seen: Vec<(u32, u32, bool)> = Vec::new();
    for gpu in &facts.gpus {
        match (
            gpu.max_payload.as_result(),
            gpu.max_read_request.as_result(),
            gpu.relaxed_ordering.as_result(),
        ) {
            (Ok(&payload), Ok(&read), Ok(&relaxed)) => {
                let settings = (payload, read, relaxed);
                if !seen.contains(&settings) {
                    seen.push(settings);
                }
            }
            (Err(why), ..) | (_, Err(why), _) | (.., Err(why)) => {
                survey.unknown(format!("GPU {}", gpu.index), why)
            }
        }
    }
    let words = |(payload, read, relaxed): &(u32, u32, bool)| {
        format!(
            "payload {payload}, reads of {read} bytes, relaxed ordering {}",
            if *relaxed { "on" } else { "off" }
        )
    };
    match seen.as_slice() {
        [] => {}
        [one] => {
            survey.good();
            let text = words(one);
            return survey.verdict(
                "packet sizes",
                |_| Verdict::ok(String::new()),
                || Verdict::ok(text),
            );
        }
        several => survey.bad(several.iter().map(words).collect::<Vec<_>>().join("; ")),
    }
    survey.verdict(
        "packet sizes",
        |bad| {
            Verdict::note(format!("GPUs differ in how they send packets: {}", few(bad)))
                .why("A pair runs at the smaller of two payloads. Ports of PEX switches pin reads at 128 bytes, which is normal for them.")
                .fix("leave MaxPayload to the firmware (Auto) and drop pci=pcie_bus_… from the kernel command line")
        },
        || Verdict::ok("no GPU to ask"),
    )
}

pub(super) fn errors(facts: &Facts) -> Option<Verdict> {
    if facts.gpus.is_empty() {
        return None;
    }
    let mut survey = Survey::default();
    let mut fatal = false;
    let gpus = facts
        .gpus
        .iter()
        .map(|gpu| (format!("GPU {}", gpu.index), &gpu.aer));
    let bridges = facts
        .bridges
        .iter()
        .map(|bridge| (bridge.bus_id.clone(), &bridge.aer));
    for (name, aer) in gpus.chain(bridges) {
        let kinds = [
            ("corrected", &aer.correctable),
            ("not corrected", &aer.nonfatal),
            ("fatal", &aer.fatal),
        ];
        let counted: Vec<String> = kinds
            .iter()
            .filter_map(|(kind, count)| {
                Some(format!(
                    "{} {kind}",
                    count.get().filter(|&count| count > 0)?
                ))
            })
            .collect();
        fatal |= aer.fatal.get().is_some_and(|count| count > 0);
        // Without AER the files are not there, and replays (below) are what is left.
        let unknown = kinds
            .iter()
            .find_map(|(_, count)| count.why().filter(|why| **why != Unread::Absent));
        match (counted.is_empty(), unknown) {
            (false, _) => survey.bad(format!("{name}: {}", counted.join(", "))),
            (true, Some(why)) => survey.unknown(name, why),
            (true, None) => survey.good(),
        }
    }
    for gpu in &facts.gpus {
        match gpu
            .nvml
            .as_result()
            .and_then(|nvml| nvml.replays.as_result())
        {
            Ok(0) | Err(Unread::Unsupported | Unread::Absent) => {}
            Ok(replays) => survey.bad(format!("GPU {}: {replays} packets sent again", gpu.index)),
            Err(why) => survey.unknown(format!("replays of GPU {}", gpu.index), why),
        }
    }
    survey.verdict(
        "errors of links",
        |bad| {
            Verdict::note(format!("links reported errors since the system started: {}", few(bad)))
                .why(match fatal {
                    true => "A fatal error means that a link was lost. Seldom is it software.",
                    false => "Corrected errors cost time, and are the first sign of a bad riser, cable or slot; a few since the start are no reason to act, a counter that moves under load is.",
                })
                .fix("note the counters, put load on, look again: grep . /sys/bus/pci/devices/PLACE/aer_dev_correctable; then seat the card again, change the riser, or lower the slot's generation by one")
        },
        || Verdict::ok("no errors of links"),
    )
}
