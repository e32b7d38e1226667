//! The checks: from facts to findings.
//!
//! [`CHECKS`] lists all of them; docs/doctor.md is held against it by a test. A check gives one finding for the whole machine, not one
//! for each GPU, and none where its question does not arise (peers on a machine with one GPU). The levels:
//!
//! - **blocker**: glim would not start, could answer wrongly or hang, or would be several times slower than this machine can be;
//! - **note**: something to know, or to change for speed; also all that could not be read (`unknown`), which is never `ok`;
//! - **ok**: looked at, and nothing to do.

mod cpu;
mod gpus;
mod holders;
mod iommu;
mod libraries;
mod limits;
mod model;
mod pcie;

use serde::Serialize;

use crate::facts::Facts;
use crate::reading::Unread;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Nothing to do.
    Ok,
    /// Something to know.
    Note,
    /// Something to change first.
    Blocker,
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The check: stable, for scripts.
    pub id: &'static str,
    /// How bad it is.
    pub level: Level,
    /// In one line.
    pub title: String,
    /// Why it matters, with figures; empty where there is nothing to say.
    pub detail: String,
    /// The exact change to make; empty where there is none.
    pub fix: String,
    /// Whether the question could not be answered. Then the level is `note`.
    pub unknown: bool,
}

/// A check.
#[derive(Debug, Clone, Copy)]
pub struct Check {
    /// Its name: stable, for scripts.
    pub id: &'static str,
    /// The file of this folder that it stands in.
    pub family: &'static str,
    /// What it looks at.
    pub asks: &'static str,
    /// Whether a service asks it when it starts.
    pub at_start: AtStart,
    run: fn(&Facts) -> Option<Verdict>,
}

/// Whether a service asks a question each time that it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtStart {
    /// Always.
    Always,
    /// On GPUs.
    OnGpus,
    /// Not: it is about the past (Xid), about a moment (a process that waits), about tuning that is no business of a start, or what
    /// the service looks at itself, with an exit code of its own (holders, the model's files).
    No,
}

/// All checks, in the order in which they are told.
pub const CHECKS: &[Check] = &[
    // Driver and GPUs.
    Check::new(
        "driver-loaded",
        "gpus",
        "does NVML answer, and are there GPUs",
        gpus::driver_loaded,
    ),
    Check::new(
        "driver-version",
        "gpus",
        "is the driver new enough (CUDA 12.0)",
        gpus::driver_version,
    )
    .on_gpus(),
    Check::new(
        "driver-module-match",
        "gpus",
        "are the driver's kernel module and its libraries of one version",
        gpus::driver_module_match,
    )
    .on_gpus(),
    Check::new(
        "gpu-capability",
        "gpus",
        "compute capability 8.0 or newer",
        gpus::capability,
    )
    .on_gpus(),
    Check::new(
        "gpu-mixed",
        "gpus",
        "are all GPUs of one kind and size",
        gpus::mixed,
    )
    .on_gpus(),
    Check::new("gpu-mig", "gpus", "is a GPU cut into instances", gpus::mig).on_gpus(),
    Check::new(
        "gpu-compute-mode",
        "gpus",
        "may processes use the GPUs",
        gpus::compute_mode,
    )
    .on_gpus(),
    Check::new(
        "gpu-persistence",
        "gpus",
        "does the driver stay awake between processes",
        gpus::persistence,
    ),
    Check::new(
        "gpu-power-limit",
        "gpus",
        "is the power limit below the GPU's own",
        gpus::power_limit,
    )
    .on_gpus(),
    Check::new(
        "gpu-clocks",
        "gpus",
        "are clocks held down by heat or power now",
        gpus::clocks,
    ),
    Check::new(
        "gpu-memory-errors",
        "gpus",
        "uncorrected memory errors and replaced rows",
        gpus::memory_errors,
    )
    .on_gpus(),
    Check::new(
        "gpu-xid",
        "gpus",
        "faults that the driver reported in the kernel's log",
        gpus::xid,
    ),
    Check::new(
        "nvlink-active",
        "gpus",
        "are all NVLinks up",
        gpus::nvlink_active,
    )
    .on_gpus(),
    Check::new(
        "nvlink-fabric",
        "gpus",
        "has the fabric manager finished",
        gpus::nvlink_fabric,
    )
    .on_gpus(),
    Check::new(
        "gpu-peer-access",
        "gpus",
        "may every GPU read and write every other's memory",
        gpus::peer_access,
    )
    .on_gpus(),
    // The bus.
    Check::new(
        "pcie-acs",
        "pcie",
        "do bridges send traffic between GPUs up to the root (ACS)",
        pcie::acs,
    )
    .on_gpus(),
    Check::new(
        "pcie-link-width",
        "pcie",
        "lanes of each link against those it could have",
        pcie::link_width,
    )
    .on_gpus(),
    Check::new(
        "pcie-link-speed",
        "pcie",
        "speed of each link against what both ends can do",
        pcie::link_speed,
    )
    .on_gpus(),
    Check::new(
        "pcie-uplink",
        "pcie",
        "how many GPUs share one link to the processor",
        pcie::uplink,
    ),
    Check::new(
        "pcie-switch-partitions",
        "pcie",
        "switches whose partitions hang on different roots",
        pcie::switch_partitions,
    ),
    Check::new(
        "gpu-order",
        "pcie",
        "do GPUs that are near each other have neighbouring numbers",
        pcie::order,
    ),
    Check::new(
        "pcie-bar1",
        "pcie",
        "can the bus see all of a GPU's memory at once",
        pcie::bar1,
    )
    .on_gpus(),
    Check::new(
        "pcie-forced-p2p",
        "pcie",
        "settings for direct transfers between GPUs on root ports",
        pcie::forced_p2p,
    ),
    Check::new("pcie-aspm", "pcie", "may links go to sleep", pcie::aspm).on_gpus(),
    Check::new(
        "pcie-port-power",
        "pcie",
        "may GPUs and bridges be suspended",
        pcie::port_power,
    ),
    Check::new(
        "pcie-packets",
        "pcie",
        "sizes of packets and reads, relaxed ordering",
        pcie::packets,
    ),
    Check::new(
        "pcie-errors",
        "pcie",
        "errors that links reported, and packets sent again",
        pcie::errors,
    ),
    // Translation of addresses.
    Check::new(
        "iommu-mode",
        "iommu",
        "are addresses that GPUs use translated",
        iommu::mode,
    )
    .on_gpus(),
    Check::new(
        "virtual-machine",
        "iommu",
        "is the host's side of the bus hidden",
        iommu::virtual_machine,
    ),
    Check::new(
        "uvm-hmm",
        "iommu",
        "does the driver mirror page tables (HMM)",
        iommu::hmm,
    )
    .on_gpus(),
    // Limits.
    Check::new(
        "locked-memory",
        "limits",
        "how much memory a process may lock",
        limits::locked_memory,
    ),
    Check::new(
        "open-files",
        "limits",
        "how many files a process may open",
        limits::open_files,
    )
    .always(),
    Check::new(
        "shared-memory",
        "limits",
        "room of /dev/shm",
        limits::shared_memory,
    )
    .on_gpus(),
    // Processors and memory.
    Check::new(
        "cpu-features",
        "cpu",
        "instruction sets that the CPU backend uses",
        cpu::features,
    )
    .always(),
    Check::new(
        "cpu-governor",
        "cpu",
        "how clocks are chosen",
        cpu::governor,
    )
    .always(),
    Check::new(
        "numa-balancing",
        "cpu",
        "does the kernel move pages between nodes",
        cpu::numa_balancing,
    ),
    Check::new(
        "gpu-numa",
        "cpu",
        "which node each GPU is at",
        cpu::gpu_numa,
    ),
    Check::new("huge-pages", "cpu", "huge pages", cpu::huge_pages),
    // Who holds GPUs.
    Check::new(
        "gpu-holders",
        "holders",
        "processes that hold GPU memory now",
        holders::holders,
    ),
    Check::new(
        "gpu-stuck-processes",
        "holders",
        "holders that no signal ends",
        holders::stuck,
    ),
    Check::new(
        "gpu-unattributed-memory",
        "holders",
        "memory in use that no process in sight holds",
        holders::unattributed,
    ),
    // Software.
    Check::new("library-driver", "libraries", "libcuda", libraries::driver).on_gpus(),
    Check::new(
        "library-nvrtc",
        "libraries",
        "the compiler of kernels, or kernels that are compiled",
        libraries::nvrtc,
    )
    .on_gpus(),
    Check::new("library-nccl", "libraries", "NCCL", libraries::nccl),
    Check::new(
        "compiler-and-driver",
        "libraries",
        "is the compiler newer than the driver",
        libraries::compiler_and_driver,
    )
    .on_gpus(),
    Check::new(
        "kernel-cache",
        "libraries",
        "can compiled kernels be kept",
        libraries::kernel_cache,
    )
    .on_gpus(),
    // The model.
    Check::new(
        "model-files",
        "model",
        "are all its files there",
        model::files,
    ),
    Check::new(
        "model-gpu-memory",
        "model",
        "do its weights fit on the GPUs, now and at all",
        model::gpu_memory,
    )
    .on_gpus(),
    Check::new(
        "model-host-memory",
        "model",
        "does it fit in memory beside the rest",
        model::host_memory,
    )
    .always(),
    Check::new(
        "model-file-system",
        "model",
        "where it lies",
        model::file_system,
    )
    .always(),
];

/// Runs all checks.
pub fn examine(facts: &Facts) -> Vec<Finding> {
    CHECKS.iter().filter_map(|check| check.run(facts)).collect()
}

/// Runs the checks that a service asks when it starts on these GPUs, by index, and on no others; none: on the CPU.
pub fn examine_start(facts: Facts, gpus: &[usize]) -> Vec<Finding> {
    let asks = |check: &&Check| match check.at_start {
        AtStart::Always => true,
        AtStart::OnGpus => !gpus.is_empty(),
        AtStart::No => false,
    };
    let facts = facts.only(gpus);
    let checks = CHECKS.iter().filter(asks);
    checks.filter_map(|check| check.run(&facts)).collect()
}

impl Check {
    const fn new(
        id: &'static str,
        family: &'static str,
        asks: &'static str,
        run: fn(&Facts) -> Option<Verdict>,
    ) -> Self {
        Self {
            id,
            family,
            asks,
            at_start: AtStart::No,
            run,
        }
    }

    const fn always(self) -> Self {
        Self {
            at_start: AtStart::Always,
            ..self
        }
    }

    const fn on_gpus(self) -> Self {
        Self {
            at_start: AtStart::OnGpus,
            ..self
        }
    }

    /// Its finding on this machine, if its question arises.
    pub fn run(&self, facts: &Facts) -> Option<Finding> {
        (self.run)(facts).map(|verdict| verdict.of(self.id))
    }
}

/// A finding without its name.
pub(crate) struct Verdict {
    level: Level,
    title: String,
    detail: String,
    fix: String,
    unknown: bool,
}

impl Verdict {
    pub(crate) fn ok(title: impl Into<String>) -> Self {
        Self {
            level: Level::Ok,
            title: title.into(),
            detail: String::new(),
            fix: String::new(),
            unknown: false,
        }
    }

    pub(crate) fn note(title: impl Into<String>) -> Self {
        Self {
            level: Level::Note,
            ..Self::ok(title)
        }
    }

    pub(crate) fn blocker(title: impl Into<String>) -> Self {
        Self {
            level: Level::Blocker,
            ..Self::ok(title)
        }
    }

    /// Note or blocker.
    pub(crate) fn bad(is_blocker: bool, title: impl Into<String>) -> Self {
        match is_blocker {
            true => Self::blocker(title),
            false => Self::note(title),
        }
    }

    /// What could not be read, and why; `title` ends in "unknown" by itself.
    pub(crate) fn unknown(what: impl std::fmt::Display, why: &Unread) -> Self {
        let fix = match why {
            Unread::NeedsRoot => "run glim doctor as root once",
            _ => "",
        };
        Self {
            unknown: true,
            ..Self::note(format!("{what}: unknown ({why})")).fix(fix)
        }
    }

    pub(crate) fn why(mut self, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        if !self.detail.is_empty() && !detail.is_empty() {
            self.detail.push(' ');
        }
        self.detail.push_str(&detail);
        self
    }

    pub(crate) fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = fix.into();
        self
    }

    /// With the name of its check.
    pub(crate) fn of(self, id: &'static str) -> Finding {
        Finding {
            id,
            level: self.level,
            title: self.title,
            detail: self.detail,
            fix: self.fix,
            unknown: self.unknown,
        }
    }
}

/// One question, asked of many things: which are bad, which could not be asked.
#[derive(Default)]
pub(crate) struct Survey {
    pub(crate) bad: Vec<String>,
    unknown: Vec<String>,
    why: Option<Unread>,
    asked: usize,
}

impl Survey {
    pub(crate) fn bad(&mut self, text: impl Into<String>) {
        self.asked += 1;
        self.bad.push(text.into());
    }

    pub(crate) fn good(&mut self) {
        self.asked += 1;
    }

    pub(crate) fn unknown(&mut self, name: impl Into<String>, why: &Unread) {
        self.asked += 1;
        self.unknown.push(name.into());
        // Root helps where it is the reason for one of them.
        if self.why.is_none() || *why == Unread::NeedsRoot {
            self.why = Some(why.clone());
        }
    }

    /// The bad ones make the verdict; else one that is unknown makes it unknown; else it is fine. None if there was nothing to ask.
    pub(crate) fn verdict(
        self,
        what: &str,
        bad: impl FnOnce(&[String]) -> Verdict,
        ok: impl FnOnce() -> Verdict,
    ) -> Option<Verdict> {
        let rest = match &self.why {
            Some(why) => format!("Unknown of {} ({why}).", few(&self.unknown)),
            None => String::new(),
        };
        Some(match &self.why {
            _ if self.asked == 0 => return None,
            _ if !self.bad.is_empty() => bad(&self.bad).why(rest),
            Some(why) => Verdict::unknown(format!("{what} of {}", few(&self.unknown)), why),
            None => ok(),
        })
    }
}

/// Names in a row; of many the first and how many more.
pub(crate) fn few(names: &[String]) -> String {
    const SHOWN: usize = 8;
    match names.len() {
        0..=SHOWN => names.join(", "),
        more => format!("{} and {} more", names[..SHOWN].join(", "), more - SHOWN),
    }
}

/// `1 file`, `2 files`.
pub(crate) fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// `GPU 0`, `GPUs 0, 1, 5`.
pub(crate) fn gpu_names(gpus: &[usize]) -> String {
    let names: Vec<String> = gpus.iter().map(usize::to_string).collect();
    format!(
        "GPU{} {}",
        if gpus.len() == 1 { "" } else { "s" },
        few(&names)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_stable_words_and_each_is_there_once() {
        for (index, check) in CHECKS.iter().enumerate() {
            assert!(
                check.id.split('-').all(|word| !word.is_empty()
                    && word
                        .bytes()
                        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())),
                "{}",
                check.id
            );
            assert!(
                CHECKS[..index].iter().all(|other| other.id != check.id),
                "{} twice",
                check.id
            );
            assert!(!check.asks.is_empty());
        }
    }

    #[test]
    fn what_is_unknown_is_a_note_and_says_what_to_do() {
        let finding = Verdict::unknown("ACS", &Unread::NeedsRoot).of("x");
        assert_eq!((finding.level, finding.unknown), (Level::Note, true));
        assert_eq!(finding.title, "ACS: unknown (needs root)");
        assert!(finding.fix.contains("root"));
    }

    #[test]
    fn a_survey_is_as_bad_as_its_worst_part() {
        let verdict = |survey: Survey| {
            survey.verdict(
                "x",
                |bad| Verdict::blocker(bad.join("+")),
                || Verdict::ok("fine"),
            )
        };
        assert!(verdict(Survey::default()).is_none());
        let mut survey = Survey::default();
        survey.good();
        assert_eq!(verdict(survey).map(|v| v.level), Some(Level::Ok));
        let mut survey = Survey::default();
        survey.good();
        survey.unknown("b", &Unread::Absent);
        let found = verdict(survey).map(|v| v.of("x"));
        assert!(
            found.is_some_and(
                |finding| finding.unknown && finding.title == "x of b: unknown (absent)"
            )
        );
        let mut survey = Survey::default();
        survey.bad("a");
        survey.unknown("b", &Unread::NeedsRoot);
        let found = verdict(survey).map(|v| v.of("x"));
        assert!(found.is_some_and(|finding| finding.level == Level::Blocker
            && finding.detail == "Unknown of b (needs root)."));
    }
}
