//! Active probes: pairs of GPUs copy, check and answer each other, each pair in a process of its own under a time limit.
//!
//! A bad path between two GPUs does not give an error code: the copy gives wrong bytes, or the kernel waits for ever and takes its process
//! with it. So the one that asks must be another process than the one that may hang. [`probe`] starts one for each job through a
//! [`Runner`], and judges what comes back; the job's own work is the caller's (it needs CUDA, which this crate does not know), and its
//! protocol is one line of JSON on stdout: a [`Measured`].
//!
//! Jobs run one after the other, so that each has the machine to itself.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::checks::{Finding, Verdict, few};

/// Longest answer that is read from a probe.
const MAX_ANSWER: u64 = 64 << 10;
/// How long a killed probe may take to end. One that waits in the driver does not end at all.
const KILL_WAIT: Duration = Duration::from_secs(5);
/// How often it is looked whether a probe has ended.
const POLL: Duration = Duration::from_millis(20);
/// Exit code of a probe that could not begin: `EX_UNAVAILABLE` of `sysexits.h`.
pub const UNAVAILABLE: i32 = 69;

/// Slowest one-way flag between two GPUs that is fine: 0.36 to 1.36 µs were measured with peer access, about 14 without.
const SLOW_FLAG_US: f64 = 1.5;
/// A pair whose flag takes so many times the median's.
const ODD_FLAG: f64 = 3.0;
/// Slowest copy over PCIe that is fine: 53 to 57 GB/s are normal for x16 of generation 5, 25 for generation 4, 39 across Genoa sockets.
const SLOW_GB_S: f64 = 20.0;
/// Writes below this beside reads above [`FAST_READ_GB_S`] are the collapse of partitioned switches.
const COLLAPSED_WRITE_GB_S: f64 = 10.0;
const FAST_READ_GB_S: f64 = 30.0;

/// One probe: from one GPU's side to another's. GPUs by NVML's index, which is CUDA's ordinal under `CUDA_DEVICE_ORDER=PCI_BUS_ID`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The GPU whose kernels run.
    pub from: usize,
    /// The GPU whose memory they reach.
    pub to: usize,
}

/// What a probe measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Bytes that were copied and compared, both by copy engine and by a kernel's loads and stores.
    pub bytes: u64,
    /// How many of them were wrong.
    pub wrong_bytes: u64,
    /// A kernel on `from` that loads from `to`, GB/s.
    pub read_gb_s: f64,
    /// A kernel on `from` that stores to `to`, GB/s.
    pub write_gb_s: f64,
    /// A flag there and back between kernels on both, µs.
    pub flag_round_trip_us: f64,
}

/// How a probe ended.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It answered.
    Done(Measured),
    /// It could not begin, and said so by exit code 69: nothing is known of the pair.
    Unavailable {
        /// What it said.
        why: String,
    },
    /// It went wrong.
    Failed {
        /// What it said last, or how it ended.
        why: String,
    },
    /// It was killed after its time.
    TimedOut {
        /// Whether it ended when it was killed; if not, it waits in the driver.
        ended: bool,
    },
}

/// Runs a job in a process of its own.
pub trait Runner {
    /// Runs it for at most `limit`.
    fn run(&self, job: Job, limit: Duration) -> Outcome;
}

/// All jobs of these GPUs, by NVML's index: each pair in both directions.
pub fn jobs(gpus: &[usize]) -> Vec<Job> {
    let pairs = gpus
        .iter()
        .flat_map(|&from| gpus.iter().map(move |&to| Job { from, to }));
    pairs.filter(|job| job.from != job.to).collect()
}

/// Runs jobs one after the other. After one that does not end when it is killed nothing more is started: its GPUs are lost until the
/// driver lets go.
pub fn probe(
    runner: &dyn Runner,
    jobs: &[Job],
    limit: Duration,
    told: &mut dyn FnMut(Job, &Outcome),
) -> Vec<(Job, Outcome)> {
    let mut outcomes = Vec::new();
    for &job in jobs {
        let outcome = runner.run(job, limit);
        told(job, &outcome);
        let is_lost = outcome == Outcome::TimedOut { ended: false };
        outcomes.push((job, outcome));
        if is_lost {
            break;
        }
    }
    outcomes
}

/// Names of the findings that probes give.
pub const CHECKS: &[(&str, &str)] = &[
    ("probe-finished", "does every probe end within its time"),
    (
        "probe-bytes",
        "are bytes that one GPU reads and writes of another the right ones",
    ),
    ("probe-bandwidth", "how fast each pair reads and writes"),
    ("probe-latency", "how long a flag takes between each pair"),
];

/// Judges outcomes of `wanted` jobs. `over_nvlink` says whether a pair is joined by NVLink.
pub fn judge(
    outcomes: &[(Job, Outcome)],
    wanted: usize,
    over_nvlink: impl Fn(Job) -> bool,
) -> Vec<Finding> {
    let done: Vec<(Job, &Measured)> = outcomes
        .iter()
        .filter_map(|(job, outcome)| match outcome {
            Outcome::Done(measured) => Some((*job, measured)),
            _ => None,
        })
        .collect();
    let mut findings = vec![finished(outcomes, wanted).of("probe-finished")];
    if !done.is_empty() {
        findings.push(right_bytes(&done).of("probe-bytes"));
        findings.push(bandwidth(&done, over_nvlink).of("probe-bandwidth"));
        findings.push(latency(&done).of("probe-latency"));
    }
    findings
}

fn name(job: Job) -> String {
    format!("{}→{}", job.from, job.to)
}

fn finished(outcomes: &[(Job, Outcome)], wanted: usize) -> Verdict {
    let mut hung = Vec::new();
    let mut failed = Vec::new();
    let mut not_begun = Vec::new();
    for (job, outcome) in outcomes {
        match outcome {
            Outcome::Done(_) => {}
            Outcome::Unavailable { why } => not_begun.push(format!("{} ({why})", name(*job))),
            Outcome::Failed { why } => failed.push(format!("{} ({why})", name(*job))),
            Outcome::TimedOut { ended: true } => hung.push(name(*job)),
            Outcome::TimedOut { ended: false } => {
                hung.push(format!("{} (and does not end when killed)", name(*job)))
            }
        }
    }
    let left_out = wanted.saturating_sub(outcomes.len());
    let rest = match left_out {
        0 => String::new(),
        left_out => format!("{left_out} probes were not started."),
    };
    if !hung.is_empty() {
        return Verdict::blocker(format!("probes hang: {}", few(&hung)))
            .why("A kernel waits for a flag or a byte from another GPU that never comes: so would the first collective.")
            .why(rest)
            .fix("before turning peer access off: IOMMU off (iommu-mode), ACS off (pcie-acs), HMM off (uvm-hmm); then reboot and probe again");
    }
    if !failed.is_empty() {
        return Verdict::blocker(format!("probes fail: {}", few(&failed))).why(rest);
    }
    if !not_begun.is_empty() {
        let why = crate::reading::Unread::Other(few(&not_begun));
        return Verdict::unknown("pairs of GPUs", &why).why(rest);
    }
    match left_out {
        0 if wanted == 0 => Verdict::ok("there is no pair of GPUs to probe"),
        0 => Verdict::ok(format!("all {wanted} probes ended")),
        _ => Verdict::unknown("some pairs", &crate::reading::Unread::Other(rest)),
    }
}

fn right_bytes(done: &[(Job, &Measured)]) -> Verdict {
    let wrong: Vec<String> = done
        .iter()
        .filter(|(_, measured)| measured.wrong_bytes > 0)
        .map(|(job, measured)| {
            format!(
                "{}: {} of {}",
                name(*job),
                measured.wrong_bytes,
                measured.bytes
            )
        })
        .collect();
    match wrong.is_empty() {
        true => Verdict::ok(format!("every byte was right, {} a pair", crate::page::bytes(done[0].1.bytes))),
        false => Verdict::blocker(format!("wrong bytes between GPUs: {}", few(&wrong)))
            .why("Sums over ranks would be wrong without any error: answers degrade and nothing tells.")
            .fix("IOMMU off or iommu=pt, ACS off, newest driver and firmware; a pair that stays wrong must not share a model"),
    }
}

fn bandwidth(done: &[(Job, &Measured)], over_nvlink: impl Fn(Job) -> bool) -> Verdict {
    let figures = |(job, measured): &(Job, &Measured)| {
        format!(
            "{} reads {:.0}, writes {:.0}",
            name(*job),
            measured.read_gb_s,
            measured.write_gb_s
        )
    };
    let is_collapsed = |measured: &Measured| {
        measured.write_gb_s < COLLAPSED_WRITE_GB_S && measured.read_gb_s > FAST_READ_GB_S
    };
    // NaN is slow too.
    let is_fast = |rate: f64| rate >= SLOW_GB_S;
    let collapsed: Vec<String> = done
        .iter()
        .filter(|(_, measured)| is_collapsed(measured))
        .map(figures)
        .collect();
    let is_fine = |measured: &Measured| is_fast(measured.read_gb_s) && is_fast(measured.write_gb_s);
    let slow: Vec<String> = done
        .iter()
        .filter(|(_, measured)| !(is_collapsed(measured) || is_fine(measured)))
        .map(figures)
        .collect();
    if !collapsed.is_empty() {
        return Verdict::note(format!(
            "writes to peers collapse (GB/s): {}",
            few(&collapsed)
        ))
        .why("That is how partitions of one switch chip on several roots behave. Reads are fine.")
        .fix("--collective pull");
    }
    if !slow.is_empty() {
        return Verdict::note(format!("slow pairs (GB/s): {}", few(&slow)))
            .why(format!("x16 of generation 5 carries 53 to 57, generation 4 about 25; below {SLOW_GB_S} something is in the way."))
            .fix("see pcie-acs, pcie-link-width, pcie-bar1 and pcie-forced-p2p");
    }
    let least = done
        .iter()
        .map(|(_, measured)| measured.read_gb_s.min(measured.write_gb_s))
        .fold(f64::INFINITY, f64::min);
    let links = match done.iter().all(|(job, _)| over_nvlink(*job)) {
        true => " over NVLink",
        false => "",
    };
    Verdict::ok(format!(
        "every pair{links} reads and writes at {least:.0} GB/s or more"
    ))
}

fn latency(done: &[(Job, &Measured)]) -> Verdict {
    let one_way = |measured: &Measured| measured.flag_round_trip_us / 2.0;
    let mut sorted: Vec<f64> = done.iter().map(|(_, measured)| one_way(measured)).collect();
    sorted.sort_by(f64::total_cmp);
    let median = sorted[sorted.len() / 2];
    let is_fine = |us: f64| us <= SLOW_FLAG_US && us <= ODD_FLAG * median;
    let slow: Vec<String> = done
        .iter()
        .filter(|(_, measured)| !is_fine(one_way(measured)))
        .map(|(job, measured)| format!("{}: {:.2}", name(*job), one_way(measured)))
        .collect();
    match slow.is_empty() {
        true => Verdict::ok(format!("a flag takes {median:.2} µs in the median, {:.2} at most", sorted[sorted.len() - 1])),
        false => Verdict::note(format!("flags that take long (µs one way): {}", few(&slow)))
            .why(format!("The median is {median:.2}. A decode step of GLM-5 over ranks waits for about 157 of them one after the other. On one switch 0.63 to 0.73 is normal, across sockets up to 1.36; about 14 means that there is no direct way."))
            .fix("name the GPUs of one island (gpu-order); see iommu-mode and pcie-acs"),
    }
}

/// Starts `program arguments… FROM TO PARENT` for each job; PARENT is this process's number, for [`end_with_parent`].
#[derive(Debug, Clone)]
pub struct Spawned {
    /// The program: this one.
    pub program: PathBuf,
    /// What comes before the two GPUs.
    pub arguments: Vec<String>,
}

impl Runner for Spawned {
    fn run(&self, job: Job, limit: Duration) -> Outcome {
        let child = Command::new(&self.program)
            .args(&self.arguments)
            .args([job.from.to_string(), job.to.to_string()])
            .arg(std::process::id().to_string())
            // The numbers are NVML's, which counts along the bus.
            .env("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
            .env_remove("CUDA_VISIBLE_DEVICES")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        match child {
            Ok(child) => watch(child, limit),
            Err(error) => Outcome::Failed {
                why: format!("cannot start {}: {error}", self.program.display()),
            },
        }
    }
}

/// From now on the kernel kills this process when its parent has ended, however that ended: nobody would take the answer, and nobody
/// would end it if it hung. The parent is the thread that started it, which is to stay until it has waited.
///
/// # Errors
/// If `parent` has ended already, or the kernel refuses.
pub fn end_with_parent(parent: u32) -> std::io::Result<()> {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // It may have ended before the kernel was told.
    match getppid().map(|pid| pid.as_raw_nonzero().get().cast_unsigned()) {
        Some(pid) if pid == parent => Ok(()),
        _ => Err(std::io::Error::other(
            "the process that started it has ended",
        )),
    }
}

/// Waits for a child, reads what it says, and kills it after its time.
fn watch(mut child: Child, limit: Duration) -> Outcome {
    // Read aside: a child that fills a pipe must not wait for us, nor we for one whose pipe stays open.
    fn read(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
        thread::spawn(move || {
            let mut text = Vec::new();
            if let Some(pipe) = pipe {
                // What was read before a failure counts.
                let _ = pipe.take(MAX_ANSWER).read_to_end(&mut text);
            }
            String::from_utf8_lossy(&text).into_owned()
        })
    }
    let (stdout, stderr) = (read(child.stdout.take()), read(child.stderr.take()));
    let start = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if start.elapsed() < limit => thread::sleep(POLL.min(limit)),
            Ok(None) => {
                return Outcome::TimedOut {
                    ended: kill(&mut child),
                };
            }
            Err(error) => {
                return Outcome::Failed {
                    why: format!("cannot be waited for: {error}"),
                };
            }
        }
    };
    let text = |reader: thread::JoinHandle<String>| reader.join().unwrap_or_default();
    let (stdout, stderr) = (text(stdout), text(stderr));
    let answer = stdout.lines().rev().find(|line| line.starts_with('{'));
    match answer.map(serde_json::from_str::<Measured>) {
        Some(Ok(measured)) if status.success() => Outcome::Done(measured),
        _ => {
            let said = stderr.lines().rev().find(|line| !line.trim().is_empty());
            let why = said.map_or_else(
                || format!("it ended with {status} and no answer"),
                str::to_owned,
            );
            let why = crate::host::head(&why, 200);
            match status.code() {
                Some(UNAVAILABLE) => Outcome::Unavailable { why },
                _ => Outcome::Failed { why },
            }
        }
    }
}

/// Kills it; whether it ended.
fn kill(child: &mut Child) -> bool {
    // An error means that it has ended already, which the wait shows.
    let _ = child.kill();
    let start = Instant::now();
    while start.elapsed() < KILL_WAIT {
        if matches!(child.try_wait(), Ok(Some(_)) | Err(_)) {
            return true;
        }
        thread::sleep(POLL);
    }
    false
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::checks::Level;

    const FINE: Measured = Measured {
        bytes: 1 << 26,
        wrong_bytes: 0,
        read_gb_s: 52.0,
        write_gb_s: 54.0,
        flag_round_trip_us: 1.4,
    };

    fn judged(change: impl Fn(Job) -> Outcome) -> Vec<Finding> {
        let jobs = jobs(&[0, 1, 2]);
        let outcomes: Vec<_> = jobs.iter().map(|&job| (job, change(job))).collect();
        judge(&outcomes, jobs.len(), |_| false)
    }

    fn level(findings: &[Finding], id: &str) -> Level {
        findings
            .iter()
            .find(|finding| finding.id == id)
            .unwrap()
            .level
    }

    fn only(job: Job) -> bool {
        job == Job { from: 2, to: 0 }
    }

    #[test]
    fn each_pair_is_asked_in_both_directions() {
        assert_eq!(
            jobs(&[3, 5]),
            [Job { from: 3, to: 5 }, Job { from: 5, to: 3 }]
        );
        assert_eq!(jobs(&[0]), []);
    }

    #[test]
    fn fine_pairs_are_fine() {
        let findings = judged(|_| Outcome::Done(FINE));
        assert_eq!(findings.len(), CHECKS.len());
        assert!(
            findings
                .iter()
                .zip(CHECKS)
                .all(|(finding, (id, _))| finding.id == *id && finding.level == Level::Ok),
            "{findings:?}"
        );
    }

    #[test]
    fn one_bad_pair_is_named() {
        type Change = fn(Measured) -> Measured;
        let cases: [(&str, Level, Change); 6] = [
            ("probe-bytes", Level::Blocker, |m| Measured {
                wrong_bytes: 1,
                ..m
            }),
            ("probe-bandwidth", Level::Note, |m| Measured {
                read_gb_s: 11.0,
                ..m
            }),
            ("probe-bandwidth", Level::Note, |m| Measured {
                write_gb_s: 2.6,
                ..m
            }),
            ("probe-bandwidth", Level::Note, |m| Measured {
                read_gb_s: f64::NAN,
                ..m
            }),
            ("probe-latency", Level::Note, |m| Measured {
                flag_round_trip_us: 28.0,
                ..m
            }),
            ("probe-latency", Level::Note, |m| Measured {
                flag_round_trip_us: f64::NAN,
                ..m
            }),
        ];
        for (id, expected, change) in cases {
            let findings = judged(|job| Outcome::Done(if only(job) { change(FINE) } else { FINE }));
            let finding = findings.iter().find(|finding| finding.id == id).unwrap();
            assert_eq!(finding.level, expected, "{finding:?}");
            assert!(
                finding.title.contains("2→0") && !finding.title.contains("0→1"),
                "{finding:?}"
            );
            assert_eq!(
                findings
                    .iter()
                    .filter(|finding| finding.level != Level::Ok)
                    .count(),
                1,
                "{findings:?}"
            );
        }
    }

    #[test]
    fn a_hang_and_a_failure_are_blockers_and_the_rest_is_still_judged() {
        for bad in [
            Outcome::TimedOut { ended: true },
            Outcome::Failed {
                why: "no peer access".into(),
            },
        ] {
            let findings = judged(|job| {
                if only(job) {
                    bad.clone()
                } else {
                    Outcome::Done(FINE)
                }
            });
            assert_eq!(level(&findings, "probe-finished"), Level::Blocker);
            assert_eq!(level(&findings, "probe-bytes"), Level::Ok);
        }
    }

    #[test]
    fn a_probe_that_could_not_begin_leaves_its_pair_unknown() {
        let why = || "held".to_owned();
        let findings = judged(|job| {
            if only(job) {
                Outcome::Unavailable { why: why() }
            } else {
                Outcome::Done(FINE)
            }
        });
        assert!(
            findings[0].unknown && findings[0].title.contains("2→0 (held)"),
            "{findings:?}"
        );
        assert_eq!(level(&findings, "probe-bytes"), Level::Ok);
        assert_eq!(judge(&[], 0, |_| false).len(), 1);
    }

    #[test]
    fn nothing_is_started_after_a_probe_that_cannot_be_killed() {
        struct Lost;
        impl Runner for Lost {
            fn run(&self, _: Job, _: Duration) -> Outcome {
                Outcome::TimedOut { ended: false }
            }
        }
        let jobs = jobs(&[0, 1, 2]);
        let outcomes = probe(&Lost, &jobs, Duration::ZERO, &mut |_, _| ());
        assert_eq!(outcomes.len(), 1);
        let findings = judge(&outcomes, jobs.len(), |_| false);
        assert_eq!(findings.len(), 1);
        assert!(
            findings[0].level == Level::Blocker
                && findings[0].detail.contains("5 probes were not started"),
            "{findings:?}"
        );
    }

    /// `sh -c SCRIPT FROM TO`.
    fn shell(script: &str, limit: Duration) -> Outcome {
        let runner = Spawned {
            program: "sh".into(),
            arguments: vec!["-c".into(), script.into()],
        };
        runner.run(Job { from: 4, to: 7 }, limit)
    }

    #[test]
    fn a_process_answers_fails_or_is_killed() {
        const LONG: Duration = Duration::from_secs(60);
        // `$0` and `$1` are the job.
        let answer = r#"echo warming up; echo "{\"bytes\":$0,\"wrong_bytes\":$1,\"read_gb_s\":1,\"write_gb_s\":2,\"flag_round_trip_us\":3}""#;
        let Outcome::Done(measured) = shell(answer, LONG) else {
            panic!("no answer");
        };
        assert_eq!((measured.bytes, measured.wrong_bytes), (4, 7));
        let why = |outcome| match outcome {
            Outcome::Failed { why } => why,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            why(shell("echo no peer access >&2; exit 70", LONG)),
            "no peer access"
        );
        assert!(why(shell("echo '{\"bytes\":1}'", LONG)).contains("no answer"));
        assert_eq!(
            shell("echo the GPU is held >&2; exit 69", LONG),
            Outcome::Unavailable {
                why: "the GPU is held".into()
            }
        );
        // An answer before a crash is none.
        assert!(why(shell(&format!("{answer}; kill -SEGV $$"), LONG)).contains("signal"));
        assert_eq!(
            shell("exec sleep 600", Duration::from_millis(50)),
            Outcome::TimedOut { ended: true }
        );
        assert!(matches!(
            shell("head -c 1000000 /dev/zero", LONG),
            Outcome::Failed { .. }
        ));
    }
}
