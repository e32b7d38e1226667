//! Tokenizer and chat template from a Hugging Face folder.
//!
//! `tokenizer.json` (format of the `tokenizers` library) holds the vocabulary; `generation_config.json` and
//! `config.json` the end-of-turn ids; `tokenizer_config.json` names special tokens; `chat_template.jinja`, or a field of
//! `tokenizer_config.json`, is the template. Only byte-level BPE as GLM uses it is taken: every part of `tokenizer.json`
//! that could change ids is looked at, and what is not known is refused by name.

mod pre_tokenizer;

use std::path::Path;

use serde_json::Value as Json;

use crate::error::json_kind;
use crate::vocab::{TextOptions, TextSource, TokenKind, Vocab, VocabToken};
use crate::{TextError, TokenId};

/// Largest id accepted, so that a wild id cannot allocate the world.
pub const MAX_VOCAB: usize = 1 << 22;

/// Most ids that no token has: an id allocates all below it, and a short file must not allocate much.
pub const MAX_UNUSED_IDS: usize = 1 << 16;

/// Special tokens of `tokenizer_config.json` that become template variables.
const SPECIAL_TOKENS: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

/// Reads the tokenizer of a checkpoint folder.
///
/// # Errors
/// Unreadable or malformed files; anything in `tokenizer.json` beyond byte-level BPE with a known pre-tokenizer.
pub fn read(folder: &Path) -> Result<TextSource, TextError> {
    read_with(folder, TextOptions::default())
}

/// As [`read`], with the user's options: a pre-tokenizer named there stands in for the file's.
///
/// # Errors
/// As [`read`], and [`TextError::NoSuchPreTokenizer`].
pub fn read_with(folder: &Path, options: TextOptions<'_>) -> Result<TextSource, TextError> {
    let path = folder.join("tokenizer.json");
    let json = read_json(&path)?.ok_or_else(|| TextError::Missing {
        place: folder.display().to_string(),
        key: "tokenizer.json".to_owned(),
        hint: "take a checkpoint folder that carries its tokenizer",
    })?;
    let mut vocab = Reader {
        place: path.display().to_string(),
    }
    .vocab(&json, options)?;

    let config = read_json(&folder.join("tokenizer_config.json"))?.unwrap_or(Json::Null);
    let mut special_tokens = Vec::new();
    for name in SPECIAL_TOKENS {
        // Either the text itself or an object that describes the added token.
        let text = config
            .get(name)
            .and_then(|value| value.as_str().or_else(|| value.get("content")?.as_str()));
        special_tokens.extend(text.map(|text| (name.to_owned(), text.to_owned())));
    }
    let id_of = |wanted: &str| {
        let text = special_tokens
            .iter()
            .find(|(name, _)| name == wanted)
            .map(|(_, text)| text)?;
        (0u32..)
            .zip(&vocab.tokens)
            .find(|(_, token)| token.kind.is_added() && token.text == *text)
            .map(|(id, _)| TokenId(id))
    };
    let (bos, pad, eos) = (id_of("bos_token"), id_of("pad_token"), id_of("eos_token"));
    vocab.bos = bos;
    vocab.pad = pad;
    vocab.add_bos = config
        .get("add_bos_token")
        .and_then(Json::as_bool)
        .unwrap_or(false);
    vocab.stop.extend(eos);
    for file in ["generation_config.json", "config.json"] {
        let path = folder.join(file);
        if let Some(json) = read_json(&path)? {
            vocab.stop.extend(stop_ids(&path, &json)?);
        }
    }
    vocab.complete_stop_set();
    Ok(TextSource {
        vocab,
        chat_template: chat_template(folder, &config)?,
        special_tokens,
    })
}

/// `None` if there is no such file.
fn read_text(path: &Path) -> Result<Option<String>, TextError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TextError::Io {
            path: path.to_owned(),
            source,
        }),
    }
}

fn read_json(path: &Path) -> Result<Option<Json>, TextError> {
    let parse = |text: String| {
        serde_json::from_str(&text).map_err(|source| TextError::Json {
            path: path.to_owned(),
            source,
        })
    };
    read_text(path)?.map(parse).transpose()
}

/// `eos_token_id`: an id, a list of ids, null or absent.
fn stop_ids(path: &Path, json: &Json) -> Result<Vec<TokenId>, TextError> {
    let invalid = |found: &Json| TextError::Invalid {
        place: path.display().to_string(),
        key: "eos_token_id".to_owned(),
        found: found.to_string(),
        expected: "a token id or a list of them".to_owned(),
    };
    let id = |value: &Json| {
        value
            .as_u64()
            .and_then(|id| u32::try_from(id).ok())
            .map(TokenId)
            .ok_or_else(|| invalid(value))
    };
    match json.get("eos_token_id") {
        None | Some(Json::Null) => Ok(Vec::new()),
        Some(Json::Array(ids)) => ids.iter().map(id).collect(),
        Some(one) => Ok(vec![id(one)?]),
    }
}

fn chat_template(folder: &Path, config: &Json) -> Result<Option<String>, TextError> {
    if let Some(text) = read_text(&folder.join("chat_template.jinja"))? {
        return Ok(Some(text));
    }
    Ok(match config.get("chat_template") {
        Some(Json::String(text)) => Some(text.clone()),
        // Several named templates: [{"name": "default", "template": "…"}, …]
        Some(Json::Array(named)) => named
            .iter()
            .find(|entry| entry.get("name").and_then(Json::as_str) == Some("default"))
            .and_then(|entry| entry.get("template")?.as_str())
            .map(str::to_owned),
        _ => None,
    })
}

/// Reads the parts of one `tokenizer.json`.
struct Reader {
    place: String,
}

impl Reader {
    fn vocab(&self, json: &Json, options: TextOptions<'_>) -> Result<Vocab, TextError> {
        for (key, supported) in [
            ("normalizer", "none"),
            ("truncation", "none"),
            ("padding", "none"),
        ] {
            if json.get(key).is_some_and(|value| !value.is_null()) {
                return Err(self.unsupported(key, &json[key], supported));
            }
        }
        self.check_post_processor(json.get("post_processor").unwrap_or(&Json::Null))?;
        let pre_tokenizer =
            self.pre_tokenizer(json.get("pre_tokenizer").unwrap_or(&Json::Null), options)?;

        let model = json.get("model").unwrap_or(&Json::Null);
        self.expect(model, "model", "type", &[Json::from("BPE")])?;
        let off = [Json::Null, Json::from(false), Json::from("")];
        for key in [
            "dropout",
            "unk_token",
            "continuing_subword_prefix",
            "end_of_word_suffix",
            "byte_fallback",
        ] {
            self.expect(model, "model", key, &off)?;
        }
        Ok(Vocab {
            tokens: self.tokens(model, json)?,
            merges: self.merges(model)?,
            pre_tokenizer,
            ignore_merges: model
                .get("ignore_merges")
                .and_then(Json::as_bool)
                .unwrap_or(false),
            bos: None,
            pad: None,
            add_bos: false,
            stop: Vec::new(),
        })
    }

    /// Post-processors only put special tokens around a text when asked to (`add_special_tokens`). Chat templates bring
    /// theirs along, and plain prompts are encoded as they are, so the kinds that do just this make no difference.
    fn check_post_processor(&self, value: &Json) -> Result<(), TextError> {
        match value.get("type").and_then(Json::as_str) {
            None if value.is_null() => Ok(()),
            Some("ByteLevel" | "TemplateProcessing") => Ok(()),
            Some("Sequence") => value["processors"]
                .as_array()
                .into_iter()
                .flatten()
                .try_for_each(|part| self.check_post_processor(part)),
            _ => Err(self.unsupported(
                "post_processor",
                value,
                "none, ByteLevel, TemplateProcessing",
            )),
        }
    }

    /// The model's vocabulary and the added tokens, by id; ids that neither names are unused.
    fn tokens(&self, model: &Json, json: &Json) -> Result<Vec<VocabToken>, TextError> {
        let mut tokens: Vec<VocabToken> = Vec::new();
        let vocab = model.get("vocab").and_then(Json::as_object);
        let vocab = vocab.ok_or_else(|| {
            self.invalid(
                "model.vocab",
                &model["vocab"],
                "an object of token texts and ids",
            )
        })?;
        let all_added = json.get("added_tokens").and_then(Json::as_array);
        let n_added = all_added.map_or(0, Vec::len);
        let limit = MAX_VOCAB.min(vocab.len() + n_added + MAX_UNUSED_IDS);
        let mut put = |key: &str, id: &Json, text: &str, kind: TokenKind| {
            let index = id
                .as_u64()
                .and_then(|id| usize::try_from(id).ok())
                .filter(|id| *id < limit);
            let index =
                index.ok_or_else(|| self.invalid(key, id, &format!("a token id below {limit}")))?;
            if index >= tokens.len() {
                tokens.resize(
                    index + 1,
                    VocabToken {
                        text: String::new(),
                        kind: TokenKind::Unused,
                    },
                );
            }
            tokens[index] = VocabToken {
                text: text.to_owned(),
                kind,
            };
            Ok::<(), TextError>(())
        };
        for (text, id) in vocab {
            put("model.vocab", id, text, TokenKind::Normal)?;
        }
        for (n, added) in all_added.into_iter().flatten().enumerate() {
            let place = format!("added_tokens[{n}]");
            for flag in ["single_word", "lstrip", "rstrip"] {
                self.expect(added, &place, flag, &[Json::from(false), Json::Null])?;
            }
            let content = added.get("content").and_then(Json::as_str);
            let content = content.ok_or_else(|| {
                self.invalid(&format!("{place}.content"), &added["content"], "a string")
            })?;
            let special = added
                .get("special")
                .and_then(Json::as_bool)
                .unwrap_or(false);
            put(
                &place,
                &added["id"],
                content,
                if special {
                    TokenKind::Control
                } else {
                    TokenKind::UserDefined
                },
            )?;
        }
        Ok(tokens)
    }

    /// Pairs, or (older files) two parts with a space between.
    fn merges(&self, model: &Json) -> Result<Vec<(String, String)>, TextError> {
        let merges = model.get("merges").and_then(Json::as_array);
        let merges = merges
            .ok_or_else(|| self.invalid("model.merges", &model["merges"], "an array of pairs"))?;
        let pair = |(rank, merge): (usize, &Json)| {
            let parts = match merge {
                Json::String(text) => text.split_once(' '),
                Json::Array(parts) => match parts.as_slice() {
                    [Json::String(left), Json::String(right)] => {
                        Some((left.as_str(), right.as_str()))
                    }
                    _ => None,
                },
                _ => None,
            };
            parts
                .map(|(left, right)| (left.to_owned(), right.to_owned()))
                .ok_or_else(|| {
                    self.invalid(&format!("model.merges[{rank}]"), merge, "a pair of strings")
                })
        };
        merges.iter().enumerate().map(pair).collect()
    }

    /// Refuses a field whose value is none of `allowed` (null also stands for an absent field).
    fn expect(
        &self,
        object: &Json,
        place: &str,
        key: &str,
        allowed: &[Json],
    ) -> Result<(), TextError> {
        let value = object.get(key).unwrap_or(&Json::Null);
        if allowed.contains(value) {
            return Ok(());
        }
        let supported: Vec<String> = allowed.iter().map(Json::to_string).collect();
        Err(self.unsupported(&format!("{place}.{key}"), value, &supported.join(" or ")))
    }

    fn unsupported(&self, key: &str, found: &Json, supported: &str) -> TextError {
        TextError::Unsupported {
            place: self.place.clone(),
            key: key.to_owned(),
            found: shown(found),
            supported: supported.to_owned(),
        }
    }

    fn invalid(&self, key: &str, found: &Json, expected: &str) -> TextError {
        TextError::Invalid {
            place: self.place.clone(),
            key: key.to_owned(),
            found: shown(found),
            expected: expected.to_owned(),
        }
    }
}

/// A JSON value for a message: its `type` if it has one, itself if short, else what kind of thing it is.
fn shown(value: &Json) -> String {
    const MAX_SHOWN: usize = 200;
    if let Some(ty) = value.get("type").and_then(Json::as_str) {
        return format!("`{ty}`");
    }
    let text = value.to_string();
    if text.len() <= MAX_SHOWN {
        text
    } else {
        json_kind(value).to_owned()
    }
}
