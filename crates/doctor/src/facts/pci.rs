//! The configuration space of a PCIe function, as far as it matters: link control, device control, Access Control Services.
//!
//! Layout: PCI Express Base Specification 6.0, §7.5 (headers and the capability at id 0x10) and §7.7.11 (ACS, extended id 0x000D);
//! `include/uapi/linux/pci_regs.h` of Linux has the same numbers. Without root the kernel gives the first 64 bytes only, so whatever lies
//! behind them is unknown then. The bytes are not trusted: each walk has a bound, each read is checked.

use serde::Serialize;

use crate::reading::{Reading, Unread};

/// What the kernel gives to everybody.
const HEADER: usize = 64;
/// Where extended capabilities begin.
const EXTENDED: usize = 256;
/// All of the space of a PCIe function.
const WHOLE: usize = 4096;
/// The PCI Express capability.
const EXPRESS: u8 = 0x10;
/// Access Control Services.
const ACS: u16 = 0x000d;
/// Most capabilities that fit: each has at least four bytes, eight in the extended part.
const MAX_CAPABILITIES: usize = (EXTENDED - HEADER) / 4;
const MAX_EXTENDED: usize = (WHOLE - EXTENDED) / 8;

/// Access Control Services of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Acs {
    /// Where the capability lies; its control word is six bytes on.
    pub offset: u16,
    /// What it can do.
    pub capability: u16,
    /// What it does.
    pub control: u16,
}

impl Acs {
    /// P2P Request Redirect and P2P Completion Redirect: traffic between peers goes up to the root.
    pub const REDIRECT: u16 = 1 << 2 | 1 << 3;

    /// Whether traffic between peers is sent to the root.
    pub fn redirects(self) -> bool {
        self.control & Self::REDIRECT != 0
    }

    /// As `lspci` prints it: `SrcValid+ ReqRedir+ …`, those that are on.
    pub fn words(self) -> String {
        const NAMES: [&str; 7] = [
            "SrcValid",
            "TransBlk",
            "ReqRedir",
            "CmpltRedir",
            "UpstreamFwd",
            "EgressCtrl",
            "DirectTrans",
        ];
        let on = NAMES
            .iter()
            .enumerate()
            .filter(|(bit, _)| self.control >> bit & 1 == 1);
        on.map(|(_, name)| format!("{name}+"))
            .collect::<Vec<_>>()
            .join(" ")
    }
}

/// What a function is (Device/Port Type of the capabilities register).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Port {
    /// A device.
    Endpoint,
    /// A port of the root complex.
    Root,
    /// A switch's side to the root.
    Upstream,
    /// A switch's side to devices.
    Downstream,
    /// Something else, by its number.
    Other(u8),
}

/// Device and link control of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Express {
    pub(crate) port: Port,
    /// Link states that the link may sleep in: bit 0 L0s, bit 1 L1.
    pub(crate) aspm: u8,
    /// Bytes.
    pub(crate) max_payload: u32,
    /// Bytes.
    pub(crate) max_read_request: u32,
    pub(crate) relaxed_ordering: bool,
}

fn byte(config: &[u8], at: usize) -> Option<u8> {
    config.get(at).copied()
}

fn word(config: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(
        config.get(at..at.checked_add(2)?)?.try_into().ok()?,
    ))
}

fn double(config: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(
        config.get(at..at.checked_add(4)?)?.try_into().ok()?,
    ))
}

/// Why the rest of a space is not there.
fn cut<T>(config: &[u8], needed: usize) -> Reading<T> {
    match config.len() {
        HEADER => Unread::NeedsRoot.into(),
        length => Reading::unclear(format!(
            "its configuration space has {length} bytes, and {needed} are needed"
        )),
    }
}

/// Where the capability of an id lies: the chain from 0x34 on.
fn find(config: &[u8], id: u8) -> Reading<usize> {
    // Without the bit "capabilities list" of the status register there is no chain.
    match word(config, 0x06) {
        Some(status) if status & 1 << 4 != 0 => {}
        Some(0xffff) | None => return cut(config, HEADER),
        Some(_) => return Unread::Absent.into(),
    }
    let Some(mut at) = byte(config, 0x34) else {
        return cut(config, HEADER);
    };
    for _ in 0..MAX_CAPABILITIES {
        at &= 0xfc;
        if usize::from(at) < HEADER {
            return Unread::Absent.into();
        }
        let (Some(found), Some(next)) =
            (byte(config, at.into()), byte(config, usize::from(at) + 1))
        else {
            return cut(config, EXTENDED);
        };
        if found == id {
            return Reading::Known(at.into());
        }
        at = next;
    }
    Reading::unclear("its capabilities form a circle")
}

/// Where the extended capability of an id lies: the chain from 0x100 on.
fn find_extended(config: &[u8], id: u16) -> Reading<usize> {
    if config.len() <= EXTENDED {
        return cut(config, WHOLE);
    }
    let mut at = EXTENDED;
    for _ in 0..MAX_EXTENDED {
        let Some(header) = double(config, at) else {
            return cut(config, WHOLE);
        };
        if header == 0 || header == u32::MAX {
            return Unread::Absent.into();
        }
        if header as u16 == id {
            return Reading::Known(at);
        }
        at = (header >> 20) as usize & 0xffc;
        if at < EXTENDED {
            return Unread::Absent.into();
        }
    }
    Reading::unclear("its extended capabilities form a circle")
}

/// A value of registers that may lie behind the end.
fn registers<T>(config: &[u8], value: Option<T>) -> Reading<T> {
    value.map_or_else(|| cut(config, WHOLE), Reading::Known)
}

/// The PCI Express capability; absent for a function that is none.
pub(crate) fn express(config: &[u8]) -> Reading<Express> {
    find(config, EXPRESS).and_then(|at| {
        let read = || {
            let flags = word(config, at + 0x02)?;
            let device_control = word(config, at + 0x08)?;
            let link_control = word(config, at + 0x10)?;
            Some(Express {
                port: match flags >> 4 & 0xf {
                    0 | 1 => Port::Endpoint,
                    4 => Port::Root,
                    5 => Port::Upstream,
                    6 => Port::Downstream,
                    other => Port::Other(other as u8),
                },
                aspm: (link_control & 3) as u8,
                max_payload: 128 << (device_control >> 5 & 7),
                max_read_request: 128 << (device_control >> 12 & 7),
                relaxed_ordering: device_control & 1 << 4 != 0,
            })
        };
        registers(config, read())
    })
}

/// Access Control Services; absent where there are none.
pub(crate) fn acs(config: &[u8]) -> Reading<Acs> {
    find_extended(config, ACS).and_then(|at| {
        let read = || {
            Some(Acs {
                offset: at as u16,
                capability: word(config, at + 4)?,
                control: word(config, at + 6)?,
            })
        };
        registers(config, read())
    })
}

/// The parts of a configuration space that are used here: header, the chains, the two capabilities. All else becomes zeros.
pub(crate) fn essence(config: &[u8]) -> Vec<u8> {
    let mut kept = vec![0; config.len()];
    let mut keep = |from: usize, length: usize| {
        let to = from.saturating_add(length).min(config.len());
        if let (Some(kept), Some(bytes)) = (kept.get_mut(from..to), config.get(from..to)) {
            kept.copy_from_slice(bytes);
        }
    };
    // Identity, command, status, class; the buses of a bridge; the chain's first link.
    keep(0, 0x10);
    keep(0x18, 4);
    keep(0x34, 1);
    let mut at = usize::from(byte(config, 0x34).unwrap_or(0) & 0xfc);
    for _ in 0..MAX_CAPABILITIES {
        let (Some(id), Some(next)) = (byte(config, at), byte(config, at + 1)) else {
            break;
        };
        if at < HEADER {
            break;
        }
        keep(at, if id == EXPRESS { 0x3c } else { 2 });
        at = usize::from(next & 0xfc);
    }
    let mut at = EXTENDED;
    for _ in 0..MAX_EXTENDED {
        let Some(header) = double(config, at) else {
            break;
        };
        keep(at, if header as u16 == ACS { 8 } else { 4 });
        at = (header >> 20) as usize & 0xffc;
        if at < EXTENDED {
            break;
        }
    }
    kept
}

/// `0000:19:00.0` of a place on the bus as tools write it: `00000000:19:00.0`, `19:00.0`, in any case.
pub(crate) fn bus_id(text: &str) -> Option<String> {
    let text = text.trim().to_ascii_lowercase();
    let (before, function) = text.rsplit_once('.')?;
    let mut parts = before.rsplit(':');
    let (device, bus) = (parts.next()?, parts.next()?);
    let domain = parts.next().unwrap_or("0");
    if parts.next().is_some() {
        return None;
    }
    let hex = |part: &str| u32::from_str_radix(part, 16).ok();
    Some(format!(
        "{:04x}:{:02x}:{:02x}.{:x}",
        hex(domain)?,
        hex(bus)?,
        hex(device)?,
        hex(function)?
    ))
}

/// The bridges above a device, the root port first, and the host bridge `pci0000:16`, from the target of its link in
/// `/sys/bus/pci/devices`: `../../../devices/pci0000:16/0000:16:01.0/0000:17:00.0/0000:19:00.0`.
pub(crate) fn chain(link: &str) -> Option<(String, Vec<String>)> {
    let mut parts = link.split('/').skip_while(|part| !part.starts_with("pci"));
    let host = parts.next()?.to_owned();
    let mut bridges: Vec<String> = parts.map(bus_id).collect::<Option<_>>()?;
    // The last one is the device itself.
    bridges.pop()?;
    Some((host, bridges))
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// A port of a switch with ACS at 0x170, as a PEX890xx has it, behind two other capabilities.
    pub(crate) fn port(control: u16) -> Vec<u8> {
        let mut config = vec![0; WHOLE];
        config[..8].copy_from_slice(&[0x00, 0x10, 0x30, 0xc0, 0x07, 0x01, 0x10, 0x00]);
        config[0x34] = 0x40;
        config[0x40..0x42].copy_from_slice(&[0x01, 0x68]);
        // Downstream port; payload 512, read request 128; ASPM L1.
        config[0x68..0x6c].copy_from_slice(&[0x10, 0x00, 0x62, 0x01]);
        config[0x70..0x72].copy_from_slice(&[0x40, 0x00]);
        config[0x78..0x7a].copy_from_slice(&[0x42, 0x00]);
        config[0x100..0x104].copy_from_slice(&[0x03, 0x00, 0x01, 0x14]);
        config[0x140..0x144].copy_from_slice(&[0x01, 0x00, 0x02, 0x17]);
        config[0x170..0x178].copy_from_slice(&[
            0x0d,
            0x00,
            0x01,
            0x00,
            0x5f,
            0x00,
            control as u8,
            (control >> 8) as u8,
        ]);
        config
    }

    #[test]
    fn acs_is_found_behind_other_capabilities() {
        let found = acs(&port(0x001d)).get().unwrap();
        assert_eq!(
            (found.offset, found.capability, found.control),
            (0x170, 0x5f, 0x1d)
        );
        assert!(found.redirects());
        assert_eq!(
            found.words(),
            "SrcValid+ ReqRedir+ CmpltRedir+ UpstreamFwd+"
        );
        assert!(!acs(&port(0x0011)).get().unwrap().redirects());
    }

    #[test]
    fn registers_of_the_express_capability() {
        let express = express(&port(0)).get().unwrap();
        assert_eq!(
            express,
            Express {
                port: Port::Downstream,
                aspm: 2,
                max_payload: 512,
                max_read_request: 128,
                relaxed_ordering: false
            }
        );
    }

    #[test]
    fn what_root_alone_may_see_is_not_taken_for_absent() {
        let config = port(0x1d);
        assert_eq!(acs(&config[..64]).why(), Some(&Unread::NeedsRoot));
        assert_eq!(express(&config[..64]).why(), Some(&Unread::NeedsRoot));
        for length in [0, 1, 63, 65, 255, 256, 257, 0x16f, 0x172, 0x177] {
            let found = acs(&config[..length]);
            assert!(
                matches!(found.why(), Some(Unread::Other(_))),
                "{length}: {found:?}"
            );
        }
        assert!(acs(&config[..0x178]).known().is_some());
    }

    #[test]
    fn a_device_that_is_gone_reads_as_ones_and_is_no_device_without_acs_that_was_checked() {
        let gone = vec![0xff; WHOLE];
        assert!(express(&gone).known().is_none());
        assert!(acs(&gone).known().is_none());
        assert_eq!(acs(&[0; WHOLE]).why(), Some(&Unread::Absent));
        assert_eq!(express(&[0; WHOLE]).why(), Some(&Unread::Absent));
    }

    #[test]
    fn circles_end() {
        let mut config = port(0);
        config[0x41] = 0x40;
        config[0x142..0x144].copy_from_slice(&[0x02, 0x10]);
        let words = |why: Option<&Unread>| why.map(ToString::to_string).unwrap_or_default();
        assert!(words(express(&config).why()).contains("circle"));
        assert!(words(acs(&config).why()).contains("circle"));
        assert_eq!(essence(&config).len(), WHOLE);
    }

    #[test]
    fn the_essence_answers_as_the_whole() {
        let mut config = port(0x1d);
        // A serial number, which is nobody's business.
        config[0x104..0x10c].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        let kept = essence(&config);
        assert_eq!(acs(&kept), acs(&config));
        assert_eq!(express(&kept), express(&config));
        assert_eq!(kept[0x104..0x10c], [0; 8]);
        for length in 0..300 {
            assert_eq!(essence(&config[..length]).len(), length);
        }
    }

    #[test]
    fn places_on_the_bus_have_one_form() {
        for (text, expected) in [
            ("00000000:19:00.0", Some("0000:19:00.0")),
            ("0000:AF:1f.7", Some("0000:af:1f.7")),
            ("3b:00.0", Some("0000:3b:00.0")),
            ("pci0000:16", None),
            ("", None),
            ("1:2:3:4.5", None),
            ("x:00.0", None),
        ] {
            assert_eq!(bus_id(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn parents_come_from_the_link() {
        let (host, bridges) = chain(
            "../../../devices/pci0000:10/0000:10:01.1/0000:11:00.0/0000:12:00.0/0000:13:00.0",
        )
        .unwrap();
        assert_eq!(host, "pci0000:10");
        assert_eq!(bridges, ["0000:10:01.1", "0000:11:00.0", "0000:12:00.0"]);
        assert_eq!(
            chain("../../../devices/pci0000:00/0000:00:05.0").unwrap().1,
            Vec::<String>::new()
        );
        for hostile in [
            "",
            "pci0000:00",
            "../../devices/pci0000:00/virtio0/0000:00:05.0",
        ] {
            assert_eq!(chain(hostile), None, "{hostile}");
        }
    }
}
