//! The model as the HTTP side knows it: its text, its sizes, and what it is. The engine, which runs it, is elsewhere.

use std::sync::{Arc, OnceLock};

use glim_engine::Engine;
use glim_grammar::{GrammarError, Vocabulary};
use glim_text::{TextModel, TokenId, Tokenizer};
use serde::Serialize;
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

use crate::generation::constraint::Tags;

/// What a loader gives: a model that runs, and what it is.
pub struct Loaded {
    /// Runs it.
    pub engine: Engine,
    /// Its tokenizer and chat template.
    pub text: TextModel,
    /// The template's source, of which `/info` gives the hash.
    pub template: Option<String>,
    /// What else `/info` says.
    pub info: ModelInfo,
}

/// What a model is and how it runs, for people and for `/info`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct ModelInfo {
    /// Architecture, as GGUF names it.
    pub architecture: String,
    /// Bytes of weights by type, largest first: the quantisation.
    pub quantization: Vec<TypeShare>,
    /// What computes: `cpu`, …
    pub backend: String,
    /// `exact` or `fast`.
    pub math: String,
    /// Ranks that the model is split over.
    pub ranks: usize,
    /// `sparse` if contexts can be longer than what attention looks at, else `dense`.
    pub attention: String,
    /// Positions that the indexer chooses for each token.
    pub index_topk: Option<usize>,
    /// Version of the program.
    pub build: String,
    /// Digest of the file's tensors, as `glim verify` prints it; null if they were not proved.
    pub digest: Option<String>,
}

/// A part of the weights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct TypeShare {
    /// Type, as ggml names it.
    #[serde(rename = "type")]
    pub ggml_type: String,
    /// Tensors of this type.
    pub tensors: usize,
    /// Their bytes in the file.
    pub bytes: u64,
}

/// The model as the HTTP side knows it.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) text: TextModel,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) info: ModelInfo,
    /// Names what runs, so that clients can tell whether equal seeds should give equal answers.
    pub(crate) fingerprint: String,
    /// SHA-256 of the chat template's source, in hexadecimal.
    pub(crate) template_hash: Option<String>,
    /// Whether the template knows these variables.
    pub(crate) knows_enable_thinking: bool,
    pub(crate) knows_reasoning_effort: bool,
    /// Longest sequence, in tokens.
    pub(crate) context: usize,
    /// Rows of the head.
    pub(crate) vocab_size: usize,
    /// Tokens of the tags that steer an answer.
    pub(crate) tags: Tags,
    /// Cache blocks, and the tokens in one.
    pub(crate) blocks: usize,
    pub(crate) block_size: usize,
    vocabulary: OnceLock<Result<Vocabulary, GrammarError>>,
}

impl Model {
    pub(crate) fn new(
        engine: &Engine,
        text: TextModel,
        template: Option<&str>,
        info: ModelInfo,
    ) -> Self {
        let tokenizer = text.tokenizer.clone();
        let stats = engine.stats();
        let knows = |name: &str| template.is_some_and(|source| source.contains(name));
        let hash = |source: &str| {
            let digest = Sha256::digest(source.as_bytes());
            digest.iter().map(|byte| format!("{byte:02x}")).collect()
        };
        Self {
            tags: Tags::of(&tokenizer),
            fingerprint: fingerprint(&info),
            template_hash: template.map(hash),
            knows_enable_thinking: knows("enable_thinking"),
            knows_reasoning_effort: knows("reasoning_effort"),
            context: engine.context(),
            vocab_size: engine.vocab_size(),
            blocks: stats.blocks_total,
            block_size: stats.block_size,
            vocabulary: OnceLock::new(),
            info,
            tokenizer,
            text,
        }
    }

    /// The vocabulary in the grammars' form; made when it is first needed.
    pub(crate) fn vocabulary(&self) -> Result<&Vocabulary, GrammarError> {
        let make = || Vocabulary::new(&self.tokenizer, self.vocab_size);
        self.vocabulary
            .get_or_init(make)
            .as_ref()
            .map_err(Clone::clone)
    }

    /// The text of a token alone, U+FFFD for what is no whole character, and its bytes.
    pub(crate) fn token(&self, id: TokenId) -> (String, Vec<u8>) {
        let bytes = self.tokenizer.token_bytes(id).unwrap_or_default();
        (String::from_utf8_lossy(bytes).into_owned(), bytes.to_vec())
    }
}

/// The same for the same program and the same way of computing.
fn fingerprint(info: &ModelInfo) -> String {
    let text = format!(
        "{} {} {} {}",
        info.build, info.backend, info.math, info.ranks
    );
    let digest = blake3::hash(text.as_bytes()).to_hex();
    format!("fp_{}", &digest[..10])
}
