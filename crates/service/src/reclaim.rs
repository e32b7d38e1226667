//! Ends a glim that is hung and keeps its GPUs: never anything else.
//!
//! A process is ended only if all of this is so: its lock is held; the lock names it by number **and** start, in this run of the system;
//! it belongs to our user and our unit (or both to none); it runs our program; and it has given no sign of life for longer than it said
//! of itself that it would. It is signalled through a descriptor (`pidfd_open(2)`) that was opened before its start was compared, so that
//! another process that gets its number meanwhile cannot be met.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use glim_doctor::process::{Identity, ProcFs};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

use crate::lock::{Held, Owner};

/// Time between two looks at a process that is to end.
const LOOK: Duration = Duration::from_millis(20);

/// Why a holder is not ended, or did not end.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ReclaimError {
    /// One of the proofs is missing.
    #[error("the holder is not ended: {0}")]
    NotOurs(String),
    /// The system does not let us.
    #[error("process {pid} cannot be ended: {why}")]
    Refused {
        /// Which.
        pid: u32,
        /// The system's reason.
        why: String,
    },
    /// SIGKILL did not help.
    #[error(
        "process {pid} does not end, not even by SIGKILL (state {state}): it is stuck in the driver, and only a restart of the machine, or a reset of the GPU by its operator, helps"
    )]
    Immortal {
        /// Which.
        pid: u32,
        /// `D`: it waits in the kernel.
        state: char,
    },
}

/// The holder, if it may be ended by a process like `us`.
///
/// # Errors
/// Says which proof is missing.
pub fn provable(held: &Held, us: &Owner, processes: &ProcFs) -> Result<Identity, ReclaimError> {
    let not = |why: String| Err(ReclaimError::NotOurs(why));
    let Some(owner) = &held.owner else {
        return not("it has not said who it is".to_owned());
    };
    let pid = owner.pid;
    if owner.boot != us.boot || !processes.is_alive(owner.identity()) {
        return not(format!("process {pid} is not the one that took the lock"));
    }
    if owner.uid != us.uid || processes.uid(pid).get() != Some(us.uid) {
        return not(format!("process {pid} belongs to another user"));
    }
    if owner.unit != us.unit || processes.service(pid) != us.unit {
        let name = |unit: &Option<String>| unit.clone().unwrap_or_else(|| "no unit".to_owned());
        let (its, ours) = (name(&owner.unit), name(&us.unit));
        return not(format!("process {pid} is of {its}, and this one of {ours}"));
    }
    let runs = processes.executable(pid);
    if runs.as_ref() != Some(&owner.executable) || owner.executable != us.executable {
        return not(format!("process {pid} does not run this program"));
    }
    let (silence, patience) = (held.silence, Duration::from_secs(owner.patience));
    if silence <= patience {
        return not(format!(
            "process {pid} gave a sign of life {} s ago, and is hung only after {} s without one",
            silence.as_secs(),
            patience.as_secs()
        ));
    }
    Ok(owner.identity())
}

/// Ends a process: SIGTERM, and after `grace` SIGKILL. Returns when it is gone, and with it its locks and its memory.
///
/// # Errors
/// If it cannot be signalled, or is still there after SIGKILL and another `grace`.
pub fn end(process: Identity, grace: Duration, processes: &ProcFs) -> Result<(), ReclaimError> {
    let refused = |error: io::Error| ReclaimError::Refused {
        pid: process.pid,
        why: error.to_string(),
    };
    let target = Target::new(process).map_err(refused)?;
    for signal in [Signal::TERM, Signal::KILL] {
        // The descriptor is of whatever had this number when it was opened: now it is known which process that was.
        if !processes.is_alive(process) {
            return Ok(());
        }
        match target.signal(signal) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {
                return Ok(());
            }
            Err(error) => return Err(refused(error)),
        }
        let until = Instant::now() + grace;
        while processes.is_alive(process) && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
    }
    match processes.stat(process.pid) {
        Some(stat) if processes.is_alive(process) => Err(ReclaimError::Immortal {
            pid: process.pid,
            state: stat.state,
        }),
        _ => Ok(()),
    }
}

/// How a process is signalled.
enum Target {
    Descriptor(OwnedFd),
    /// On kernels before 5.3.
    Number(Pid),
}

impl Target {
    fn new(process: Identity) -> io::Result<Self> {
        let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("this is no number of a process"))?;
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(descriptor) => Ok(Self::Descriptor(descriptor)),
            Err(rustix::io::Errno::NOSYS) => Ok(Self::Number(pid)),
            // It has gone: whoever signals the number will be told so.
            Err(rustix::io::Errno::SRCH) => Ok(Self::Number(pid)),
            Err(error) => Err(error.into()),
        }
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        match self {
            Self::Descriptor(descriptor) => pidfd_send_signal(descriptor, signal)?,
            Self::Number(pid) => kill_process(*pid, signal)?,
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    const GRACE: Duration = Duration::from_millis(500);

    /// A process that is its own group of tests' and deaf to SIGTERM if asked for.
    fn child(deaf: bool) -> (Child, Identity) {
        let script = match deaf {
            true => "trap '' TERM; echo; while :; do sleep 0.05; done",
            false => "echo; exec sleep 600",
        };
        let mut child = Command::new("sh")
            .args(["-c", script])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // Its first byte: the trap is set.
        let mut byte = [0];
        io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut byte).unwrap();
        let pid = child.id();
        let start = ProcFs::default().stat(pid).unwrap().start;
        (child, Identity { pid, start })
    }

    /// What the lock of that child would say if it were hung.
    fn held(process: Identity) -> (Held, Owner) {
        let us = Owner::this(&["gpu-0".to_owned()], Duration::from_secs(60)).unwrap();
        let owner = Owner {
            pid: process.pid,
            start: process.start,
            executable: ProcFs::default().executable(process.pid).unwrap(),
            ..us.clone()
        };
        let us = Owner {
            executable: owner.executable.clone(),
            ..us
        };
        let held = Held {
            owner: Some(owner),
            silence: Duration::from_secs(61),
        };
        (held, us)
    }

    #[test]
    fn only_a_hung_process_of_this_user_unit_and_program_may_be_ended() {
        let (mut child, process) = child(false);
        let processes = ProcFs::default();
        let (hung, us) = held(process);
        let judged = |held: &Held, us: &Owner| provable(held, us, &processes);
        let right = judged(&hung, &us);
        let with = |edit: &dyn Fn(&mut Owner)| {
            let mut changed = hung.clone();
            edit(changed.owner.as_mut().unwrap());
            judged(&changed, &us).unwrap_err().to_string()
        };
        let wrongs = [
            (with(&|owner| owner.start += 1), "not the one"),
            (with(&|owner| owner.boot.push('x')), "not the one"),
            (with(&|owner| owner.uid += 1), "another user"),
            (
                with(&|owner| owner.unit = Some("x.service".into())),
                "x.service",
            ),
            (with(&|owner| owner.executable.push("x")), "this program"),
            (with(&|owner| owner.patience = 3600), "sign of life"),
        ];
        let unnamed = Held {
            owner: None,
            ..hung.clone()
        };
        let unnamed = judged(&unnamed, &us).unwrap_err().to_string();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(right, Ok(process));
        assert!(unnamed.contains("not said"), "{unnamed}");
        for (told, word) in wrongs {
            assert!(told.contains(word), "{told}");
        }
        let gone = judged(&hung, &us).unwrap_err().to_string();
        assert!(gone.contains("not the one"), "{gone}");
    }

    #[test]
    fn a_process_ends_by_sigterm_and_a_deaf_one_by_sigkill() {
        use std::os::unix::process::ExitStatusExt;
        for (deaf, signal) in [(false, 15), (true, 9)] {
            let (mut child, process) = child(deaf);
            end(process, GRACE, &ProcFs::default()).unwrap();
            assert_eq!(child.wait().unwrap().signal(), Some(signal));
        }
    }

    #[test]
    fn a_number_that_another_process_has_now_is_not_signalled() {
        let (mut child, process) = child(false);
        let other = Identity {
            start: process.start + 1,
            ..process
        };
        end(other, GRACE, &ProcFs::default()).unwrap();
        assert!(child.try_wait().unwrap().is_none(), "it was not meant");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
