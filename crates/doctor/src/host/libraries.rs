//! Which of NVIDIA's libraries are found, where, and which version each says it is.
//!
//! They are opened as the engine would open them, in the folders that the caller gives and by name, since nothing else tells whether
//! the loader is content with them. A version comes from the library's own function: file names lie after an upgrade.
#![allow(
    unsafe_code,
    reason = "libraries are opened and asked for their version"
)]

use std::ffi::c_int;
use std::path::PathBuf;

use libloading::Library as Opened;

use super::Library;
use crate::reading::{Reading, Unread};

/// Where libraries are looked for besides the loader's own places.
#[derive(Debug, Clone, Default)]
pub struct Search {
    /// Folders that the user named: looked into first.
    pub preferred: Vec<PathBuf>,
    /// Folders that are looked into where the loader finds nothing.
    pub folders: Vec<PathBuf>,
}

/// A library: part, names, and how it tells its version.
type Wanted = (&'static str, &'static [&'static str], Option<Version>);

/// Functions that tell versions. The signatures are those of `cuda.h`, `nvrtc.h` and `nccl.h`.
#[derive(Clone, Copy)]
enum Version {
    /// `int f(int *version)`, 1000 · major + 10 · minor.
    Cuda(&'static [u8]),
    /// `int f(int *major, int *minor)`.
    Pair(&'static [u8]),
    /// `int f(int *version)`, 10000 · major + 100 · minor + patch.
    Nccl(&'static [u8]),
}

const WANTED: &[Wanted] = &[
    (
        "driver",
        &["libcuda.so.1", "libcuda.so"],
        Some(Version::Cuda(b"cuDriverGetVersion\0")),
    ),
    ("nvml", &["libnvidia-ml.so.1", "libnvidia-ml.so"], None),
    (
        "nvrtc",
        &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
        Some(Version::Pair(b"nvrtcVersion\0")),
    ),
    (
        "nccl",
        &["libnccl.so.2", "libnccl.so"],
        Some(Version::Nccl(b"ncclGetVersion\0")),
    ),
];

/// Looks for all of them.
pub(super) fn look(search: &Search) -> Vec<Library> {
    WANTED
        .iter()
        .map(|wanted| look_for(wanted, search))
        .collect()
}

fn look_for((part, names, version): &Wanted, search: &Search) -> Library {
    let by_path = |folders: &[PathBuf]| -> Vec<PathBuf> {
        let paths = folders
            .iter()
            .flat_map(|folder| names.iter().map(move |name| folder.join(name)));
        paths.filter(|path| path.is_file()).collect()
    };
    let candidates = by_path(&search.preferred)
        .into_iter()
        .chain(names.iter().map(PathBuf::from))
        .chain(by_path(&search.folders));
    let mut path = Unread::Absent.into();
    let mut found_version: Reading<String> = Unread::Absent.into();
    for candidate in candidates {
        // SAFETY: these are NVIDIA's libraries, whose initialisers may run at any time; the engine opens the same ones.
        match unsafe { Opened::new(&candidate) } {
            Ok(library) => {
                found_version = match version {
                    Some(version) => version.ask(&library),
                    None => Unread::Unsupported.into(),
                };
                path = Reading::Known(
                    mapped(names).unwrap_or_else(|| candidate.to_string_lossy().into_owned()),
                );
                // It stays open: libcuda does not stand being closed and opened again by other parts of the process.
                std::mem::forget(library);
                break;
            }
            // A file that is there and cannot be opened is a different fault than none.
            Err(error) if candidate.is_absolute() => path = Reading::unclear(error.to_string()),
            Err(_) => {}
        }
    }
    Library {
        part: (*part).to_owned(),
        tried: names.iter().map(|name| (*name).to_owned()).collect(),
        path,
        version: found_version,
    }
}

/// The file that the loader chose: the one of these names that is mapped into this process. A name's link leads to a file with a
/// longer one, `libcuda.so.580.95.05`, so the part before the version is what is compared.
fn mapped(names: &[&str]) -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let stem = names.last()?;
    let paths = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| &line[at..]));
    let fits = |path: &&str| {
        path.rsplit('/')
            .next()
            .is_some_and(|file| file.starts_with(stem))
    };
    paths.filter(fits).map(str::to_owned).next()
}

impl Version {
    fn ask(self, library: &Opened) -> Reading<String> {
        let (name, (code, first, second)) = match self {
            Self::Cuda(name) | Self::Nccl(name) => {
                // SAFETY: the function of this name has this signature since the library's first version.
                let function =
                    unsafe { library.get::<unsafe extern "C" fn(*mut c_int) -> c_int>(name) };
                let Ok(function) = function else {
                    return Unread::Unsupported.into();
                };
                let mut version = 0;
                // SAFETY: it writes one number, and needs no initialisation.
                let code = unsafe { function(&mut version) };
                (name, (code, version, 0))
            }
            Self::Pair(name) => {
                // SAFETY: as above.
                let function = unsafe {
                    library.get::<unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int>(name)
                };
                let Ok(function) = function else {
                    return Unread::Unsupported.into();
                };
                let (mut major, mut minor) = (0, 0);
                // SAFETY: it writes two numbers, and needs no initialisation.
                let code = unsafe { function(&mut major, &mut minor) };
                (name, (code, major, minor))
            }
        };
        if code != 0 {
            let name = String::from_utf8_lossy(&name[..name.len() - 1]);
            return Reading::unclear(format!("{name} failed with code {code}"));
        }
        Reading::Known(match self {
            Self::Cuda(_) => format!("{}.{}", first / 1000, first % 1000 / 10),
            Self::Pair(_) => format!("{first}.{second}"),
            Self::Nccl(_) => format!("{}.{}.{}", first / 10000, first / 100 % 100, first % 100),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_file_that_is_no_library_is_told_apart_from_none() {
        let folder = tempfile::tempdir().unwrap();
        let none = look_for(&("x", &["libglim-none.so.1"], None), &Search::default());
        assert!(none.path.is_absent(), "{none:?}");
        std::fs::write(folder.path().join("libglim-none.so.1"), "no library").unwrap();
        let search = Search {
            folders: vec![folder.path().to_owned()],
            ..Search::default()
        };
        let broken = look_for(&("x", &["libglim-none.so.1"], None), &search);
        assert!(
            matches!(broken.path.why(), Some(Unread::Other(_))),
            "{broken:?}"
        );
    }

    #[test]
    fn a_library_without_the_function_has_no_version() {
        let found = look_for(
            &(
                "x",
                &["libc.so.6", "libc.so"],
                Some(Version::Cuda(b"cuDriverGetVersion\0")),
            ),
            &Search::default(),
        );
        assert!(found.path.known().unwrap().contains("libc.so"), "{found:?}");
        assert_eq!(found.version.why(), Some(&Unread::Unsupported));
    }
}
