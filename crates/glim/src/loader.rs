//! From the MODEL argument to something that runs: files, text, backend, engine.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use clap::Args;
use glim_cpu::{CpuBackend, CpuOptions, Pool, RankGroup, machine};
use glim_engine::{
    Budget, Engine, EngineError, EngineOptions, EnginePlan, LatentsCost, LoadStage, Rank,
    RankSpeeds,
};
use glim_gguf::Gguf;
use glim_model::checkpoint::Source;
use glim_model::proof::{Check, of_open_error};
use glim_model::shard::{Latents, Options};
use glim_model::synth::RandomWeights;
use glim_model::{Checkpoint, Inventory};
use glim_plan::collective::StandIn;
use glim_plan::{Backend, BackendError, RandomBlocks, WeightData, WeightSource};
use glim_text::{TextModel, TextOptions, from_gguf, from_hf};

use crate::builtin;
use crate::exit::{Exit, Failure};
use crate::fault;
use crate::gpu::{self, Backends};
use crate::gpu_memory::{Shortage, free_memory};
use crate::placement::{LatentsChoice, Lone, Setup};
use crate::progress::{Progress, Unit};
use crate::ui::Ui;
use crate::units;

/// The model that a command is about.
#[derive(Debug, Args)]
pub(crate) struct ModelArg {
    /// A .gguf file (any part of a split set), a folder of one, or a Hugging Face folder [default: the built-in model]
    #[arg(value_name = "MODEL")]
    path: Option<PathBuf>,
}

/// What the user decides about a model's text.
#[derive(Debug, Default, Args)]
pub(crate) struct TextArg {
    /// Cut text into pieces as this pre-tokenizer does, whatever the model's files say
    #[arg(long, value_name = "NAME")]
    pre: Option<String>,
}

/// The text side of a model.
#[derive(Debug)]
pub(crate) struct Text {
    pub(crate) model: TextModel,
    /// The source of the model's own chat template, if it has one.
    pub(crate) template: Option<String>,
}

impl Text {
    /// From the metadata of a GGUF.
    fn from_gguf(gguf: &Gguf, options: TextOptions<'_>) -> Result<Self, Failure> {
        Self::new(from_gguf::read_with(gguf, options)?)
    }

    /// From a Hugging Face folder.
    fn from_hf(folder: &Path, options: TextOptions<'_>) -> Result<Self, Failure> {
        Self::new(from_hf::read_with(folder, options)?)
    }

    fn new(source: glim_text::TextSource) -> Result<Self, Failure> {
        let template = source.chat_template.clone();
        Ok(Self {
            model: TextModel::new(source)?,
            template,
        })
    }

    /// The same model with a template of the user's.
    pub(crate) fn with_template(self, source: &str) -> Result<Self, Failure> {
        Ok(Self {
            model: self.model.with_template(source)?,
            template: Some(source.to_owned()),
        })
    }
}

impl ModelArg {
    /// Its file or folder; the built-in model has none.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// What messages and reports call the model.
    pub(crate) fn name(&self) -> String {
        self.path.as_ref().map_or_else(
            || builtin::NAME.to_owned(),
            |path| path.display().to_string(),
        )
    }

    /// What a server calls the model: the name of its file or folder, without ending and number of a part.
    pub(crate) fn served_name(&self) -> String {
        let Some(path) = &self.path else {
            return builtin::SHORT_NAME.to_owned();
        };
        let path = path.canonicalize().unwrap_or_else(|_| path.clone());
        let name = match path.is_dir() {
            true => path.file_name(),
            false => path.file_stem(),
        };
        let name = name.unwrap_or(path.as_os_str()).to_string_lossy();
        // `model-00001-of-00011`
        let is_number = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
        let part = name.rsplit_once("-of-").and_then(|(before, of)| {
            let (stem, part) = before.rsplit_once('-')?;
            (is_number(part) && is_number(of)).then_some(stem)
        });
        part.unwrap_or(&name).to_owned()
    }

    /// Opens the checkpoint.
    pub(crate) fn checkpoint(&self) -> Result<Checkpoint, Failure> {
        match &self.path {
            None => Ok(Checkpoint::from_gguf(builtin::open()?)?),
            Some(path) => Checkpoint::open(path).map_err(|error| self.explain(error.into())),
        }
    }

    /// Opens the checkpoint for a proof: one that is there and bad is a failed check.
    pub(crate) fn proved(&self) -> Result<Result<Checkpoint, Check>, Failure> {
        let opened = match &self.path {
            None => Checkpoint::from_gguf(builtin::open()?),
            Some(path) => Checkpoint::open(path),
        };
        opened.map(Ok).or_else(|error| {
            let check = of_open_error(&error);
            let failure = self.explain(error.into());
            match failure.exit() {
                Exit::BadData => Ok(Err(check)),
                _ => Err(failure),
            }
        })
    }

    /// Opens the container, whatever model is in it.
    pub(crate) fn gguf(&self) -> Result<Gguf, Failure> {
        match &self.path {
            None => builtin::open(),
            Some(path) => Gguf::open(path).map_err(|error| self.explain(error.into())),
        }
    }

    /// A prompt in the place of MODEL is the likeliest slip.
    fn explain(&self, failure: Failure) -> Failure {
        match &self.path {
            Some(path) if !path.exists() && path.to_string_lossy().contains(char::is_whitespace) => {
                failure.hint("the argument is taken for the path of a model; if it is a prompt, put it after -p")
            }
            _ => failure,
        }
    }
}

impl TextArg {
    /// Tokenizer and template only, also of models that this build cannot run.
    pub(crate) fn of_model(&self, model: &ModelArg) -> Result<Text, Failure> {
        match &model.path {
            Some(path) if is_hf_text(path) => Text::from_hf(path, self.options()),
            _ => self.of_gguf(&model.gguf()?),
        }
    }

    /// The text side of an opened checkpoint.
    pub(crate) fn of(&self, checkpoint: &Checkpoint) -> Result<Text, Failure> {
        match checkpoint.source() {
            Source::Gguf(gguf) => self.of_gguf(gguf),
            Source::Hf(folder) => Text::from_hf(folder.path(), self.options()),
        }
    }

    /// The text side of an opened container.
    pub(crate) fn of_gguf(&self, gguf: &Gguf) -> Result<Text, Failure> {
        Text::from_gguf(gguf, self.options())
    }

    fn options(&self) -> TextOptions<'_> {
        TextOptions {
            pre: self.pre.as_deref(),
        }
    }
}

/// Whether a folder's tokenizer is to be read from Hugging Face files. Repositories of GGUF files often carry a
/// `tokenizer.json` too; the GGUF is the model then.
fn is_hf_text(path: &Path) -> bool {
    let holds = |extension: &str| {
        let Ok(entries) = path.read_dir() else {
            return false;
        };
        entries
            .flatten()
            .any(|entry| entry.path().extension().is_some_and(|e| e == extension))
    };
    path.join("tokenizer.json").is_file() && (holds("safetensors") || !holds("gguf"))
}

/// Loads the weights into backends, one for each rank. This is the place that chooses them.
pub(crate) fn engine(
    checkpoint: &Checkpoint,
    setup: Setup,
    context: Option<usize>,
    ui: &Ui,
) -> Result<Engine, Failure> {
    let options = EngineOptions {
        context,
        ..EngineOptions::default()
    };
    engine_with(checkpoint, setup, options, ui, &|_| ())
}

/// How far a loading is, for whoever else wants to know.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Loading {
    /// So many bytes will be loaded.
    Expected(u64),
    /// So many more are.
    Loaded(u64),
    /// This is what is done next.
    Stage(LoadStage),
}

/// The same, with all options of the engine.
pub(crate) fn engine_with(
    checkpoint: &Checkpoint,
    setup: Setup,
    options: EngineOptions,
    ui: &Ui,
    told: &(dyn Fn(Loading) + Sync),
) -> Result<Engine, Failure> {
    checkpoint.check_loadable()?;
    let inventory = inventory(checkpoint, &setup, ui)?;
    let subject = Subject {
        name: checkpoint.source().name(),
        weights: Weights::Of(checkpoint),
    };
    load(&subject, inventory, setup, options, ui, told)
}

/// One rank of a model that exists on paper only, with random weights.
pub(crate) fn lone_rank(
    name: String,
    inventory: Inventory,
    setup: Setup,
    options: EngineOptions,
    ui: &Ui,
) -> Result<Engine, Failure> {
    let subject = Subject {
        name,
        weights: Weights::Random,
    };
    load(&subject, inventory, setup, options, ui, &|_| ())
}

/// What is loaded.
struct Subject<'a> {
    name: String,
    weights: Weights<'a>,
}

/// Where weights come from.
enum Weights<'a> {
    Of(&'a Checkpoint),
    Random,
}

impl Weights<'_> {
    /// The part of each rank that runs.
    fn of_ranks<'a>(
        &'a self,
        inventory: &'a Inventory,
        setup: &Setup,
    ) -> Result<Vec<Box<dyn WeightSource + 'a>>, Failure> {
        let first = setup.lone.map_or(0, |lone| lone.rank);
        let of_rank = |rank| -> Result<Box<dyn WeightSource + 'a>, Failure> {
            Ok(match (self, inventory.shards()) {
                (Self::Random, _) => Box::new(RandomWeights::new(inventory, rank, 0)),
                (Self::Of(checkpoint), None) => Box::new(*checkpoint),
                (Self::Of(checkpoint), Some(shards)) => {
                    Box::new(shards.rank(checkpoint, rank).map_err(EngineError::from)?)
                }
            })
        };
        (first..first + setup.ranks()).map(of_rank).collect()
    }
}

fn load(
    subject: &Subject<'_>,
    inventory: Inventory,
    mut setup: Setup,
    options: EngineOptions,
    ui: &Ui,
    told: &(dyn Fn(Loading) + Sync),
) -> Result<Engine, Failure> {
    let start = Instant::now();
    let options = EngineOptions {
        lone_rank: setup.lone.map(|lone| lone.rank),
        ..options
    };
    let plan = |setup: &Setup| -> Result<_, Failure> {
        // Asked before the backends take theirs.
        let free = setup.gpus.as_ref().map_or(Ok(Vec::new()), free_memory)?;
        let (backends, group) = backends(setup)?;
        let plan = EnginePlan::new(inventory.clone(), &backends[0].caps(), options.clone())?;
        let needed: Vec<u64> = plan.rank_budgets().iter().map(Budget::total).collect();
        let gpus = setup.gpus.as_ref();
        let shortage = gpus.and_then(|gpus| Shortage::of(gpus, &free, &needed));
        Ok((backends, group, plan, shortage))
    };
    // A GPU that cannot be opened is no reason for a service to be slow, but one to say so.
    if let Some(gpus) = setup.gpus.as_ref().filter(|gpus| gpus.insists) {
        free_memory(gpus)?;
    }
    let mut planned = plan(&setup);
    let obstacle = match (&setup.gpus, &planned) {
        (None, _) => None,
        (Some(_), Err(failure)) => Some((failure.message(), false)),
        (Some(_), Ok((.., shortage))) => shortage
            .as_ref()
            .map(|shortage| (shortage.told(), shortage.is_by_others)),
    };
    if let (Some((why, is_by_others)), Some(gpus)) = (obstacle, &setup.gpus) {
        if gpus.is_choice && !(is_by_others && gpus.insists) {
            // The GPU's memory is freed before the CPU is tried.
            drop(planned);
            setup = setup.on_cpu(why);
            planned = plan(&setup);
        } else if planned.is_ok() {
            let hint = "lower --context, use more GPUs (--tp), end what holds the memory, or use --device cpu";
            return Err(Failure::new(Exit::Unavailable, why).hint(hint));
        }
    }
    if let Some(why) = setup.why_cpu.take() {
        ui.note(&format!("note: running on the CPU: {why}"));
    }
    let (backends, group, plan, _) = planned?;
    let (name, ranks) = (&subject.name, backends.len());
    let each = if ranks > 1 {
        format!("{ranks} ranks, of which the largest needs ")
    } else {
        String::new()
    };
    ui.detail(|| format!("{name}: {each}{}", memory(plan.budget())));

    let bytes = plan.budget().weights * ranks as u64;
    told(Loading::Expected(bytes));
    let progress = Mutex::new(Progress::new(ui, "loading", Unit::Bytes, bytes));
    let sources = subject.weights.of_ranks(&inventory, &setup)?;
    let watched: Vec<_> = sources
        .iter()
        .map(|source| Watched::new(&**source, &progress, told))
        .collect();
    let loaded = backends.into_iter().zip(&watched);
    let loaded = loaded.map(|(backend, weights)| Rank { backend, weights });
    let stage = |stage| told(Loading::Stage(stage));
    let engine = Engine::load_ranks_told(plan, loaded.collect(), group, &stage);
    let engine = engine.map_err(of_loading)?;
    drop(progress);
    ui.detail(|| {
        let (backend, seconds) = (engine.caps().name, start.elapsed().as_secs_f64());
        let context = engine.context();
        format!("{name}: loaded in {seconds:.1} s, backend {backend}, context {context} tokens")
    });
    if let Some(allocated) = allocated(&engine) {
        ui.detail(|| format!("{name}: {each}{allocated}"));
    }
    Ok(engine)
}

/// A device that cannot take a model, for lack of memory or of a compiler, is one that is not available; later it has failed.
fn of_loading(error: EngineError) -> Failure {
    match error {
        EngineError::Backend(BackendError::Device { .. }) => {
            Failure::new(Exit::Unavailable, error.to_string())
                .hint("mend what it says, or use --device cpu")
        }
        error => error.into(),
    }
}

/// What the ranks will hold.
pub(crate) fn inventory(
    checkpoint: &Checkpoint,
    setup: &Setup,
    ui: &Ui,
) -> Result<Inventory, Failure> {
    let (whole, world_size) = (Inventory::of(checkpoint), setup.world_size);
    if world_size == 1 {
        return Ok(whole);
    }
    let latents = match setup.latents {
        LatentsChoice::Whole => Latents::Replicated,
        LatentsChoice::Rows => Latents::Rows,
        // A GPU reads them whole in less time than one more small collective in each layer takes.
        LatentsChoice::Auto if setup.gpus.is_some() => Latents::Replicated,
        LatentsChoice::Auto => {
            let bandwidth = machine::quick_read_bandwidth(&mut Pool::new(setup.threads()));
            let speeds = RankSpeeds {
                read_bandwidth: bandwidth / world_size as f64,
                collective_seconds: machine::exchange_seconds(world_size),
            };
            let cost = LatentsCost::estimate(&whole, world_size, &speeds)?;
            ui.detail(|| explain_latents(&speeds, &cost));
            cost.choice()
        }
    };
    let options = Options {
        latents,
        ..Options::default()
    };
    Ok(whole
        .over(world_size, &options)
        .map_err(EngineError::from)?)
}

fn explain_latents(speeds: &RankSpeeds, cost: &LatentsCost) -> String {
    let chosen = match cost.choice() {
        Latents::Replicated => "whole on each rank",
        Latents::Rows => "by rows",
    };
    let rows = cost.rows.map_or_else(
        || "not possible".to_owned(),
        |seconds| format!("{:.2} ms", seconds * 1e3),
    );
    format!(
        "latents {chosen}: a token is estimated at {:.2} ms with them whole, by rows {rows} ({:.1} GB/s a rank, {:.0} µs a collective)",
        cost.whole * 1e3,
        speeds.read_bandwidth / 1e9,
        speeds.collective_seconds * 1e6
    )
}

/// The ranks' backends, and where they meet. On the CPU they share the threads. This is the place that chooses them.
pub(crate) fn backends(setup: &Setup) -> Result<Backends, Failure> {
    let world_size = setup.world_size;
    if let Some(gpus) = &setup.gpus {
        let ranks = gpu::Ranks {
            exact: setup.cpu.math == glim_cpu::Math::Exact,
            poison: setup.cpu.poison,
            deadline: setup.deadline,
            lone: setup.lone.map(|lone| (lone.rank, world_size, lone.latency)),
        };
        let (backends, group) = gpu::backends(gpus, ranks)?;
        return Ok((fault::around(backends), group));
    }
    let with = |options| -> Box<dyn Backend> { Box::new(CpuBackend::new(options)) };
    if let Some(Lone { rank, latency }) = setup.lone {
        let stand_in = StandIn::new(rank, world_size, latency.unwrap_or_default());
        let options = CpuOptions {
            ranks: Some(Arc::new(stand_in)),
            ..setup.cpu.clone()
        };
        return Ok((vec![with(options)], None));
    }
    if world_size == 1 {
        // A group of one: there its rank says which operation it is in.
        let group = RankGroup::new(1, setup.deadline);
        let backends = vec![with(CpuOptions {
            ranks: Some(group.rank(0)),
            ..setup.cpu.clone()
        })];
        return Ok((fault::around(backends), Some(Arc::new(group))));
    }
    let group = RankGroup::new(world_size, setup.deadline);
    let backend = |rank| {
        with(CpuOptions {
            threads: Some((setup.threads() / world_size).max(1)),
            ranks: Some(group.rank(rank)),
            ..setup.cpu.clone()
        })
    };
    let backends = (0..world_size).map(backend).collect();
    Ok((fault::around(backends), Some(Arc::new(group))))
}

/// What an engine will allocate, in a line.
pub(crate) fn memory(budget: &Budget) -> String {
    format!(
        "{} of memory: weights {}, caches {} for {} tokens, arena {}",
        units::bytes(budget.total()),
        units::bytes(budget.weights),
        units::bytes(budget.latent_cache + budget.index_cache),
        budget.cache_tokens,
        units::bytes(budget.arena)
    )
}

/// What an engine has allocated, in a line; of several ranks, the one that holds most.
pub(crate) fn allocated(engine: &Engine) -> Option<String> {
    let ranks = engine.allocated().iter().flatten();
    let most = ranks.max_by_key(|allocated| allocated.total())?;
    Some(format!(
        "{} allocated: weights {}, caches {}, arena {}, for operations and inputs {}; pinned {}",
        units::bytes(most.total()),
        units::bytes(most.weights),
        units::bytes(most.states),
        units::bytes(most.arena),
        units::bytes(most.working),
        units::bytes(most.pinned)
    ))
}

/// Weights whose loading is shown.
struct Watched<'a, 'ui, S> {
    source: S,
    progress: &'a Mutex<Progress<'ui>>,
    told: &'a (dyn Fn(Loading) + Sync),
}

impl<'a, 'ui, S> Watched<'a, 'ui, S> {
    fn new(
        source: S,
        progress: &'a Mutex<Progress<'ui>>,
        told: &'a (dyn Fn(Loading) + Sync),
    ) -> Self {
        Self {
            source,
            progress,
            told,
        }
    }

    fn add(&self, bytes: usize) {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.add(bytes as u64);
        (self.told)(Loading::Loaded(bytes as u64));
    }
}

impl<S: WeightSource> WeightSource for Watched<'_, '_, S> {
    fn weight(&self, name: &str) -> Result<WeightData<'_>, BackendError> {
        let weight = self.source.weight(name)?;
        self.add(weight.bytes.len());
        Ok(weight)
    }

    fn random(&self, name: &str) -> Result<Option<RandomBlocks>, BackendError> {
        let random = self.source.random(name)?;
        if let Some(blocks) = &random {
            let elements: usize = blocks.shape.iter().product();
            self.add(elements / blocks.ty.block_elems() * blocks.ty.block_bytes());
        }
        Ok(random)
    }
}
