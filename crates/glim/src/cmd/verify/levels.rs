//! The levels, run one after the other with progress.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use glim_engine::proof::{Arithmetic, Check, Level, Outcome, Probe, SENSE_TEXTS, Timer};
use glim_engine::{Engine, EngineError, EngineOptions, EnginePlan, proof as running};
use glim_model::arch::SUPPORTED;
use glim_model::shard::Options;
use glim_model::{Checkpoint, Inventory, proof};
use glim_plan::{Backend, WeightSource};
use glim_text::{Special, TokenId};

use super::VerifyArgs;
use super::report::Report;
use crate::exit::{Exit, Failure};
use crate::loader::{self, Text, TextArg};
use crate::placement::{Math, Setup};
use crate::progress::{Progress, Unit};
use crate::ui::Ui;
use crate::units;

/// Numbers of ranks that are tried when none are named.
const WORLD_SIZES: [usize; 3] = [2, 4, 8];

/// Levels that need the model loaded, and what is told in their place if it cannot be.
const RUNNING: [(Level, &str); 3] = [
    (Level::Residence, "resident"),
    (Level::Function, "steps"),
    (Level::Sense, "text"),
];

pub(super) struct Levels<'a> {
    args: &'a VerifyArgs,
    checkpoint: &'a Checkpoint,
    ui: &'a Ui,
}

impl<'a> Levels<'a> {
    pub(super) fn new(args: &'a VerifyArgs, checkpoint: &'a Checkpoint, ui: &'a Ui) -> Self {
        Self {
            args,
            checkpoint,
            ui,
        }
    }

    pub(super) fn run(&self, report: &mut Report) -> Result<(), Failure> {
        let (args, checkpoint) = (self.args, self.checkpoint);
        if args.wants(Level::File) {
            let found = self.bytes("reading", proof::file_bytes(checkpoint), |progress| {
                proof::file(checkpoint, progress)
            });
            report.digest = Some(found.digest.to_string());
            report.add(found.checks);
        }
        if args.wants(Level::Layout) {
            let total = proof::layout_bytes(checkpoint);
            report.add(self.bytes("layout", total, |progress| {
                proof::layout(checkpoint, progress)
            }));
        }
        match &args.against {
            Some(path) => report.add(self.against(path)?),
            None => report.leave_out(
                "3 checkpoint",
                "no reference to compare with (--against): only that shows faults which leave every number plausible",
            ),
        }
        if args.wants(Level::Shards) {
            report.add(self.shards());
        }
        if RUNNING.iter().any(|(level, _)| args.wants(*level)) {
            report.add(self.running()?);
        }
        for level in super::LEVELS {
            if level != Level::Checkpoint && !args.wants(level) {
                report.leave_out(&format!("{} {level}", level.number()), "not among --levels");
            }
        }
        for check in report
            .checks()
            .filter(|check| check.outcome != Outcome::Skipped)
        {
            self.ui
                .detail(|| format!("{} {}: {}", check.level, check.name, check.detail));
        }
        Ok(())
    }

    /// Shows the bytes that a job has done.
    fn bytes<T>(
        &self,
        what: &'static str,
        total: u64,
        job: impl FnOnce(proof::Progress<'_>) -> T,
    ) -> T {
        let progress = Mutex::new(Progress::new(self.ui, what, Unit::Bytes, total));
        job(&|n| {
            progress
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .add(n);
        })
    }

    fn against(&self, path: &Path) -> Result<Vec<Check>, Failure> {
        let other = Checkpoint::open(path)?;
        let total = proof::against_bytes(self.checkpoint, &other);
        Ok(self.bytes("comparing", total, |progress| {
            proof::against(self.checkpoint, &other, progress)
        }))
    }

    /// A number of ranks that the user named must do; of the usual ones those are taken that do.
    fn shards(&self) -> Vec<Check> {
        let sizes = self.args.tp.as_deref().unwrap_or(&WORLD_SIZES);
        let total = proof::shards_bytes(self.checkpoint, sizes.len());
        let mut checks = self.bytes("shards", total, |progress| {
            proof::shards(self.checkpoint, sizes, progress)
        });
        if self.args.tp.is_some() {
            for check in &mut checks {
                if check.outcome == Outcome::Skipped {
                    check.outcome = Outcome::Failed;
                }
            }
        }
        checks
    }

    /// Levels 5 to 7: on one rank, or on as many as the user names; sense once.
    fn running(&self) -> Result<Vec<Check>, Failure> {
        let text = TextArg::default().of(self.checkpoint);
        let text = text.and_then(|text| encode(&text).map(|ids| (text, ids)));
        let ids = text.as_ref().map_or(&[][..], |(_, ids)| ids);
        let longest = ids.iter().map(Vec::len).max().unwrap_or(0);
        let whole = Inventory::of(self.checkpoint);
        let can_be_cut = |world_size: &&usize| {
            whole
                .clone()
                .over(**world_size, &Options::default())
                .is_ok()
        };
        // What cannot be cut so is level 4's to say.
        let sizes = self.args.tp.as_deref().unwrap_or(&[1]);
        let mut checks = Vec::new();
        let mut wants_sense = self.args.wants(Level::Sense);
        for world_size in sizes.iter().filter(can_be_cut).copied() {
            let each = self.args.wants(Level::Residence) || self.args.wants(Level::Function);
            if !each && !wants_sense {
                break;
            }
            let mut engine = match self.engine(longest, world_size)? {
                Ok(engine) => engine,
                Err(excuses) => {
                    checks.extend(excuses);
                    continue;
                }
            };
            checks.extend(self.of_ranks(&mut engine, ids.last())?);
            if std::mem::take(&mut wants_sense) {
                checks.push(match &text {
                    Ok((text, _)) => {
                        let mut progress = self.counted("reading texts", "tokens");
                        running::sense(&mut engine, &text.model.tokenizer, &mut progress)
                    }
                    Err(failure) => self.excuse(Level::Sense, "text", true, failure),
                });
            }
        }
        Ok(checks)
    }

    /// Levels 5 and 6: each rank against its part of the file.
    fn of_ranks(
        &self,
        engine: &mut Engine,
        ids: Option<&Vec<TokenId>>,
    ) -> Result<Vec<Check>, Failure> {
        let inventory = engine.inventory().clone();
        let mut of_ranks = Vec::new();
        for rank in 0..inventory.world_size() {
            if let Some(shards) = inventory.shards() {
                of_ranks.push(
                    shards
                        .rank(self.checkpoint, rank)
                        .map_err(EngineError::from)?,
                );
            }
        }
        let mut sources: Vec<&dyn WeightSource> = Vec::new();
        sources.extend(of_ranks.iter().map(|weights| weights as &dyn WeightSource));
        if sources.is_empty() {
            sources.push(self.checkpoint);
        }
        let mut checks = Vec::new();
        if self.args.wants(Level::Residence) {
            let mut progress = self.counted("reading back", "bytes");
            checks.extend(running::residence(engine, &sources, &mut progress));
        }
        if !self.args.wants(Level::Function) {
            return Ok(checks);
        }
        let available = std::thread::available_parallelism().map_or(1, usize::from);
        let probe = Probe {
            arithmetic: match self.args.math() {
                Math::Exact => Arithmetic::Exact,
                Math::Fast => Arithmetic::EightBit,
            },
            threads: self.args.threads.unwrap_or(available),
            ids: ids.map_or(&[], Vec::as_slice),
        };
        let mut progress = self.counted("recomputing", "operations");
        checks.extend(running::function(engine, &sources, &probe, &mut progress));
        drop(progress);
        let mut progress = self.counted("end to end", "operations");
        let mut whole = running::whole(engine, self.checkpoint, &probe, &mut progress);
        if sources.len() > 1 {
            whole.name = format!("{}, {} ranks", whole.name, sources.len());
        }
        checks.push(whole);
        Ok(checks)
    }

    /// Shows how many things a job has done; it says how many there are when it begins.
    fn counted(&self, what: &'static str, things: &'static str) -> impl FnMut(u64, u64) + use<'a> {
        let (ui, mut progress) = (self.ui, None);
        move |done, all| {
            let new = || Progress::new(ui, what, Unit::Things(things), all);
            progress.get_or_insert_with(new).set(done, String::new());
        }
    }

    /// An engine with the context that the checks need; or, in its place, checks that say why there is none.
    fn engine(
        &self,
        text: usize,
        world_size: usize,
    ) -> Result<Result<Engine, Vec<Check>>, Failure> {
        let inventory = Inventory::of(self.checkpoint);
        let needed = running::context(&inventory).max(text + 1);
        let longest = inventory.config().max_context;
        let context = self.args.context.unwrap_or(needed.min(longest));
        let setup = self.args.setup(world_size)?;
        let loaded = self
            .can_run(inventory, &setup, context)
            .and_then(|()| loader::engine(self.checkpoint, setup, Some(context), self.ui));
        match loaded {
            Ok(engine) => Ok(Ok(engine)),
            // A wrong command line is no verdict on the model.
            Err(failure) if failure.exit() == Exit::Usage => Err(failure),
            Err(failure) => {
                let wanted = RUNNING
                    .into_iter()
                    .filter(|(level, _)| self.args.wants(*level));
                let excusable = failure.exit() == Exit::Unavailable;
                let check = |(level, name)| self.excuse(level, name, excusable, &failure);
                Ok(Err(wanted.map(check).collect()))
            }
        }
    }

    /// Whether this build, here and now, can run the model at all: if it knows the architecture, and there is room for it. A file of any
    /// size can be verified as bytes, but to run it takes room for all of it. A user who names the level is taken at their word.
    fn can_run(&self, inventory: Inventory, setup: &Setup, context: usize) -> Result<(), Failure> {
        let arch = &inventory.config().arch;
        if !SUPPORTED.contains(&arch.as_str()) {
            let reason = format!("this build does not run the architecture {arch}");
            return Err(Failure::new(Exit::Unavailable, reason));
        }
        // Of a GPU's memory the loader says whether it is enough.
        let insists = RUNNING.iter().any(|(level, _)| self.args.insists(*level));
        if insists || setup.gpus.is_some() {
            return Ok(());
        }
        let backend = glim_cpu::CpuBackend::new(setup.cpu.clone());
        let options = EngineOptions {
            context: Some(context),
            ..EngineOptions::default()
        };
        let plan = EnginePlan::new(inventory, &backend.caps(), options)?;
        let needed = plan.budget().total();
        match available_memory() {
            Some(available) if available < needed => Err(Failure::new(
                Exit::Unavailable,
                format!(
                    "to run the model takes {}, and {} are available: name the level in --levels to try all the same",
                    units::bytes(needed),
                    units::bytes(available)
                ),
            )),
            _ => Ok(()),
        }
    }

    /// A level that could not be checked: a failure, unless there is an excuse and the user did not name the level.
    fn excuse(&self, level: Level, name: &str, excusable: bool, failure: &Failure) -> Check {
        let timer = Timer::start(level, name);
        let reason = failure.message();
        match excusable && !self.args.insists(level) {
            true => timer.skipped(reason),
            false => timer.failed("", 0, reason, None),
        }
    }
}

/// The built-in texts as ids.
fn encode(text: &Text) -> Result<Vec<Vec<TokenId>>, Failure> {
    let encode = |sense: &glim_engine::proof::SenseText| {
        Ok(text.model.tokenizer.encode(sense.text, Special::Text)?)
    };
    SENSE_TEXTS.iter().map(encode).collect()
}

/// Bytes that a process can take without others being swapped out; `None` where nobody says.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}
