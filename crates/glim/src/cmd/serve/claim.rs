//! The GPUs that a server needs, held by lock files from before the model is opened until the process ends.
//!
//! A GPU that another glim holds ends the start with code 69 and the holder's name, which a service manager takes for final. Waiting for
//! it, or ending a holder that is hung, happens only where the operator asks for it.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use clap::Args;
use glim_doctor::process::ProcFs;
use glim_server::Lifecycle;
use glim_service::lock::{self, Held, LockError, Locks, Owner};
use glim_service::reclaim::{self, ReclaimError};

use super::MAX_SECONDS;
use super::others::{self, Device, Others};
use crate::exit::{Exit, Failure};
use crate::gpu::Gpus;

/// Time between two attempts.
const POLL: Duration = Duration::from_millis(250);
/// Time that a hung holder gets after SIGTERM, and again after SIGKILL; and its memory to become free.
const GRACE: Duration = Duration::from_secs(10);
/// Time that others get before they count as holders: one that has just ended leaves the driver to clear up behind it.
const SETTLE: Duration = Duration::from_secs(3);
/// Silence beyond a step's longest time that makes a holder hung.
const SILENCE: Duration = Duration::from_secs(30);

/// What becomes of a GPU that is held.
#[derive(Debug, Args)]
#[command(next_help_heading = "GPUs that others hold")]
pub(super) struct ClaimArgs {
    /// How long to wait for GPUs that another process holds, before it is named and the start fails
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = crate::units::seconds(0..=MAX_SECONDS))]
    wait_for_gpu: u64,
    /// End a glim that is hung and holds them, if it is of this user, this unit and this program; never anything else
    #[arg(long)]
    reclaim: bool,
    /// Start beside other programs that compute on them, if the memory that they leave is enough; never beside another glim serve
    #[arg(long)]
    share_gpu: bool,
    /// For tests: hold this too, a GPU by its place on the bus, or the path of a file that stands for one
    #[arg(long, value_name = "DEVICE", hide = true)]
    hold_device: Vec<String>,
}

/// Locks once they are held; shared with the thread that gives signs of life.
pub(super) type Shared = Arc<OnceLock<Locks>>;

/// What is to be held, and perhaps is already.
pub(super) struct Claim {
    folder: PathBuf,
    owner: Owner,
    devices: Vec<Device>,
    patience: Option<Duration>,
    reclaims: bool,
    shares: bool,
    locks: Shared,
}

impl Claim {
    /// Tries once. Where the operator wants to wait, a failure is none yet.
    ///
    /// # Errors
    /// If a device is held, or lock files cannot be made.
    pub(super) fn begin(
        args: &ClaimArgs,
        gpus: Option<&Gpus>,
        step_timeout: Duration,
    ) -> Result<Self, Failure> {
        let of_gpus = gpus.into_iter().flat_map(|gpus| &gpus.of_ranks);
        let of_gpus = of_gpus.map(|gpu| Device::Gpu(gpu.bus_id.clone()));
        let of_tests = args.hold_device.iter().map(|name| Device::named(name));
        let mut devices: Vec<Device> = of_gpus.chain(of_tests).collect();
        // Ranks that share a GPU stand beside each other.
        devices.dedup();
        let mut names: Vec<String> = devices.iter().map(Device::lock).collect();
        names.sort();
        names.dedup();
        let owner = Owner::this(&names, step_timeout + SILENCE).map_err(|error| {
            Failure::new(
                Exit::Temporary,
                format!("this process cannot be named: {error}"),
            )
        })?;
        let variable = |name| std::env::var_os(name);
        let folder = lock::folder(
            variable("RUNTIME_DIRECTORY").as_deref(),
            variable("XDG_RUNTIME_DIR").as_deref(),
            &std::env::temp_dir(),
        );
        let claim = Self {
            folder,
            owner,
            devices,
            patience: (args.wait_for_gpu > 0).then(|| Duration::from_secs(args.wait_for_gpu)),
            reclaims: args.reclaim,
            shares: args.share_gpu,
            locks: Shared::default(),
        };
        // Who waits anyhow does not wait here, where nobody is answered yet.
        let settle = match claim.patience {
            Some(_) => Duration::ZERO,
            None => SETTLE,
        };
        if claim.devices.is_empty() {
            return Ok(claim);
        }
        match claim.attempt(settle) {
            Err(failure) if !claim.may_wait_for(&failure) => Err(failure),
            _ => Ok(claim),
        }
    }

    /// The locks, as soon as they are held.
    pub(super) fn locks(&self) -> Shared {
        self.locks.clone()
    }

    /// Waits until all is held, if it is not and the operator wants to wait.
    ///
    /// # Errors
    /// If that takes too long.
    pub(super) fn finish(&self, lifecycle: &Lifecycle) -> Result<(), Failure> {
        if self.devices.is_empty() || self.locks.get().is_some() {
            return Ok(());
        }
        lifecycle.loading("waiting for GPUs");
        let until = Instant::now() + self.patience.unwrap_or_default();
        loop {
            match self.attempt(Duration::ZERO) {
                Err(failure) if self.may_wait_for(&failure) && Instant::now() < until => {
                    lifecycle.worked(1);
                    std::thread::sleep(POLL);
                }
                result => return result,
            }
        }
    }

    fn may_wait_for(&self, failure: &Failure) -> bool {
        self.patience.is_some() && failure.exit() == Exit::Unavailable
    }

    /// Places on the bus of the GPUs that are claimed.
    pub(super) fn gpus(&self) -> Vec<String> {
        let place = |device: &Device| match device {
            Device::Gpu(bus_id) => Some(bus_id.clone()),
            Device::File(_) => None,
        };
        self.devices.iter().filter_map(place).collect()
    }

    /// Takes all locks, or says who has one; then no other program may have a device, for longer than `settle`.
    fn attempt(&self, settle: Duration) -> Result<(), Failure> {
        let mut settle = settle;
        let locks = match Locks::take(&self.folder, &self.owner) {
            Ok(locks) => locks,
            Err(LockError::Held { device, holder }) if self.reclaims => {
                self.reclaim(&device, &holder)?;
                settle = GRACE;
                Locks::take(&self.folder, &self.owner).map_err(of_lock)?
            }
            Err(error) => return Err(of_lock(error)),
        };
        // Whoever comes later finds our lock; who was there before, or takes none, has to be looked for.
        self.alone_within(settle)?;
        let _ = self.locks.set(locks);
        Ok(())
    }

    fn alone_within(&self, settle: Duration) -> Result<(), Failure> {
        let until = Instant::now() + settle;
        loop {
            match others::look(&self.devices)? {
                Others::Nobody => return Ok(()),
                Others::Untold(why) => {
                    tracing::warn!(why, "whether others hold the GPUs cannot be told");
                    return Ok(());
                }
                Others::Hold(who) if self.shares => {
                    tracing::warn!(who = who.join("; "), "the GPUs are shared");
                    return Ok(());
                }
                Others::Hold(who) if Instant::now() >= until => return Err(held_by(&who)),
                Others::Hold(_) => std::thread::sleep(POLL),
            }
        }
    }

    fn reclaim(&self, device: &str, holder: &Held) -> Result<(), Failure> {
        let failed = |error: ReclaimError| {
            Failure::new(
                Exit::Unavailable,
                format!("{device} is held by {holder}, and --reclaim does not help: {error}"),
            )
        };
        let processes = ProcFs::default();
        let process = reclaim::provable(holder, &self.owner, &processes).map_err(failed)?;
        tracing::warn!(
            device,
            pid = process.pid,
            "a hung glim holds a GPU: it is ended"
        );
        reclaim::end(process, GRACE, &processes).map_err(failed)
    }
}

fn of_lock(error: LockError) -> Failure {
    match &error {
        LockError::Held { holder, .. } => {
            let mut message = error.to_string();
            let pid = holder.owner.as_ref().map(|owner| owner.pid);
            if let Some(known) = pid.and_then(others::known_of) {
                message += &format!("; {known}");
            }
            Failure::new(Exit::Unavailable, message).hint(
                "end it, or choose other GPUs (--device); --wait-for-gpu waits for it, and --reclaim ends one of yours that is hung",
            )
        }
        LockError::Folder { .. } | LockError::File { .. } => {
            Failure::new(Exit::Config, error.to_string())
        }
    }
}

fn held_by(who: &[String]) -> Failure {
    Failure::new(Exit::Unavailable, who.join("; ")).hint(
        "end it, choose other GPUs (--device), or start beside it if the memory is enough (--share-gpu); --wait-for-gpu waits for it",
    )
}
