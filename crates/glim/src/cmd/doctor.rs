//! `glim doctor`: what is wrong with this machine, and what to change. The checks are `glim_doctor`'s; here are the command line, the
//! files of recordings, and the process in which a probe runs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use glim_doctor::probe::{self, Job, Outcome, Spawned};
use glim_doctor::{Facts, Finding, Level, Recorder, Recording, examine, page};
use serde_json::json;

use crate::exit::{Exit, Failure};
use crate::ui::Ui;
use crate::version::VERSION;
use crate::{gpu, host};

/// Longest time for one probe that can be asked for, in seconds.
const MAX_PROBE_TIMEOUT: u64 = 600;

/// Name of the hidden command that is one probe.
pub(crate) const PROBE_COMMAND: &str = "doctor-probe";

const EXAMPLES: &str = "\
Exit code 1 if something must be changed first (a blocker). Nothing is changed by this command. Some registers are for root only: \
without, they are unknown, and said to be.

Examples:
  glim doctor
  sudo glim doctor --probe model-00001-of-00013.gguf
  glim doctor --json | jq '.findings[] | select(.level == \"blocker\")'
  glim doctor --record host.json
  glim doctor --from host.json -v";

/// Options of `glim doctor`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DoctorArgs {
    /// A model that is to run here: a .gguf file (any part of a split set), or a folder
    #[arg(value_name = "MODEL")]
    model: Option<PathBuf>,
    /// Let every pair of GPUs copy, check and answer each other, each pair in a process of its own
    #[arg(long)]
    probe: bool,
    /// Seconds after which a probe is killed
    #[arg(
        long, value_name = "SECONDS", default_value_t = 20, requires = "probe",
        value_parser = RangedU64ValueParser::<u64>::new().range(1..=MAX_PROBE_TIMEOUT),
    )]
    probe_timeout: u64,
    /// Write down all that was read, so that somebody else can examine it
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Examine such a file instead of this machine
    #[arg(long, value_name = "FILE", conflicts_with_all = ["model", "probe", "record"])]
    from: Option<PathBuf>,
}

/// Options of the hidden command that is one probe.
#[derive(Debug, Args)]
pub(crate) struct ProbeArgs {
    /// The GPU whose kernels run
    from: usize,
    /// The GPU whose memory they reach
    to: usize,
    /// The process that waits for the answer
    parent: u32,
}

pub(crate) fn run(args: &DoctorArgs, ui: &Ui) -> Result<Exit, Failure> {
    let (about, facts) = match &args.from {
        Some(path) => recorded(path)?,
        None => ("this machine".to_owned(), this_machine(args)?),
    };
    let mut findings = examine(&facts);
    if args.probe {
        findings.extend(probes(&facts, Duration::from_secs(args.probe_timeout), ui)?);
    }
    let blockers = findings
        .iter()
        .filter(|finding| finding.level == Level::Blocker)
        .count();
    match ui.json {
        true => ui.print_json(
            &json!({ "about": about, "blockers": blockers, "findings": findings, "facts": facts }),
        )?,
        false => ui.print(&page::page(&facts, &findings, ui.is_verbose()))?,
    }
    Ok(match blockers {
        0 => Exit::Ok,
        _ => Exit::No,
    })
}

fn recorded(path: &Path) -> Result<(String, Facts), Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| Failure::read(path, &error))?;
    let recording = Recording::parse(&text).map_err(|error| Failure::bad_data(path, error))?;
    let facts = Facts::gather(&recording, &recording.subject);
    Ok((recording.about, facts))
}

fn this_machine(args: &DoctorArgs) -> Result<Facts, Failure> {
    let subject = host::subject(args.model.as_deref());
    let live = host::live();
    let Some(path) = &args.record else {
        return Ok(Facts::gather(&live, &subject));
    };
    let about = format!("recorded by glim {VERSION}");
    let recorder = Recorder::new(&live, &about, &subject);
    let facts = Facts::gather(&recorder, &subject);
    let recording = recorder
        .finish()
        .to_text()
        .map_err(|error| Failure::new(Exit::Internal, error.to_string()))?;
    std::fs::write(path, recording).map_err(|error| {
        Failure::new(
            Exit::Temporary,
            format!("{}: cannot be written: {error}", path.display()),
        )
    })?;
    Ok(facts)
}

fn probes(facts: &Facts, limit: Duration, ui: &Ui) -> Result<Vec<Finding>, Failure> {
    let gpus: Vec<usize> = facts.gpus.iter().map(|gpu| gpu.index).collect();
    let jobs = probe::jobs(&gpus);
    let program = std::env::current_exe().map_err(|error| {
        Failure::new(
            Exit::Internal,
            format!("the path of glim itself is not known: {error}"),
        )
    })?;
    let runner = Spawned {
        program,
        arguments: vec![PROBE_COMMAND.to_owned()],
    };
    let mut told = |job: Job, outcome: &Outcome| {
        let how = match outcome {
            Outcome::Done(found) => format!(
                "reads {:.1} GB/s, writes {:.1} GB/s, a flag there and back {:.2} µs, {} wrong bytes",
                found.read_gb_s, found.write_gb_s, found.flag_round_trip_us, found.wrong_bytes
            ),
            Outcome::Unavailable { why } | Outcome::Failed { why } => why.clone(),
            Outcome::TimedOut { .. } => format!("killed after {} s", limit.as_secs()),
        };
        ui.note(&format!("probe {} → {}: {how}", job.from, job.to));
    };
    let outcomes = probe::probe(&runner, &jobs, limit, &mut told);
    let over_nvlink = |job: Job| {
        let pair = (job.from.min(job.to), job.from.max(job.to));
        facts
            .topology
            .pairs
            .iter()
            .any(|found| found.gpus == pair && found.nvlinks > 0)
    };
    Ok(probe::judge(&outcomes, jobs.len(), over_nvlink))
}

/// One probe, in this process: its measurements as one line of JSON.
pub(crate) fn run_probe(args: &ProbeArgs, ui: &Ui) -> Result<Exit, Failure> {
    probe::end_with_parent(args.parent)
        .map_err(|error| Failure::new(Exit::Temporary, format!("no probe: {error}")))?;
    ui.print_json(&gpu::probe_pair(args.from, args.to)?)?;
    Ok(Exit::Ok)
}
