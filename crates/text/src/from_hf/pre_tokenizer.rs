//! The `pre_tokenizer` of a `tokenizer.json`: a chain of cuts that ends in the byte alphabet.
//!
//! The parts of the `tokenizers` library that only cut are written as regular expressions, and the chain of these is
//! looked up in the table of [`pretok`]. The user's `--pre` stands in for the cuts, but not for the byte alphabet.

use serde_json::Value as Json;

use super::{Reader, shown};
use crate::TextError;
use crate::pretok::{self, DIGIT, DIGITS, GPT2, PreTokenizer};
use crate::vocab::TextOptions;

impl Reader {
    /// `ByteLevel`, or a `Sequence` of `Split` and `Digits` that ends with it.
    pub(super) fn pre_tokenizer(
        &self,
        value: &Json,
        options: TextOptions<'_>,
    ) -> Result<&'static PreTokenizer, TextError> {
        let key = "pre_tokenizer";
        let parts = match type_of(value) {
            Some("Sequence") => value.get("pretokenizers").and_then(Json::as_array),
            _ => None,
        };
        let parts = parts.map_or(std::slice::from_ref(value), Vec::as_slice);
        let Some((byte_level, cuts)) = parts
            .split_last()
            .filter(|(last, _)| type_of(last) == Some("ByteLevel"))
        else {
            return Err(self.unsupported(key, value, "ByteLevel, or a Sequence that ends with it"));
        };
        let place = match type_of(value) {
            Some("Sequence") => format!("{key}[{}]", cuts.len()),
            _ => key.to_owned(),
        };
        self.expect(byte_level, &place, "add_prefix_space", &[Json::from(false)])?;
        if let Some(name) = options.pre {
            return pretok::by_option(name);
        }

        let mut patterns = cuts
            .iter()
            .enumerate()
            .map(|(n, part)| self.pattern(&format!("{key}[{n}]"), part))
            .collect::<Result<Vec<_>, _>>()?;
        match byte_level.get("use_regex").unwrap_or(&Json::Null) {
            Json::Bool(false) => {}
            // The library's default.
            Json::Bool(true) | Json::Null => patterns.push(GPT2.pattern),
            other => return Err(self.unknown(&format!("{place}.use_regex"), shown(other))),
        }
        pretok::by_patterns(&patterns).ok_or_else(|| {
            let found = Json::from(patterns);
            self.unknown(
                key,
                format!("a cut by the regular expressions {}", shown(&found)),
            )
        })
    }

    /// The expression that cuts as this part does.
    fn pattern<'j>(&self, place: &str, part: &'j Json) -> Result<&'j str, TextError> {
        let field = |key: &str| part.get(key).unwrap_or(&Json::Null);
        let refuse = |key: &str| Err(self.unknown(&format!("{place}.{key}"), shown(field(key))));
        match type_of(part) {
            Some("Split") => {
                if field("behavior") != "Isolated" {
                    return refuse("behavior");
                }
                if !matches!(field("invert"), Json::Null | Json::Bool(false)) {
                    return refuse("invert");
                }
                match field("pattern").get("Regex").and_then(Json::as_str) {
                    Some(pattern) => Ok(pattern),
                    None => refuse("pattern"),
                }
            }
            Some("Digits") => match field("individual_digits") {
                Json::Bool(true) => Ok(DIGIT.pattern),
                Json::Bool(false) => Ok(DIGITS.pattern),
                _ => refuse("individual_digits"),
            },
            _ => Err(self.unknown(place, shown(part))),
        }
    }

    fn unknown(&self, key: &str, found: String) -> TextError {
        TextError::UnknownPreTokenizer {
            place: self.place.clone(),
            key: key.to_owned(),
            found,
            known: pretok::known_names(),
        }
    }
}

fn type_of(value: &Json) -> Option<&str> {
    value.get("type").and_then(Json::as_str)
}
