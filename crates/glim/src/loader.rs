//! From the MODEL argument to something that runs: files, text, backend, engine.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use glim_engine::{Engine, EngineOptions};
use glim_gguf::Gguf;
use glim_model::checkpoint::Source;
use glim_model::{Checkpoint, Inventory};
use glim_plan::Backend;
use glim_plan::reference::{ReferenceBackend, ReferenceOptions};
use glim_text::{TextModel, from_gguf, from_hf};

use crate::builtin;
use crate::exit::Failure;
use crate::placement::Placement;
use crate::ui::Ui;

/// The model that a command is about.
#[derive(Debug, Args)]
pub(crate) struct ModelArg {
    /// A .gguf file (any part of a split set), a folder of one, or a Hugging Face folder [default: the built-in model]
    #[arg(value_name = "MODEL")]
    path: Option<PathBuf>,
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
    pub(crate) fn from_gguf(gguf: &Gguf) -> Result<Self, Failure> {
        Self::new(from_gguf::read(gguf)?)
    }

    /// From a Hugging Face folder.
    pub(crate) fn from_hf(folder: &Path) -> Result<Self, Failure> {
        Self::new(from_hf::read(folder)?)
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

    /// Opens tokenizer and template only, also of models that this build cannot run.
    pub(crate) fn text(&self) -> Result<Text, Failure> {
        match &self.path {
            Some(path) if is_hf_text(path) => Text::from_hf(path),
            _ => Text::from_gguf(&self.gguf()?),
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

/// The text side of an opened checkpoint.
pub(crate) fn text_of(checkpoint: &Checkpoint) -> Result<Text, Failure> {
    match checkpoint.source() {
        Source::Gguf(gguf) => Text::from_gguf(gguf),
        Source::Hf(folder) => Text::from_hf(folder.path()),
    }
}

/// Loads the weights into a backend. This is the place that chooses one.
pub(crate) fn engine(
    checkpoint: &Checkpoint,
    placement: &Placement,
    context: Option<usize>,
    ui: &Ui,
) -> Result<Engine, Failure> {
    checkpoint.check_loadable()?;
    let start = Instant::now();
    let options = ReferenceOptions {
        poison: placement.poison,
        ..ReferenceOptions::default()
    };
    let backend: Box<dyn Backend> = Box::new(ReferenceBackend::new(options));
    let options = EngineOptions {
        context,
        ..EngineOptions::default()
    };
    let engine = Engine::new(Inventory::of(checkpoint), checkpoint, backend, options)?;
    ui.detail(|| {
        let (name, backend) = (checkpoint.source().name(), engine.caps().name);
        let (context, seconds) = (engine.context(), start.elapsed().as_secs_f64());
        format!("{name}: loaded in {seconds:.1} s, backend {backend}, context {context} tokens")
    });
    Ok(engine)
}
