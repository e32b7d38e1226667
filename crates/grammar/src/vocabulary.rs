//! A model's vocabulary as llguidance wants it: the bytes of each token in a trie.
//!
//! Tokens that are no text (`<|user|>`, but also `<think>` and the tags of tool calls) are marked as special: no regular
//! expression and no JSON string matches them, so text can never be a tag, and a grammar names them by id. Ids that the
//! tokenizer does not know (a model's head has pad rows) and unused entries have no bytes: they are never allowed.

use std::sync::Arc;

use glim_text::{TokenId, TokenKind, Tokenizer};
use llguidance::toktrie::{InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenizerEnv};
use llguidance::{ParserFactory, earley::SlicedBiasComputer};

use crate::GrammarError;
use crate::limits::{
    GRAMMAR_SYMBOLS, LEXER_FUEL, LEXER_STATES, MASK_ITEMS, MASK_LEXER_FUEL, MAX_TOKEN_BYTES,
};

/// Most bytes of all tokens together: the trie numbers its nodes with 22 bits.
const MAX_VOCABULARY_BYTES: usize = (1 << 22) - 1;

/// Most tokens: the trie numbers them with 24 bits, of which one number means none.
const MAX_TOKENS: usize = (1 << 24) - 2;

/// The tokens of a model, made ready for grammars once. Cheap to clone.
#[derive(Clone)]
pub struct Vocabulary {
    shared: Arc<Shared>,
}

struct Shared {
    factory: ParserFactory,
    size: usize,
    stop: Vec<TokenId>,
    tags: Tags,
}

/// Ids of GLM's tags, as far as they are tokens.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tags {
    pub(crate) think: Option<TokenId>,
    pub(crate) think_end: Option<TokenId>,
    pub(crate) tool_call: Option<TokenId>,
    pub(crate) tool_call_end: Option<TokenId>,
    pub(crate) arg_key: Option<TokenId>,
    pub(crate) arg_key_end: Option<TokenId>,
    pub(crate) arg_value: Option<TokenId>,
    pub(crate) arg_value_end: Option<TokenId>,
}

impl Vocabulary {
    /// The vocabulary of a model whose head has `vocab_size` rows (at least as many as the tokenizer knows tokens, or the rest
    /// is left out).
    ///
    /// # Errors
    /// [`GrammarError::Vocabulary`] if there is no token that ends an answer, or more text than a trie can hold.
    pub fn new(tokenizer: &Arc<Tokenizer>, vocab_size: usize) -> Result<Self, GrammarError> {
        let fault = |reason: String| GrammarError::Vocabulary { reason };
        let rows = u32::try_from(vocab_size)
            .ok()
            .filter(|_| (1..=MAX_TOKENS).contains(&vocab_size))
            .ok_or_else(|| fault(format!("has {vocab_size} rows, expected 1 to {MAX_TOKENS}")))?;
        let words: Vec<Vec<u8>> = (0..rows).map(|id| word(tokenizer, TokenId(id))).collect();
        let bytes: usize = words.iter().map(Vec::len).sum();
        if bytes > MAX_VOCABULARY_BYTES {
            return Err(fault(format!(
                "holds {bytes} bytes of text, at most {MAX_VOCABULARY_BYTES} can be followed"
            )));
        }
        let stop: Vec<TokenId> = tokenizer
            .stop_ids()
            .iter()
            .copied()
            .filter(|id| id.0 < rows)
            .collect();
        let Some(first) = stop.first() else {
            return Err(fault(
                "has no token that ends an answer, so no answer that is bound could end".to_owned(),
            ));
        };
        let trie = TokTrie::from(&TokRxInfo::new(rows, first.0), &words);
        let stop_ids: Vec<u32> = stop.iter().map(|id| id.0).collect();
        let env: TokEnv = Arc::new(Env {
            trie: trie.with_eos_tokens(&stop_ids),
        });
        let mut factory = ParserFactory::new(
            &env,
            InferenceCapabilities::default(),
            &SlicedBiasComputer::json_slices(),
        )
        .map_err(|error| fault(format!("cannot be prepared for grammars: {error}")))?;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.initial_lexer_fuel = LEXER_FUEL;
        limits.max_grammar_size = GRAMMAR_SYMBOLS;
        limits.step_lexer_fuel = MASK_LEXER_FUEL;
        limits.step_max_items = MASK_ITEMS;
        limits.max_lexer_states = LEXER_STATES;
        limits.verbose_errors = false;
        let tag = |text: &str| {
            let id = tokenizer.added_tokens().id_of(text);
            id.filter(|id| id.0 < rows)
        };
        Ok(Self {
            shared: Arc::new(Shared {
                factory,
                size: vocab_size,
                stop,
                tags: Tags {
                    think: tag("<think>"),
                    think_end: tag("</think>"),
                    tool_call: tag("<tool_call>"),
                    tool_call_end: tag("</tool_call>"),
                    arg_key: tag("<arg_key>"),
                    arg_key_end: tag("</arg_key>"),
                    arg_value: tag("<arg_value>"),
                    arg_value_end: tag("</arg_value>"),
                },
            }),
        })
    }

    /// Number of tokens, pad rows included.
    pub fn size(&self) -> usize {
        self.shared.size
    }

    /// Number of 32-bit words of a mask.
    pub fn mask_words(&self) -> usize {
        self.shared.size.div_ceil(32)
    }

    pub(crate) fn factory(&self) -> &ParserFactory {
        &self.shared.factory
    }

    pub(crate) fn stop(&self) -> &[TokenId] {
        &self.shared.stop
    }

    pub(crate) fn tags(&self) -> Tags {
        self.shared.tags
    }
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocabulary")
            .field("size", &self.size())
            .field("stop", &self.stop())
            .finish_non_exhaustive()
    }
}

/// What the trie holds of a token.
fn word(tokenizer: &Tokenizer, id: TokenId) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    let word = match tokenizer.kind(id) {
        None | Some(TokenKind::Unused) => Vec::new(),
        Some(TokenKind::Normal) => bytes.to_vec(),
        Some(TokenKind::Unknown | TokenKind::Control | TokenKind::UserDefined) => {
            // llguidance finds special tokens by a name in angle brackets, and reads `[1]` as a token's number.
            let named = bytes.starts_with(b"<") && bytes.ends_with(b">");
            let (open, close): (&[u8], &[u8]) = if named { (b"", b"") } else { (b"<", b">") };
            [&[TokTrie::SPECIAL_TOKEN_MARKER], open, bytes, close].concat()
        }
    };
    if word.len() > MAX_TOKEN_BYTES {
        return Vec::new();
    }
    word
}

/// The trie alone. Forced text is not tokenised: the model may write it in any tokens.
struct Env {
    trie: TokTrie,
}

impl TokenizerEnv for Env {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        self.trie.greedy_tokenize(bytes)
    }

    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}
