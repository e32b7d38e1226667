//! From the MODEL argument to something that runs: files, text, backend, engine.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use clap::Args;
use glim_cpu::{CpuBackend, CpuOptions};
use glim_engine::{Budget, Engine, EngineOptions, EnginePlan};
use glim_gguf::Gguf;
use glim_model::checkpoint::Source;
use glim_model::{Checkpoint, Inventory};
use glim_plan::{Backend, BackendError, WeightData, WeightSource};
use glim_text::{TextModel, TextOptions, from_gguf, from_hf};

use crate::builtin;
use crate::exit::Failure;
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
#[derive(Debug, Args)]
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
    /// What messages and reports call the model.
    pub(crate) fn name(&self) -> String {
        self.path.as_ref().map_or_else(
            || builtin::NAME.to_owned(),
            |path| path.display().to_string(),
        )
    }

    /// Opens the checkpoint.
    pub(crate) fn checkpoint(&self) -> Result<Checkpoint, Failure> {
        match &self.path {
            None => Ok(Checkpoint::from_gguf(builtin::open()?)?),
            Some(path) => Checkpoint::open(path).map_err(|error| self.explain(error.into())),
        }
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

/// Loads the weights into a backend. This is the place that chooses one.
pub(crate) fn engine(
    checkpoint: &Checkpoint,
    cpu: CpuOptions,
    context: Option<usize>,
    ui: &Ui,
) -> Result<Engine, Failure> {
    let options = EngineOptions {
        context,
        ..EngineOptions::default()
    };
    engine_with(checkpoint, cpu, options, ui)
}

/// The same with all options.
pub(crate) fn engine_with(
    checkpoint: &Checkpoint,
    cpu: CpuOptions,
    options: EngineOptions,
    ui: &Ui,
) -> Result<Engine, Failure> {
    checkpoint.check_loadable()?;
    let start = Instant::now();
    let backend = Box::new(CpuBackend::new(cpu));
    let plan = EnginePlan::new(Inventory::of(checkpoint), &backend.caps(), options)?;
    let name = checkpoint.source().name();
    ui.detail(|| format!("{name}: {}", memory(plan.budget())));
    let weights = Watched::new(checkpoint, plan.budget().weights, ui);
    let engine = Engine::load(plan, &weights, backend)?;
    drop(weights);
    ui.detail(|| {
        let (backend, seconds) = (engine.caps().name, start.elapsed().as_secs_f64());
        let context = engine.context();
        format!("{name}: loaded in {seconds:.1} s, backend {backend}, context {context} tokens")
    });
    Ok(engine)
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

/// A checkpoint whose loading is shown.
struct Watched<'a> {
    checkpoint: &'a Checkpoint,
    progress: Mutex<Progress<'a>>,
}

impl<'a> Watched<'a> {
    fn new(checkpoint: &'a Checkpoint, bytes: u64, ui: &'a Ui) -> Self {
        let progress = Progress::new(ui, "loading", Unit::Bytes, bytes);
        Self {
            checkpoint,
            progress: Mutex::new(progress),
        }
    }
}

impl WeightSource for Watched<'_> {
    fn weight(&self, name: &str) -> Result<WeightData<'_>, BackendError> {
        let weight = self.checkpoint.weight(name)?;
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.add(weight.bytes.len() as u64);
        Ok(weight)
    }
}
