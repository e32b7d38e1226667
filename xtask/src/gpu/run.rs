//! `xtask gpu run`: the stages, each step a process with a time limit.

use std::fs::{self, File};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::RunArgs;
use super::pack::ARCHIVE;
use super::stages::{Order, SANITIZER, STAGES, Stage, Step};
use crate::python::{call, system};

/// Bytes of a step's output that are kept: its end.
const TAIL: usize = 16 << 10;

/// How often a running step is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// The variable that says where compiled kernels are kept.
const CACHE: &str = "GLIM_CUDA_CACHE";

/// Where everything is.
struct Place {
    programs: PathBuf,
    assets: PathBuf,
    model: PathBuf,
    cache: PathBuf,
    libraries: Option<PathBuf>,
}

/// How a step ended.
struct Outcome {
    result: &'static str,
    json: Value,
}

const PASSED: &str = "passed";
const SKIPPED: &str = "skipped";

/// Runs the stages; success if every step passed.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode> {
    for name in &args.only {
        if !STAGES.iter().any(|stage| stage.name == name) {
            let names: Vec<&str> = STAGES.iter().map(|stage| stage.name).collect();
            bail!("there is no stage `{name}`; there are {}", names.join(", "));
        }
    }
    fs::create_dir_all(&args.out)
        .with_context(|| format!("{} was not made", args.out.display()))?;
    let place = place(args)?;
    let end = Instant::now() + Duration::from_secs(args.within);
    let mut rows = Vec::new();
    let mut stages = Vec::new();
    for stage in STAGES {
        if !args.only.is_empty() && !args.only.iter().any(|name| name == stage.name) {
            continue;
        }
        let (result, steps) = run_stage(stage, &place, end, &mut rows);
        let whole = json!({ "stage": stage.name, "result": result, "steps": steps });
        write(&args.out.join(format!("{}.json", stage.name)), &whole)?;
        stages.push(json!({ "stage": stage.name, "result": result }));
        // After each stage: what comes later may take the machine with it.
        write(
            &args.out.join("summary.json"),
            &json!({ "gpu": gpu(), "stages": stages }),
        )?;
    }
    println!(
        "\n{:10} {:18} {:10} {:>8}",
        "stage", "step", "result", "seconds"
    );
    for (stage, step, outcome, seconds) in &rows {
        println!("{stage:10} {step:18} {outcome:10} {seconds:8.1}");
    }
    let failed = rows
        .iter()
        .filter(|(_, _, result, _)| *result != PASSED)
        .count();
    println!("{} steps, {failed} of them did not pass", rows.len());
    Ok(ExitCode::from(u8::from(failed > 0)))
}

fn place(args: &RunArgs) -> Result<Place> {
    let folder = std::path::absolute(&args.folder)?;
    unpack(&folder)?;
    let assets = std::path::absolute(&args.assets)?;
    let tiny = assets.join("tiny-glm5/tiny-glm5-q8_0.gguf");
    let model = std::path::absolute(args.model.as_ref().unwrap_or(&tiny))?;
    if !model.is_file() {
        bail!(
            "{} is not there: name the assets' folder by --assets",
            model.display()
        );
    }
    Ok(Place {
        programs: folder.join("programs"),
        assets,
        model,
        cache: std::env::var_os(CACHE).map_or_else(|| folder.join("cache"), PathBuf::from),
        libraries: args
            .libraries
            .as_ref()
            .map(std::path::absolute)
            .transpose()?,
    })
}

/// Unpacks the archive: by tar, or where that has no xz by Python's own library.
fn unpack(folder: &Path) -> Result<()> {
    let archive = folder.join(ARCHIVE).into_os_string();
    let to = folder.to_path_buf().into_os_string();
    let tar = ["-xJf".into(), archive.clone(), "-C".into(), to.clone()];
    call(Path::new("tar"), tar).or_else(|_| {
        let python = ["-m".into(), "tarfile".into(), "-e".into(), archive, to];
        call(&system(), python)
    })
}

type Row = (&'static str, &'static str, &'static str, f64);

/// Runs a stage's steps, side by side if they may; the worst result, and what came of each.
fn run_stage(
    stage: &Stage,
    place: &Place,
    end: Instant,
    rows: &mut Vec<Row>,
) -> (&'static str, Vec<Value>) {
    let one = |step: &Step| {
        println!("== {}: {}", stage.name, step.name);
        let begun = Instant::now();
        let left = end.saturating_duration_since(begun);
        let outcome = match left.is_zero() {
            true => Outcome {
                result: SKIPPED,
                json: json!({ "why": "no time was left" }),
            },
            false => run_step(step, place, left.min(Duration::from_secs(step.seconds))),
        };
        (outcome, begun.elapsed().as_secs_f64())
    };
    let outcomes: Vec<(Outcome, f64)> = match stage.order {
        Order::OneByOne => stage.steps.iter().map(one).collect(),
        Order::SideBySide => std::thread::scope(|scope| {
            let steps = stage.steps.iter().map(|step| scope.spawn(|| one(step)));
            let threads: Vec<_> = steps.collect();
            let joined = threads.into_iter().map(|thread| match thread.join() {
                Ok(outcome) => outcome,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            joined.collect()
        }),
    };
    let mut worst = PASSED;
    let mut steps = Vec::new();
    for (step, (outcome, seconds)) in stage.steps.iter().zip(outcomes) {
        if outcome.result != PASSED {
            worst = match worst {
                PASSED => outcome.result,
                other => other,
            };
            if let Some(output) = outcome.json["output"].as_str() {
                let from = output.len().saturating_sub(2000);
                let end = output.get(from..).unwrap_or(output);
                println!(
                    "-- {}: {}: {}\n{end}",
                    stage.name, step.name, outcome.result
                );
            }
        }
        rows.push((stage.name, step.name, outcome.result, seconds));
        let mut json = outcome.json;
        json["step"] = step.name.into();
        json["result"] = outcome.result.into();
        json["seconds"] = seconds.into();
        steps.push(json);
    }
    (worst, steps)
}

fn run_step(step: &Step, place: &Place, limit: Duration) -> Outcome {
    let own = place.programs.join(step.program);
    let program = match own.is_file() {
        true => own,
        false => PathBuf::from(step.program),
    };
    let programs = place.programs.to_string_lossy();
    let arguments: Vec<String> = step
        .arguments
        .iter()
        .map(|argument| match *argument {
            "MODEL" => place.model.to_string_lossy().into_owned(),
            other => other.replace("PROGRAMS", &programs),
        })
        .collect();
    let mut command = Command::new(&program);
    command
        .args(&arguments)
        .env("GLIM_ASSETS", &place.assets)
        .env(CACHE, &place.cache)
        .env("XDG_CACHE_HOME", &place.cache)
        .env("RUST_BACKTRACE", "0");
    if let Some(libraries) = &place.libraries {
        command.env("GLIM_CUDA_LIBRARIES", libraries);
    }
    if step.program == SANITIZER || place.libraries.is_some() {
        // It watches allocations, and so does the emulator.
        command.env("GLIM_CUDA_APART", "1");
    }
    let line = format!("{command:?}");
    match supervise(command, &place.programs.join(step.file()), limit) {
        Ok((result, code, output, printed)) => Outcome {
            result,
            json: json!({
                "command": line,
                "exit": code,
                "output": output,
                // What it printed as JSON, as such.
                "printed": serde_json::from_str::<Value>(&printed).unwrap_or(Value::Null),
            }),
        },
        Err(error) => Outcome {
            result: "missing",
            json: json!({ "command": line, "output": format!("{error:#}") }),
        },
    }
}

/// Result, exit code, the end of what it wrote, and all that it wrote to its standard output. `files` begins the names of the files that
/// it writes to.
fn supervise(
    mut command: Command,
    files: &Path,
    limit: Duration,
) -> Result<(&'static str, Option<i32>, String, String)> {
    let (out, err) = (files.with_extension("out"), files.with_extension("err"));
    command
        .stdin(Stdio::null())
        .stdout(File::create(&out)?)
        .stderr(File::create(&err)?)
        // With its children in a group of its own, which can be ended as one.
        .process_group(0);
    let mut child = command
        .spawn()
        .with_context(|| format!("{command:?} did not start"))?;
    let ended = wait(&mut child, limit)?;
    let printed = fs::read(&out).unwrap_or_default();
    let mut both = printed.clone();
    both.extend(fs::read(&err).unwrap_or_default());
    let from = both.len().saturating_sub(TAIL);
    let output = String::from_utf8_lossy(&both[from..]).into_owned();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    let (result, code) = match ended {
        None => ("timed out", None),
        Some(status) if status.success() => (PASSED, Some(0)),
        Some(status) => ("failed", status.code().or(status.signal().map(|s| -s))),
    };
    Ok((result, code, output, printed))
}

/// Waits for the end, or makes one.
fn wait(child: &mut Child, limit: Duration) -> Result<Option<std::process::ExitStatus>> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if begun.elapsed() >= limit {
            let group = format!("-{}", child.id());
            call(Path::new("kill"), ["-KILL", "--", &group])?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(LOOK);
    }
}

/// What the machine says its GPU is.
fn gpu() -> String {
    let query = "--query-gpu=name,driver_version,clocks.sm,memory.total";
    let output = Command::new("nvidia-smi")
        .args([query, "--format=csv,noheader"])
        .output();
    match output {
        Ok(output) => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        Err(error) => format!("nvidia-smi: {error}"),
    }
}

fn write(path: &Path, json: &Value) -> Result<()> {
    let text = serde_json::to_string_pretty(json)? + "\n";
    fs::write(path, text).with_context(|| format!("{} was not written", path.display()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> (&'static str, Option<i32>, String, String) {
        let folder =
            std::env::temp_dir().join(format!("glim-gpu-run-{}-{script:p}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let ended = supervise(command, &folder.join("step"), limit).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        ended
    }

    #[test]
    fn a_step_passes_or_fails_by_its_exit_code() {
        let (result, code, output, printed) =
            shell("echo '{\"a\": 1}'; echo text >&2", Duration::from_secs(60));
        assert_eq!((result, code), (PASSED, Some(0)));
        assert_eq!(output, "{\"a\": 1}\ntext\n");
        assert_eq!(printed, "{\"a\": 1}\n");
        let (result, code, ..) = shell("exit 9", Duration::from_secs(60));
        assert_eq!((result, code), ("failed", Some(9)));
    }

    #[test]
    fn a_step_that_hangs_is_ended_with_its_children() {
        let (result, code, output, _) = shell(
            "echo begun; sleep 1000 & sleep 1000",
            Duration::from_millis(300),
        );
        assert_eq!((result, code), ("timed out", None));
        assert_eq!(output, "begun\n");
    }
}
