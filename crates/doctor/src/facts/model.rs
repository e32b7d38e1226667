//! The model that is to run, as bytes on a disk; what is in them is not looked at here.

use serde::Serialize;

use crate::host::{Host, Space, text};
use crate::reading::{Reading, Unread};

/// Most parts of a set.
const MAX_PARTS: u32 = 99_999;

/// A model's files.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Model {
    /// As it was named.
    pub path: String,
    /// Bytes of all its weight files; absent: there is no such file or folder.
    pub bytes: Reading<u64>,
    /// Weight files that were found.
    pub files: usize,
    /// Parts of a split set that are not there.
    pub missing: Vec<String>,
    /// Type of the file system that it lies on: `ext4`, `nfs4`, `fuse.s3fs`.
    pub file_system: Reading<String>,
    /// Room of that file system.
    pub space: Reading<Space>,
}

pub(super) fn model(host: &dyn Host, path: &str) -> Model {
    let trimmed = if path.len() > 1 {
        path.trim_end_matches('/')
    } else {
        path
    };
    let (names, missing) = match host.list(trimmed) {
        Reading::Known(names) => (
            Reading::Known(weights_of_folder(trimmed, &names)),
            Vec::new(),
        ),
        _ => parts(host, trimmed),
    };
    let mut files = 0;
    let bytes = names.and_then(|names| {
        let mut sum = 0_u64;
        for name in &names {
            match host.size(name) {
                Reading::Known(size) => sum = sum.saturating_add(size),
                Reading::Unknown { unknown } => return unknown.into(),
            }
        }
        files = names.len();
        match names.is_empty() {
            true => Reading::unclear("no .gguf and no .safetensors file is in it"),
            false => Reading::Known(sum),
        }
    });
    Model {
        path: path.to_owned(),
        bytes,
        files,
        missing,
        file_system: text(host, "/proc/self/mountinfo")
            .and_then(|mounts| file_system(&mounts, trimmed)),
        space: host.space(trimmed),
    }
}

/// Weight files of a folder: the GGUF files, else the safetensors.
fn weights_of_folder(folder: &str, names: &[String]) -> Vec<String> {
    let of = |ending: &str| -> Vec<String> {
        let names = names.iter().filter(|name| name.ends_with(ending));
        names.map(|name| format!("{folder}/{name}")).collect()
    };
    match of(".gguf") {
        gguf if gguf.is_empty() => of(".safetensors"),
        gguf => gguf,
    }
}

/// All parts of the set that a file is one of (`NAME-00001-of-00011.gguf`), those that are there and those that are not.
fn parts(host: &dyn Host, path: &str) -> (Reading<Vec<String>>, Vec<String>) {
    if let Some(why) = host.size(path).why() {
        return (why.clone().into(), Vec::new());
    }
    let Some((stem, count)) = split_name(path) else {
        return (Reading::Known(vec![path.to_owned()]), Vec::new());
    };
    let names = (1..=count).map(|part| format!("{stem}-{part:05}-of-{count:05}.gguf"));
    let (missing, found) = names.partition(|name| host.size(name).is_absent());
    (Reading::Known(found), missing)
}

fn split_name(path: &str) -> Option<(&str, u32)> {
    let (before, count) = path.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, part) = before.rsplit_once('-')?;
    let number = |text: &str| text.parse::<u32>().ok().filter(|_| text.len() == 5);
    let (part, count) = (number(part)?, number(count)?);
    (1..=MAX_PARTS).contains(&count).then_some(())?;
    (1..=count).contains(&part).then_some((stem, count))
}

/// Type of the file system of a path: that of the longest mount point above it (proc_pid_mountinfo(5)); of equals the last, which
/// hides the others.
fn file_system(mounts: &str, path: &str) -> Reading<String> {
    let mut best: Option<(usize, &str)> = None;
    for line in mounts.lines() {
        let Some((before, after)) = line.split_once(" - ") else {
            continue;
        };
        let (Some(point), Some(kind)) = (before.split(' ').nth(4), after.split(' ').next()) else {
            continue;
        };
        let is_above = point == "/"
            || path == point
            || path
                .strip_prefix(point)
                .is_some_and(|rest| rest.starts_with('/'));
        if is_above && best.is_none_or(|(length, _)| point.len() >= length) {
            best = Some((point.len(), kind));
        }
    }
    best.map_or(Unread::Absent.into(), |(_, kind)| {
        Reading::Known(kind.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_mount_decides() {
        let mounts = "1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:5 / /models rw shared:1 - nfs4 host:/m rw\n3 1 0:6 / /models/fast rw - xfs /dev/nvme rw\n\
                      4 1 0:7 / /models/fast rw - zfs pool rw\nbroken line";
        for (path, kind) in [
            ("/models/a.gguf", "nfs4"),
            ("/models", "nfs4"),
            ("/models2/a", "ext4"),
            ("/models/fast/b", "zfs"),
        ] {
            assert_eq!(
                file_system(mounts, path),
                Reading::Known(kind.to_owned()),
                "{path}"
            );
        }
        assert!(file_system("", "/x").is_absent());
    }

    #[test]
    fn a_part_names_its_set() {
        assert_eq!(
            split_name("/m/glm-00003-of-00011.gguf"),
            Some(("/m/glm", 11))
        );
        for other in [
            "/m/glm.gguf",
            "/m/glm-3-of-11.gguf",
            "/m/glm-00012-of-00011.gguf",
            "/m/x-00000-of-00000.gguf",
            ".gguf",
        ] {
            assert_eq!(split_name(other), None, "{other}");
        }
    }
}
