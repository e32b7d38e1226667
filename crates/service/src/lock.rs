//! One glim for each GPU: a lock file for each device.
//!
//! What excludes others is the kernel's lock on the open file (`flock(2)`): it is taken atomically, so of two that start together exactly
//! one gets it, and it ends with its process, however that ends. What stands in the file only says who that is, for messages and for
//! [`crate::reclaim`]; a file that nobody has locked means nothing, whatever it says. Files are never removed: whoever had opened one
//! before would lock a file that no other can see.
//!
//! The file's time of change is the holder's heartbeat: it touches it while it is well. Whether a holder is hung is decided by that.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use glim_doctor::process::{Identity, ProcFs};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

/// Attempts to read what a holder, which may have locked a moment ago, writes of itself; and the time between them.
const READS: u32 = 20;
const BETWEEN_READS: Duration = Duration::from_millis(10);
/// Most bytes that are read of a lock file.
const MAX_BYTES: u64 = 64 << 10;

/// Who holds a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Number of the process.
    pub pid: u32,
    /// When it began, in clock ticks since the system did: a number may be used again, a number and a start not.
    pub start: u64,
    /// The run of the system in which that was.
    pub boot: String,
    /// Its user, by number.
    pub uid: u32,
    /// Its program.
    pub executable: PathBuf,
    /// The systemd service that it is a part of.
    pub unit: Option<String>,
    /// All devices that it holds.
    pub devices: Vec<String>,
    /// Seconds of silence after which it says of itself that it is hung.
    pub patience: u64,
}

/// Why a device cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another glim has it.
    #[error("{device} is held by {holder}")]
    Held {
        /// The first of those that are wanted.
        device: String,
        /// By whom.
        holder: Box<Held>,
    },
    /// The folder cannot be used.
    #[error("lock files cannot be kept in {}: {why}; set RUNTIME_DIRECTORY or XDG_RUNTIME_DIR to a folder that is this user's alone", path.display())]
    Folder {
        /// Where.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A file cannot be used.
    #[error("the lock file {} cannot be used: {source}", path.display())]
    File {
        /// Where.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

/// A holder, as its file shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// `None`: it has not written who it is.
    pub owner: Option<Owner>,
    /// Time since its last sign of life.
    pub silence: Duration,
}

impl std::fmt::Display for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Some(owner) = &self.owner else {
            return f.write_str("a process that has not said who it is");
        };
        write!(f, "glim with pid {} of user {}", owner.pid, owner.uid)?;
        if let Some(unit) = &owner.unit {
            write!(f, " in {unit}")?;
        }
        if self.silence > Duration::from_secs(owner.patience) {
            let (silence, patience) = (self.silence.as_secs(), owner.patience);
            write!(
                f,
                ", which is hung: no sign of life for {silence} s, and {patience} s are its limit"
            )?;
        }
        Ok(())
    }
}

impl Owner {
    /// This process.
    ///
    /// # Errors
    /// If `/proc` does not show it.
    pub fn this(devices: &[String], patience: Duration) -> io::Result<Self> {
        let processes = ProcFs::default();
        let pid = std::process::id();
        let stat = processes
            .stat(pid)
            .ok_or_else(|| io::Error::other("/proc does not show this process"))?;
        Ok(Self {
            pid,
            start: stat.start,
            boot: boot()?,
            uid: rustix::process::getuid().as_raw(),
            executable: std::env::current_exe()?,
            unit: processes.service(pid),
            devices: devices.to_vec(),
            patience: patience.as_secs(),
        })
    }

    /// The process, beyond doubt, while the system runs.
    pub fn identity(&self) -> Identity {
        Identity {
            pid: self.pid,
            start: self.start,
        }
    }
}

/// Names this run of the system.
pub(crate) fn boot() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?
        .trim()
        .to_owned())
}

/// Where lock files are kept: the service manager's folder (`RUNTIME_DIRECTORY`, the first of a list), the user's
/// (`XDG_RUNTIME_DIR`), or one under the folder for temporary files that bears the user's number.
pub fn folder(
    runtime_directory: Option<&OsStr>,
    xdg_runtime_dir: Option<&OsStr>,
    temporary: &Path,
) -> PathBuf {
    let set = |value: Option<&OsStr>| value.filter(|value| !value.is_empty()).map(OsStr::to_owned);
    if let Some(list) = set(runtime_directory) {
        let list = list.to_string_lossy();
        return PathBuf::from(list.split(':').next().unwrap_or_default());
    }
    match set(xdg_runtime_dir) {
        Some(folder) => PathBuf::from(folder).join("glim"),
        None => temporary.join(format!("glim-{}", rustix::process::getuid().as_raw())),
    }
}

/// Locks that are held until this is dropped.
#[derive(Debug)]
pub struct Locks(Vec<File>);

impl Locks {
    /// Takes the locks of all the owner's devices, or of none. A folder that is not there is made.
    ///
    /// # Errors
    /// If another process has one of them, or files cannot be made.
    pub fn take(folder: &Path, owner: &Owner) -> Result<Self, LockError> {
        private(folder)?;
        let mut devices = owner.devices.clone();
        devices.sort();
        devices.dedup();
        let mut files = Vec::new();
        for device in devices {
            files.push(take(&folder.join(file_name(&device)), device, owner)?);
        }
        Ok(Self(files))
    }

    /// Gives a sign of life.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn beat(&self) -> io::Result<()> {
        let now = SystemTime::now();
        self.0.iter().try_for_each(|file| file.set_modified(now))
    }
}

/// Makes the folder, or makes sure that nobody else can write there: who could, could keep us from our GPUs.
fn private(folder: &Path) -> Result<(), LockError> {
    let refused = |why: String| LockError::Folder {
        path: folder.to_owned(),
        why,
    };
    let made = fs::DirBuilder::new()
        .mode(0o700)
        .recursive(true)
        .create(folder);
    made.map_err(|error| refused(error.to_string()))?;
    let found = fs::symlink_metadata(folder).map_err(|error| refused(error.to_string()))?;
    // systemd's own may be a link (`DynamicUser=`), made by root where only root writes.
    let found = match found.file_type().is_symlink() && found.uid() == 0 {
        true => fs::metadata(folder).map_err(|error| refused(error.to_string()))?,
        false => found,
    };
    let own = rustix::process::getuid().as_raw();
    if !found.is_dir() {
        return Err(refused("it is no folder".to_owned()));
    }
    if found.uid() != own {
        return Err(refused(format!(
            "it belongs to user {}, and this is user {own}",
            found.uid()
        )));
    }
    if found.mode() & 0o022 != 0 {
        return Err(refused("others may write there".to_owned()));
    }
    Ok(())
}

fn file_name(device: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || c == '-' {
            c
        } else {
            '_'
        }
    };
    let name: String = device.chars().map(plain).collect();
    format!("{name}.lock")
}

fn take(path: &Path, device: String, owner: &Owner) -> Result<File, LockError> {
    let failed = |source| LockError::File {
        path: path.to_owned(),
        source,
    };
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        // The standard library opens with O_CLOEXEC: no child can keep a lock alive.
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)
        .map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(LockError::Held {
                device,
                holder: Box::new(held(&mut file, path).map_err(failed)?),
            });
        }
        Err(TryLockError::Error(error)) => return Err(failed(error)),
    }
    let text = serde_json::to_vec(owner).map_err(|error| failed(error.into()))?;
    file.set_len(0)
        .and_then(|()| file.seek(SeekFrom::Start(0)))
        .and_then(|_| file.write_all(&text))
        .map_err(failed)?;
    Ok(file)
}

/// Who has a file locked.
fn held(file: &mut File, path: &Path) -> io::Result<Held> {
    let mut owner = None;
    for attempt in 0..READS {
        if attempt > 0 {
            std::thread::sleep(BETWEEN_READS);
        }
        let mut text = Vec::new();
        file.seek(SeekFrom::Start(0))?;
        Read::by_ref(file).take(MAX_BYTES).read_to_end(&mut text)?;
        owner = serde_json::from_slice(&text).ok();
        if owner.is_some() {
            break;
        }
    }
    let changed = fs::metadata(path)?.modified()?;
    let silence = SystemTime::now()
        .duration_since(changed)
        .unwrap_or_default();
    Ok(Held { owner, silence })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::sync::{Arc, Barrier};

    fn owner(devices: &[&str]) -> Owner {
        let devices: Vec<String> = devices.iter().map(|device| (*device).to_owned()).collect();
        Owner::this(&devices, Duration::from_secs(60)).unwrap()
    }

    fn place() -> (tempfile::TempDir, PathBuf) {
        let outer = tempfile::tempdir().unwrap();
        let folder = outer.path().join("glim");
        (outer, folder)
    }

    #[test]
    fn a_device_has_one_holder_who_is_named_to_others() {
        let (_outer, folder) = place();
        let first = Locks::take(&folder, &owner(&["gpu-1", "gpu-0"])).unwrap();
        let error = Locks::take(&folder, &owner(&["gpu-1", "gpu-2"])).unwrap_err();
        let LockError::Held { device, holder } = &error else {
            panic!("{error}");
        };
        assert_eq!(device, "gpu-1");
        assert_eq!(holder.owner.as_ref().unwrap().devices, ["gpu-1", "gpu-0"]);
        let told = format!("glim with pid {}", std::process::id());
        assert!(error.to_string().contains(&told), "{error}");
        // It took all or none.
        Locks::take(&folder, &owner(&["gpu-2"])).unwrap();
        drop(first);
        Locks::take(&folder, &owner(&["gpu-1"])).unwrap();
    }

    #[test]
    fn of_many_that_start_together_exactly_one_wins() {
        let (_outer, folder) = place();
        for round in 0..50 {
            let device = format!("gpu-{round}");
            let barrier = Arc::new(Barrier::new(8));
            let start = || {
                let (folder, barrier) = (folder.clone(), barrier.clone());
                let owner = owner(&[&device]);
                std::thread::spawn(move || {
                    barrier.wait();
                    Locks::take(&folder, &owner)
                })
            };
            let threads: Vec<_> = (0..8).map(|_| start()).collect();
            // All are kept until all have tried.
            let results: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
            let won = results.iter().filter(|result| result.is_ok()).count();
            assert_eq!(won, 1, "{results:?}");
        }
    }

    #[test]
    fn what_a_dead_process_left_in_the_file_holds_nobody_up() {
        let (_outer, folder) = place();
        private(&folder).unwrap();
        fs::write(folder.join("gpu-0.lock"), "half a li").unwrap();
        let locks = Locks::take(&folder, &owner(&["gpu-0"])).unwrap();
        let text = fs::read(folder.join("gpu-0.lock")).unwrap();
        assert_eq!(
            serde_json::from_slice::<Owner>(&text).unwrap(),
            owner(&["gpu-0"])
        );
        drop(locks);
    }

    #[test]
    fn a_holder_that_gives_no_sign_of_life_is_called_hung() {
        let (_outer, folder) = place();
        let locks = Locks::take(&folder, &owner(&["gpu-0"])).unwrap();
        let told = || {
            let taken = Locks::take(&folder, &owner(&["gpu-0"]));
            taken.unwrap_err().to_string()
        };
        assert!(!told().contains("hung"), "{}", told());
        let long_ago = SystemTime::now() - Duration::from_secs(100);
        locks.0[0].set_modified(long_ago).unwrap();
        assert!(told().contains("hung"), "{}", told());
        locks.beat().unwrap();
        assert!(!told().contains("hung"), "{}", told());
    }

    #[test]
    fn a_folder_that_others_can_write_is_refused() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let (outer, folder) = place();
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        let error = Locks::take(&folder, &owner(&["gpu-0"])).unwrap_err();
        assert!(error.to_string().contains("others may write"), "{error}");
        // Nor is a lock file followed out of its folder.
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        let other = outer.path().join("other");
        fs::write(&other, "precious").unwrap();
        symlink(&other, folder.join("gpu-0.lock")).unwrap();
        assert!(Locks::take(&folder, &owner(&["gpu-0"])).is_err());
        assert_eq!(fs::read_to_string(other).unwrap(), "precious");
    }

    #[test]
    fn the_folder_is_the_managers_or_the_users_or_bears_the_users_number() {
        let at = |runtime: Option<&str>, xdg: Option<&str>| {
            folder(
                runtime.map(OsStr::new),
                xdg.map(OsStr::new),
                Path::new("/t"),
            )
        };
        assert_eq!(at(Some("/run/a:/run/b"), Some("/x")), Path::new("/run/a"));
        assert_eq!(at(Some(""), Some("/x")), Path::new("/x/glim"));
        let uid = rustix::process::getuid().as_raw();
        assert_eq!(at(None, None), Path::new(&format!("/t/glim-{uid}")));
    }
}
