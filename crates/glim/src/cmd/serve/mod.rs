//! `glim serve`: a model behind HTTP.
//!
//! What an operator decides is checked before anything is opened; the address is taken before the model is loaded, so that probes
//! are answered meanwhile and a second server on the same port fails at once.

mod checks;
mod claim;
mod others;
mod proof;
mod watch;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use glim_engine::{EngineOptions, LoadStage};
use glim_model::Checkpoint;
use glim_server::{
    ApiKeys, Lifecycle, Loaded, ModelInfo, SamplingDefaults, Server, ServerConfig, TypeShare,
};

use self::checks::Checks;
use self::claim::{Claim, ClaimArgs};
use self::proof::Extent;
use self::watch::Watch;
use crate::exit::{Exit, Failure};
use crate::kv_events::KvEventsArgs;
use crate::loader::{self, Loading, ModelArg, TextArg};
use crate::logs::LogArgs;
use crate::placement::{Math, Placement, Setup};
use crate::prompt;
use crate::ui::Ui;

pub(crate) const EXAMPLES: &str = "\
Each option is also a key of the file that --config names (`[serve]`, `port = 8000`) and a variable
(GLIM_SERVE_PORT); the command line wins over the environment, and that over the file. glim config shows what is in force.

The first SIGTERM or Ctrl-C drains: no new requests, those that are there are finished. A second ends at once.

Examples:
  glim serve
  glim serve model.gguf --host 0.0.0.0 --api-key-file keys.txt --context 131072 --max-num-seqs 8
  curl http://127.0.0.1:8000/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": \"What is 27 + 58?\"}]}'";

/// Requests that run at a time if nothing else is asked for.
const DEFAULT_NUM_SEQS: usize = 16;
/// Whole contexts that the cache holds if nothing else is asked for: requests rarely use all of theirs, and what does not fit is
/// computed again.
const DEFAULT_CONTEXTS: usize = 4;
/// Requests that wait at most if nothing else is asked for.
const DEFAULT_QUEUE: usize = 256;

/// Options of `glim serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    model: ModelArg,
    /// File of options, below [serve] in TOML
    #[arg(long, value_name = "FILE.toml")]
    config: Option<PathBuf>,
    #[command(flatten)]
    text: TextArg,
    /// Jinja chat template to use instead of the model's own
    #[arg(long, value_name = "FILE.jinja")]
    template: Option<PathBuf>,
    /// What is proved before the first request: full (the file's bytes, the ranks' parts, that a text makes sense), file (without the last), none
    #[arg(
        long,
        value_name = "WHAT",
        default_value = "full",
        hide_possible_values = true
    )]
    verify: Extent,
    #[command(flatten)]
    http: HttpArgs,
    #[command(flatten)]
    batch: BatchArgs,
    #[command(flatten)]
    defaults: DefaultArgs,
    #[command(flatten)]
    placement: Placement,
    #[command(flatten)]
    claim: ClaimArgs,
    /// What is done where glim doctor finds the machine unfit to serve on these GPUs, or on the CPU: refuse to start, warn, or do not look (off)
    #[arg(
        long,
        value_name = "WHAT",
        default_value = "refuse",
        hide_possible_values = true
    )]
    checks: Checks,
    #[command(flatten)]
    kv_events: KvEventsArgs,
    #[command(flatten)]
    logs: LogArgs,
}

/// Who may ask, and how.
#[derive(Debug, Args)]
#[command(next_help_heading = "HTTP")]
struct HttpArgs {
    /// Address to listen on; 0.0.0.0 or :: for all of this machine's
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port to listen on; 0: any free one
    #[arg(long, value_name = "PORT", default_value_t = 8000)]
    port: u16,
    /// Name that requests call the model by (repeatable; the first is the one in responses) [default: the file's name]
    #[arg(long, value_name = "NAME")]
    served_model_name: Vec<String>,
    /// File of API keys, one on each line; without it no key is needed
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Origin whose pages may read answers, or * for all (repeatable)
    #[arg(long, value_name = "ORIGIN")]
    cors_origin: Vec<String>,
    /// Largest body of a request
    #[arg(long, value_name = "SIZE", default_value = "50M", value_parser = crate::size::parse)]
    max_body: u64,
    /// Connections at a time
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1 << 20))]
    max_connections: usize,
    /// Longest time from a request's arrival to the end of its answer
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, value_parser = crate::units::seconds(1..=MAX_SECONDS))]
    request_timeout: u64,
    /// Time that requests get to finish after SIGTERM
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = crate::units::seconds(0..=MAX_SECONDS))]
    drain_timeout: u64,
    /// Time that one step may take before /health says that the engine is stuck
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = crate::units::seconds(1..=MAX_SECONDS))]
    step_timeout: u64,
    /// Do not serve the page at /
    #[arg(long)]
    no_web_page: bool,
}

/// Longest time that can be asked for, in seconds: a week.
const MAX_SECONDS: u64 = 7 * 24 * 3600;

/// How many requests run together.
#[derive(Debug, Args)]
#[command(next_help_heading = "Batching and cache")]
struct BatchArgs {
    /// Longest sequence, prompt and answer, in tokens [default: the model's limit, at most 8192]
    #[arg(long, value_name = "TOKENS", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    context: Option<usize>,
    /// Requests that run at a time
    #[arg(long, value_name = "N", default_value_t = DEFAULT_NUM_SEQS, value_parser = RangedU64ValueParser::<usize>::new().range(1..=128))]
    max_num_seqs: usize,
    /// Prompt tokens of one step: less lets answers flow more evenly, more reads long prompts sooner
    #[arg(long, value_name = "TOKENS", default_value_t = 256, value_parser = RangedU64ValueParser::<usize>::new().range(1..=4096))]
    max_batched_tokens: usize,
    /// Requests that wait at most; beyond that they are refused with 429
    #[arg(long, value_name = "N", default_value_t = DEFAULT_QUEUE)]
    max_queue: usize,
    /// Tokens that the cache holds, of all requests together [default: four whole contexts, or one for each request if fewer]
    #[arg(long, value_name = "TOKENS", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    cache_tokens: Option<usize>,
    /// Memory of each rank for weights, caches and activations, such as 96G; the cache is cut to fit
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse)]
    memory: Option<u64>,
    /// Compute every prompt from its first token
    #[arg(long)]
    no_prefix_cache: bool,
}

/// What requests leave open.
#[derive(Debug, Args)]
#[command(next_help_heading = "Defaults of requests")]
struct DefaultArgs {
    /// Temperature [default: 1, as in the OpenAI API]
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    temperature: Option<f32>,
    /// Top-p [default: 1]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    top_p: Option<f32>,
    /// Top-k; 0: off [default: 0]
    #[arg(long, value_name = "N")]
    top_k: Option<u32>,
    /// Min-p [default: 0]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    min_p: Option<f32>,
    /// Tokens of an answer [default: up to the end of the context]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    max_tokens: Option<usize>,
}

pub(crate) fn run(args: ServeArgs, ui: &Ui) -> Result<Exit, Failure> {
    let mut setup = args.placement.setup(Math::Fast)?;
    if let Some(gpus) = &mut setup.gpus {
        gpus.insists = true;
    }
    let _logs = args.logs.start()?;
    let config = args.config()?;
    let template = args
        .template
        .as_deref()
        .map(prompt::read_text)
        .transpose()?;
    if !config.address.ip().is_loopback() && config.api_keys.is_empty() {
        tracing::warn!(
            "everybody who reaches {} may ask: --api-key-file sets keys",
            config.address
        );
    }
    let step_timeout = config.step_timeout;
    let claim = Claim::begin(&args.claim, setup.gpus.as_ref(), step_timeout)?;
    let server = match watch::inherited_socket()? {
        Some(listener) => Server::on::<Failure>(config, listener)?,
        None => Server::bind::<Failure>(config)?,
    };
    let server = server.with_signals();
    let address = server.address();
    let watch = Watch::start(server.lifecycle().clone(), step_timeout, claim.locks())?;
    let ui = ui.clone();
    let result = server.run(move |lifecycle| {
        // Said from here on, where signals are heard and probes answered.
        tracing::info!(%address, model = args.model.name(), "listening");
        if let Some(config) = &args.config {
            tracing::info!(file = %config.display(), "configured");
        }
        if let Some(why) = setup.why_cpu.take() {
            tracing::info!("running on the CPU: {why}");
        }
        if ui.json {
            ui.print_json(&serde_json::json!({ "address": address.to_string() }))?;
        }
        claim.finish(lifecycle)?;
        checks::run(args.checks, args.model.path(), &claim.gpus(), lifecycle)?;
        load(&args, setup, template.as_deref(), &ui, lifecycle)
    });
    let result = result.map(|()| Exit::Ok).map_err(Failure::from);
    watch.end(result.as_ref().err());
    result
}

/// Opens the model and makes the engine.
fn load(
    args: &ServeArgs,
    setup: Setup,
    template: Option<&str>,
    ui: &Ui,
    lifecycle: &Lifecycle,
) -> Result<Loaded, Failure> {
    lifecycle.loading("opening");
    let checkpoint = args.model.checkpoint()?;
    let mut text = args.text.of(&checkpoint)?;
    if let Some(template) = template {
        text = text.with_template(template)?;
    }
    let options = args.options(&checkpoint);
    let (math, ranks) = (setup.cpu.math, setup.world_size);
    let digest = match args.verify {
        Extent::None => None,
        _ => Some(proof::of_bytes(&checkpoint, ranks, lifecycle)?),
    };
    lifecycle.loading("plan");
    let told = |loading| match loading {
        Loading::Expected(bytes) => lifecycle.expect_bytes(bytes),
        Loading::Loaded(bytes) => lifecycle.loaded_bytes(bytes),
        Loading::Stage(stage) => lifecycle.loading(match stage {
            LoadStage::Weights => "weights",
            LoadStage::Steps => "compile",
            LoadStage::Memory => "capture",
        }),
    };
    let mut engine = loader::engine_with(&checkpoint, setup, options, ui, &told)?;
    if args.verify == Extent::Full {
        proof::of_sense(&mut engine, &text.model.tokenizer, lifecycle)?;
    }
    let config = checkpoint.config();
    let info = ModelInfo {
        architecture: config.arch.clone(),
        quantization: shares(&checkpoint),
        backend: engine.caps().name.to_string(),
        math: match math {
            glim_cpu::Math::Exact => "exact",
            glim_cpu::Math::Fast => "fast",
        }
        .to_owned(),
        ranks,
        attention: match engine.context() > config.indexer.topk {
            true => "sparse",
            false => "dense",
        }
        .to_owned(),
        index_topk: Some(config.indexer.topk),
        build: crate::version::VERSION.to_owned(),
        digest,
    };
    let memory = loader::memory(engine.budget());
    let allocated = loader::allocated(&engine).unwrap_or_default();
    tracing::info!(context = engine.context(), memory, allocated, "loaded");
    Ok(Loaded {
        engine,
        text: text.model,
        template: text.template,
        info,
    })
}

/// Tensors and bytes by type, largest first.
fn shares(checkpoint: &Checkpoint) -> Vec<TypeShare> {
    let mut shares: Vec<TypeShare> = Vec::new();
    for tensor in checkpoint.tensors() {
        let (name, bytes) = (tensor.ty.to_string(), tensor.byte_len() as u64);
        match shares.iter_mut().find(|share| share.ggml_type == name) {
            Some(share) => {
                share.tensors += 1;
                share.bytes += bytes;
            }
            None => shares.push(TypeShare {
                ggml_type: name,
                tensors: 1,
                bytes,
            }),
        }
    }
    shares.sort_by_key(|share| std::cmp::Reverse(share.bytes));
    shares
}

impl ServeArgs {
    /// Refuses what can be refused before the model is opened.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        self.config().map(drop)
    }

    fn config(&self) -> Result<ServerConfig, Failure> {
        let http = &self.http;
        let mut model_names = http.served_model_name.clone();
        if model_names.is_empty() {
            model_names.push(self.model.served_name());
        }
        if let Some(bad) = model_names.iter().find(|name| name.trim().is_empty()) {
            return Err(Failure::usage(format!(
                "--served-model-name {bad:?}: expected a name"
            )));
        }
        let api_keys = match &http.api_key_file {
            None => ApiKeys::default(),
            Some(path) => {
                let text = prompt::read_text(path)?;
                ApiKeys::parse(&text).map_err(|error| {
                    Failure::new(Exit::Config, format!("{}: {error}", path.display()))
                })?
            }
        };
        for origin in &http.cors_origin {
            let is_origin = origin == "*"
                || (origin.contains("://") && !origin.ends_with('/') && origin.is_ascii());
            if !is_origin {
                return Err(Failure::usage(format!(
                    "--cors-origin {origin}: expected an origin such as https://chat.example.org, or *"
                )));
            }
        }
        let seconds = Duration::from_secs;
        Ok(ServerConfig {
            address: SocketAddr::from((http.host, http.port)),
            model_names,
            api_keys,
            cors_origins: http.cors_origin.clone(),
            max_body_bytes: usize::try_from(http.max_body).unwrap_or(usize::MAX),
            max_connections: http.max_connections,
            request_timeout: seconds(http.request_timeout),
            drain_timeout: seconds(http.drain_timeout),
            step_timeout: seconds(http.step_timeout),
            max_queue: Some(self.batch.max_queue),
            defaults: self.defaults.check()?,
            web_page: !http.no_web_page,
            kv_events: self.kv_events.config(),
            ..ServerConfig::default()
        })
    }

    fn options(&self, checkpoint: &Checkpoint) -> EngineOptions {
        let batch = &self.batch;
        let most = checkpoint.config().max_context;
        let context = batch
            .context
            .unwrap_or(most.min(EngineOptions::DEFAULT_CONTEXT));
        let contexts = DEFAULT_CONTEXTS.min(batch.max_num_seqs);
        EngineOptions {
            context: Some(context),
            max_chunk: batch.max_batched_tokens,
            max_num_seqs: batch.max_num_seqs,
            memory: batch.memory,
            prefix_cache: !batch.no_prefix_cache,
            max_queue: Some(batch.max_queue),
            kv_events: self.kv_events.is_on(),
            cache_tokens: Some(
                batch
                    .cache_tokens
                    .unwrap_or(context.saturating_mul(contexts)),
            ),
            ..EngineOptions::default()
        }
    }
}

impl DefaultArgs {
    /// Refuses what a request could not ask for.
    fn check(&self) -> Result<SamplingDefaults, Failure> {
        let rule = |name: &str, found: Option<f32>, expected: &str, ok: &dyn Fn(f32) -> bool| {
            match found {
                Some(found) if !ok(found) => Err(Failure::usage(format!(
                    "--{name} is {found}: expected {expected}"
                ))),
                _ => Ok(()),
            }
        };
        rule("temperature", self.temperature, "0 to 2", &|t| {
            (0.0..=2.0).contains(&t)
        })?;
        rule("top-p", self.top_p, "above 0, at most 1", &|p| {
            p > 0.0 && p <= 1.0
        })?;
        rule("min-p", self.min_p, "0 to 1", &|p| (0.0..=1.0).contains(&p))?;
        Ok(SamplingDefaults {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            repetition_penalty: None,
            max_tokens: self.max_tokens,
        })
    }
}
