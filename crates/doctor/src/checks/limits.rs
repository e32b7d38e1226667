//! What this process, and so a service that is started like it, may take.

use super::Verdict;
use crate::facts::Facts;
use crate::page::bytes;

/// Files of a large split model, one socket for each client, and the driver's own.
const ENOUGH_FILES: u64 = 8192;
/// What NCCL takes for eight ranks in one process, with room.
const ENOUGH_SHARED: u64 = 1 << 30;

pub(super) fn locked_memory(facts: &Facts) -> Option<Verdict> {
    Some(match facts.limits.locked_memory.as_result() {
        Ok(None) => Verdict::ok("memory may be locked without limit"),
        Ok(Some(limit)) => Verdict::note(format!("a process may lock {} of memory", bytes(*limit)))
            .why("What the CUDA driver pins does not count, but buffers for network cards do, and weights that should stay in memory on a CPU. A limit shows late, as a failed registration.")
            .fix("systemd: LimitMEMLOCK=infinity; Docker: --ulimit memlock=-1; a shell: \"* - memlock unlimited\" in /etc/security/limits.d/glim.conf"),
        Err(why) => Verdict::unknown("how much memory may be locked", why),
    })
}

pub(super) fn open_files(facts: &Facts) -> Option<Verdict> {
    Some(match facts.limits.open_files.as_result() {
        Ok(Some(limit)) if *limit < ENOUGH_FILES => Verdict::note(format!("a process may open {limit} files"))
            .why("Every client of the service is one; beyond the limit new ones are refused.")
            .fix("systemd: LimitNOFILE=1048576; Docker: --ulimit nofile=1048576; a shell: ulimit -n 1048576"),
        Ok(limit) => Verdict::ok(limit.map_or("files may be opened without limit".to_owned(), |limit| format!("{limit} files may be opened"))),
        Err(why) => Verdict::unknown("how many files may be opened", why),
    })
}

pub(super) fn shared_memory(facts: &Facts) -> Option<Verdict> {
    Some(match facts.limits.shared_memory.as_result() {
        Ok(space) if space.free < ENOUGH_SHARED && facts.has_several() => {
            Verdict::note(format!("/dev/shm has {} free of {}", bytes(space.free), bytes(space.total)))
                .why("NCCL exchanges through it where GPUs do not reach each other, and fails with \"unhandled system error\" when it is full. Containers get 64 MiB if nothing is said.")
                .fix("Docker: --shm-size=8g or --ipc=host; Kubernetes: an emptyDir with medium Memory at /dev/shm; a machine: mount -o remount,size=16g /dev/shm")
        }
        Ok(space) => Verdict::ok(format!("/dev/shm has {} free", bytes(space.free))),
        Err(why) => Verdict::unknown("the room of /dev/shm", why),
    })
}
