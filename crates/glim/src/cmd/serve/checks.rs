//! What `glim doctor` knows of the machine, asked by the server itself before it loads a model: so that its exit code tells a service
//! manager what a restart cannot mend, and its log what is to be changed.
//!
//! Only the checks that ask about the present, and only about the GPUs that are used (`glim_doctor::AtStart`).

use std::path::Path;

use clap::ValueEnum;
use glim_doctor::{Facts, Finding, Level, examine_start};
use glim_server::Lifecycle;

use crate::exit::{Exit, Failure};
use crate::host;

/// What becomes of what is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Checks {
    Refuse,
    Warn,
    Off,
}

/// Looks at the machine. `gpus` are places on the bus; none: the CPU is used.
///
/// # Errors
/// With the change to make, if the machine is unfit and that is no reason to go on.
pub(super) fn run(
    what: Checks,
    model: Option<&Path>,
    gpus: &[String],
    lifecycle: &Lifecycle,
) -> Result<(), Failure> {
    if what == Checks::Off {
        return Ok(());
    }
    lifecycle.loading("checks");
    let facts = Facts::gather(&*host::machine()?, &host::subject(model));
    let used: Vec<usize> = gpus
        .iter()
        .filter_map(|bus_id| facts.gpu_at(bus_id))
        .collect();
    if used.is_empty() && !gpus.is_empty() {
        let gpus = gpus.join(", ");
        tracing::warn!(
            gpus,
            "neither NVML nor the bus knows the GPUs: they are not checked"
        );
        return Ok(());
    }
    let (mut blockers, mut notes) = (Vec::new(), Vec::new());
    for finding in examine_start(facts, &used) {
        match finding.level {
            Level::Blocker => blockers.push(finding),
            // What is unknown is mostly for root only, and says nothing new at each start.
            Level::Note if !finding.unknown => notes.push(finding.id),
            Level::Note | Level::Ok => {}
        }
    }
    if !notes.is_empty() {
        let notes = notes.join(", ");
        tracing::info!(notes, "glim doctor has something to say about this machine");
    }
    if what == Checks::Refuse && !blockers.is_empty() {
        return Err(refused(&blockers));
    }
    for Finding {
        id,
        title,
        detail,
        fix,
        ..
    } in blockers
    {
        tracing::warn!(check = id, detail, fix, "{title}");
    }
    Ok(())
}

fn refused(blockers: &[Finding]) -> Failure {
    let told = blockers.iter().map(|finding| {
        let Finding {
            id, title, detail, ..
        } = finding;
        format!("{id}: {title}. {detail}")
    });
    let fixes = blockers.iter().map(|finding| finding.fix.as_str());
    let fixes: Vec<&str> = fixes.filter(|fix| !fix.is_empty()).collect();
    let message = format!(
        "this machine is not fit: {}",
        told.collect::<Vec<_>>().join(" ")
    );
    Failure::new(Exit::Unavailable, message).hint(format!(
        "{}; --checks warn starts all the same",
        fixes.join("; ")
    ))
}
