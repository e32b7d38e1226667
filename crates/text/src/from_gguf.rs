//! Tokenizer and chat template from the `tokenizer.*` metadata of a GGUF file.
//!
//! The keys are those of the GGUF specification and of llama.cpp's `llama-vocab.cpp`. End-of-turn tokens are spread
//! over several keys there; all of them count.

use glim_gguf::{Gguf, Metadata};

use crate::pretok::{self, PreTokenizer};
use crate::vocab::{TextOptions, TextSource, TokenKind, Vocab, VocabToken};
use crate::{TextError, TokenId};

/// The only `tokenizer.ggml.model` supported: byte-level BPE.
const MODEL: &str = "gpt2";

/// Keys whose ids end a turn.
const STOP_KEYS: [&str; 3] = [
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",
];

/// Template variables and the keys that hold their ids.
const SPECIAL_TOKEN_KEYS: [(&str, &str); 7] = [
    ("bos_token", "tokenizer.ggml.bos_token_id"),
    ("eos_token", "tokenizer.ggml.eos_token_id"),
    ("pad_token", "tokenizer.ggml.padding_token_id"),
    ("unk_token", "tokenizer.ggml.unknown_token_id"),
    // The word is misspelt in the format itself.
    ("sep_token", "tokenizer.ggml.seperator_token_id"),
    ("cls_token", "tokenizer.ggml.cls_token_id"),
    ("mask_token", "tokenizer.ggml.mask_token_id"),
];

/// Reads the tokenizer of an open file.
///
/// # Errors
/// Absent or ill-typed keys, a tokenizer model other than `gpt2`, an unknown pre-tokenizer, ids out of range.
pub fn read(gguf: &Gguf) -> Result<TextSource, TextError> {
    read_with(gguf, TextOptions::default())
}

/// As [`read`], with the user's options: a pre-tokenizer named there stands in for the file's.
///
/// # Errors
/// As [`read`], and [`TextError::NoSuchPreTokenizer`].
pub fn read_with(gguf: &Gguf, options: TextOptions<'_>) -> Result<TextSource, TextError> {
    from_metadata(gguf.metadata(), options)
}

/// Reads the tokenizer from metadata alone.
///
/// # Errors
/// As [`read_with`].
pub fn from_metadata(
    metadata: &Metadata,
    options: TextOptions<'_>,
) -> Result<TextSource, TextError> {
    let place = || metadata.path().display().to_string();
    let missing = |key: &str| TextError::Missing {
        place: place(),
        key: key.to_owned(),
        hint: "take a GGUF file that carries its tokenizer",
    };

    let key = "tokenizer.ggml.model";
    let model = metadata.str(key)?.ok_or_else(|| missing(key))?;
    if model != MODEL {
        return Err(TextError::Unsupported {
            place: place(),
            key: key.to_owned(),
            found: format!("`{model}`"),
            supported: format!("`{MODEL}`, which is byte-level BPE"),
        });
    }
    let pre_tokenizer = pre_tokenizer(metadata, options)?;
    let tokens = tokens(metadata)?;
    let id = |key: &str| -> Result<Option<TokenId>, TextError> {
        let Some(id) = metadata.uint(key)? else {
            return Ok(None);
        };
        match u32::try_from(id) {
            Ok(id) if (id as usize) < tokens.len() => Ok(Some(TokenId(id))),
            _ => Err(TextError::Invalid {
                place: place(),
                key: key.to_owned(),
                found: id.to_string(),
                expected: format!("a token id below {}", tokens.len()),
            }),
        }
    };
    let mut stop = Vec::new();
    for key in STOP_KEYS {
        stop.extend(id(key)?);
    }
    let mut special_tokens = Vec::new();
    for (name, key) in SPECIAL_TOKEN_KEYS {
        if let Some(token) = id(key)?.and_then(|id| tokens.get(id.0 as usize)) {
            special_tokens.push((name.to_owned(), token.text.clone()));
        }
    }
    let (bos, pad) = (
        id("tokenizer.ggml.bos_token_id")?,
        id("tokenizer.ggml.padding_token_id")?,
    );
    let mut vocab = Vocab {
        merges: merges(metadata)?,
        pre_tokenizer,
        ignore_merges: pre_tokenizer.ignore_merges,
        bos,
        pad,
        add_bos: metadata
            .bool("tokenizer.ggml.add_bos_token")?
            .unwrap_or(pre_tokenizer.add_bos),
        stop,
        tokens,
    };
    vocab.complete_stop_set();
    let chat_template = metadata.str("tokenizer.chat_template")?.map(str::to_owned);
    Ok(TextSource {
        vocab,
        chat_template,
        special_tokens,
    })
}

fn pre_tokenizer(
    metadata: &Metadata,
    options: TextOptions<'_>,
) -> Result<&'static PreTokenizer, TextError> {
    if let Some(name) = options.pre {
        return pretok::by_option(name);
    }
    let key = "tokenizer.ggml.pre";
    let name = metadata.str(key)?;
    name.and_then(pretok::by_name)
        .ok_or_else(|| TextError::UnknownPreTokenizer {
            place: metadata.path().display().to_string(),
            key: key.to_owned(),
            found: name.map_or_else(|| "absent".to_owned(), |name| format!("`{name}`")),
            known: pretok::known_names(),
        })
}

fn tokens(metadata: &Metadata) -> Result<Vec<VocabToken>, TextError> {
    let key = "tokenizer.ggml.tokens";
    let texts = metadata
        .strings(key)?
        .ok_or_else(|| metadata.missing(key, "an array of strings"))?;
    let key = "tokenizer.ggml.token_type";
    let types = metadata
        .uint_array(key)?
        .ok_or_else(|| metadata.missing(key, "an array of integers"))?;
    let invalid = |found: String, expected: String| TextError::Invalid {
        place: metadata.path().display().to_string(),
        key: key.to_owned(),
        found,
        expected,
    };
    if types.len() != texts.len() || u32::try_from(texts.len()).is_err() {
        return Err(invalid(
            format!("an array of {}", types.len()),
            format!("one type for each of the {} tokens", texts.len()),
        ));
    }
    let token = |(id, (text, ty)): (usize, (&str, &u64))| {
        let kind = match ty {
            1 => TokenKind::Normal,
            2 => TokenKind::Unknown,
            3 => TokenKind::Control,
            4 => TokenKind::UserDefined,
            5 => TokenKind::Unused,
            _ => {
                return Err(invalid(
                    format!("{ty} for token {id}"),
                    "1 to 5 (byte tokens belong to other tokenizers)".to_owned(),
                ));
            }
        };
        Ok(VocabToken {
            text: text.to_owned(),
            kind,
        })
    };
    texts.iter().zip(&types).enumerate().map(token).collect()
}

fn merges(metadata: &Metadata) -> Result<Vec<(String, String)>, TextError> {
    let key = "tokenizer.ggml.merges";
    let merges = metadata
        .strings(key)?
        .ok_or_else(|| metadata.missing(key, "an array of strings"))?;
    let pair = |(rank, merge): (usize, &str)| match merge.split_once(' ') {
        Some((left, right)) => Ok((left.to_owned(), right.to_owned())),
        None => Err(TextError::Invalid {
            place: metadata.path().display().to_string(),
            key: format!("{key}[{rank}]"),
            found: format!("{merge:?}"),
            expected: "two parts with a space between".to_owned(),
        }),
    };
    merges.iter().enumerate().map(pair).collect()
}
