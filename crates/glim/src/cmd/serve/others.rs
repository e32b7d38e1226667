//! Programs that are no glim, and so have no lock, but have a device that is needed.
//!
//! NVML and `/proc` name them (`glim_doctor::Holders`). A GPU is held if a process computes on it, however little memory that has taken
//! so far, or if much memory is in use that no process in sight holds. Displays and open handles hold none: whether their memory leaves
//! enough is seen when the model's needs are known (`gpu_memory.rs`).

use std::path::{Path, PathBuf};

use glim_doctor::{Holder, Holders};

use crate::exit::Failure;
use crate::{host, units};

/// Holders that are named at most.
const MAX_NAMED: usize = 16;

/// What somebody may hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Device {
    /// A GPU, by its place on the PCI bus.
    Gpu(String),
    /// For tests: a file that stands for one.
    File(PathBuf),
}

/// Who holds devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Others {
    /// Nobody.
    Nobody,
    /// That cannot be told, and why.
    Untold(String),
    /// These, each in words.
    Hold(Vec<String>),
}

impl Device {
    pub(super) fn named(name: &str) -> Self {
        match Path::new(name) {
            path if path.is_absolute() => {
                Self::File(path.canonicalize().unwrap_or(path.to_owned()))
            }
            _ => Self::Gpu(name.to_owned()),
        }
    }

    /// What its lock is called.
    pub(super) fn lock(&self) -> String {
        match self {
            Self::Gpu(bus_id) => format!("gpu-{}", bus_id.to_ascii_lowercase()),
            Self::File(path) => path.display().to_string(),
        }
    }
}

/// Looks once.
///
/// # Errors
/// If a recording that a test names cannot be read.
pub(super) fn look(devices: &[Device]) -> Result<Others, Failure> {
    let (mut gpus, mut files) = (Vec::new(), Vec::new());
    for device in devices {
        match device {
            Device::Gpu(bus_id) => gpus.push(bus_id.as_str()),
            Device::File(path) => files.push(path.clone()),
        }
    }
    let mut hold = Vec::new();
    let mut untold = None;
    if !files.is_empty() {
        hold.extend(of_files(&files));
    }
    if !gpus.is_empty() {
        let (own, why) = of_gpus(&Holders::now(&*host::machine()?), &gpus);
        hold.extend(own);
        untold = why;
    }
    hold.truncate(MAX_NAMED);
    Ok(match untold {
        _ if !hold.is_empty() => Others::Hold(hold),
        Some(why) => Others::Untold(why),
        None => Others::Nobody,
    })
}

/// What is known of a process: as a holder of GPUs, if it is seen to be one.
pub(super) fn known_of(pid: u32) -> Option<String> {
    let machine = host::machine().ok()?;
    let holders = Holders::now(&*machine);
    let mut processes = holders.processes.known().into_iter().flatten();
    let holder = processes.find(|holder| holder.pid == pid).cloned();
    let holder = holder.or_else(|| Holders::of_process(pid))?;
    Some(holder.line())
}

fn is_other(holder: &Holder) -> bool {
    holder.pid != std::process::id()
}

fn of_files(files: &[PathBuf]) -> Vec<String> {
    let holders = Holders::of_files(files);
    let others = holders.known().into_iter().flatten();
    let others = others.filter(|holder| is_other(holder));
    let told = others.map(|holder| {
        let device = holder.devices.join(", ");
        format!("{device} is held by {}", holder.line())
    });
    told.collect()
}

/// Who holds GPUs, by their places on the bus; and why that cannot be told of some, if it cannot.
fn of_gpus(holders: &Holders, gpus: &[&str]) -> (Vec<String>, Option<String>) {
    let (mut indices, mut untold) = (Vec::new(), None);
    for bus_id in gpus {
        match holders.at(bus_id) {
            Some(index) if holders.gpus[index].is_cut => {
                let why = "NVML does not tell which instance (MIG) a process is on";
                untold = Some(format!("{bus_id}: {why}"));
            }
            Some(index) => indices.push((index, *bus_id)),
            None => {
                let why = holders.untold.as_ref().map(ToString::to_string);
                let why = why.unwrap_or_else(|| "it does not know this GPU".to_owned());
                untold = Some(format!("{bus_id}: NVML: {why}"));
            }
        }
    }
    let of = |index| {
        let mut places = indices.iter().filter(|(of, _)| *of == index);
        places.next().map_or("", |(_, bus_id)| bus_id)
    };
    let only: Vec<usize> = indices.iter().map(|(index, _)| *index).collect();
    let held = holders.held(&only);
    if let Some(why) = &held.unknown {
        untold = Some(format!("NVML: {why}"));
    }
    let mut told = Vec::new();
    for holder in held.processes.iter().filter(|holder| is_other(holder)) {
        let on = holder.gpus.iter().map(|on| on.gpu);
        let on: Vec<&str> = on.filter(|gpu| only.contains(gpu)).map(of).collect();
        let are = if on.len() == 1 { "is" } else { "are" };
        told.push(format!(
            "GPU {} {are} held by {}",
            on.join(", "),
            holder.line()
        ));
    }
    for (index, bytes) in held.unattributed {
        told.push(format!(
            "GPU {}: {} are in use that no process in sight holds (one of another container, or one that died in the driver)",
            of(index),
            units::bytes(bytes)
        ));
    }
    (told, untold)
}
