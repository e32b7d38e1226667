//! The `general.*` keys: what a model is called, how large it is, how to sample from it.
//!
//! Names and rounding as in gguf-py (`metadata.py`, `utility.py`). Left out of what that package guesses: base name,
//! fine-tune and version from the words of the folder's name, and everything from the front matter of a `README.md`.

use std::path::Path;

use glim_gguf::{GgufError, Metadata, Value};
use serde_json::Value as Json;

use super::ExportTensor;
use crate::checkpoint::hf;
use crate::config::Config;
use crate::error::ModelError;

/// What a file says about its model besides hyper-parameters.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct General {
    /// `general.name`: a title for people.
    pub name: Option<String>,
    /// `general.sampling.*`: what the publisher recommends.
    pub sampling: Vec<(&'static str, Value)>,
}

impl General {
    /// From a Hugging Face folder: its own name as a title, and its `generation_config.json`.
    ///
    /// # Errors
    /// A `generation_config.json` that cannot be read or is no JSON.
    pub fn of_folder(folder: &Path) -> Result<Self, ModelError> {
        // `.` and `..` have a name only as absolute paths.
        let absolute = folder.canonicalize();
        let name = absolute.as_deref().unwrap_or(folder).file_name();
        let path = folder.join("generation_config.json");
        let config = if path.is_file() {
            hf::read_json(&path)?
        } else {
            Json::Null
        };
        Ok(Self {
            name: name.map(|name| title(&name.to_string_lossy())),
            sampling: sampling(&config),
        })
    }

    /// From the `general.*` keys of a GGUF file.
    ///
    /// # Errors
    /// A key of the wrong type.
    pub fn of_gguf(metadata: &Metadata) -> Result<Self, GgufError> {
        let mut sampling = Vec::new();
        for (_, name, whole) in SAMPLING {
            let key = format!("general.sampling.{name}");
            let value = if whole {
                let n = metadata.uint(&key)?.and_then(|n| i32::try_from(n).ok());
                n.map(Value::I32)
            } else {
                metadata.float(&key)?.map(|x| Value::F32(x as f32))
            };
            sampling.extend(value.map(|value| (name, value)));
        }
        Ok(Self {
            name: metadata.str("general.name")?.map(str::to_owned),
            sampling,
        })
    }

    /// All keys, `general.architecture` first.
    pub(super) fn keys(&self, config: &Config, size_label: &str) -> Vec<(String, Value)> {
        let mut keys: Vec<(String, Value)> = vec![
            (
                "general.architecture".to_owned(),
                config.arch.as_str().into(),
            ),
            ("general.type".to_owned(), "model".into()),
        ];
        for (name, value) in &self.sampling {
            keys.push((format!("general.sampling.{name}"), value.clone()));
        }
        if let Some(name) = &self.name {
            keys.push(("general.name".to_owned(), name.as_str().into()));
        }
        keys.push(("general.size_label".to_owned(), size_label.into()));
        keys
    }
}

/// Keys of `generation_config.json` that have a GGUF key: (there, here, whether it is a whole number).
pub(super) const SAMPLING: [(&str, &str, bool); 4] = [
    ("top_k", "top_k", true),
    ("top_p", "top_p", false),
    ("min_p", "min_p", false),
    ("temperature", "temp", false),
];

fn sampling(config: &Json) -> Vec<(&'static str, Value)> {
    let key = |&(theirs, ours, whole): &(&str, &'static str, bool)| {
        let value = config.get(theirs)?;
        let value = if whole {
            Value::I32(i32::try_from(value.as_i64()?).ok()?)
        } else {
            Value::F32(value.as_f64()? as f32)
        };
        Some((ours, value))
    };
    SAMPLING.iter().filter_map(key).collect()
}

/// `tiny-glm5` as `Tiny Glm5`: words in lower case get a capital; versions and numbers stay as they are.
fn title(name: &str) -> String {
    let words = name.split(|c: char| c == '-' || c.is_whitespace());
    let words: Vec<String> = words
        .filter(|word| !word.is_empty())
        .map(|word| {
            let is_lower =
                word.chars().any(char::is_lowercase) && !word.chars().any(char::is_uppercase);
            if is_lower && !is_version(word) {
                capitals(word)
            } else {
                word.to_owned()
            }
        })
        .collect();
    words.join(" ")
}

/// `v1.2`, or whatever begins with a digit.
fn is_version(word: &str) -> bool {
    let dotted = |text: &str| {
        text.split('.')
            .all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
    };
    word.starts_with(|c: char| c.is_ascii_digit()) || word.strip_prefix('v').is_some_and(dotted)
}

/// Each letter that follows no letter becomes a capital.
fn capitals(word: &str) -> String {
    let mut after_letter = false;
    let mut out = String::with_capacity(word.len());
    for c in word.chars() {
        if after_letter {
            out.push(c);
        } else {
            out.extend(c.to_uppercase());
        }
        after_letter = c.is_alphabetic();
    }
    out
}

/// `8x12M`: experts, and the parameters of a model that had one expert; without experts the parameters alone.
pub(super) fn size_label(tensors: &[ExportTensor<'_>]) -> String {
    let (mut shared, mut one_expert, mut experts, mut stacks) = (0u64, 0u64, 0u64, 0u64);
    for tensor in tensors {
        let elements = tensor.desc.elements() as u64;
        match tensor.desc.shape.as_slice() {
            &[n, _, _] if n > 0 && tensor.name().contains("_exps.") => {
                one_expert += elements / n as u64;
                experts += n as u64;
                stacks += 1;
            }
            _ => shared += elements,
        }
    }
    match experts.checked_div(stacks) {
        Some(n) => format!("{n}x{}", rounded(shared + one_expert)),
        None => rounded(shared),
    }
}

/// Two digits or more: `1.5B`, `744B`.
fn rounded(parameters: u64) -> String {
    let n = parameters as f64;
    let (scaled, unit) = match n {
        _ if n > 1e12 => (n * 1e-12, 'T'),
        _ if n > 1e9 => (n * 1e-9, 'B'),
        _ if n > 1e6 => (n * 1e-6, 'M'),
        _ => (n * 1e-3, 'K'),
    };
    let digits = match scaled.round_ties_even() {
        whole if whole >= 10.0 => 2,
        whole if whole >= 1.0 => 1,
        _ => 0,
    };
    format!("{scaled:.*}{unit}", 2 - digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_names_become_titles() {
        for (name, expected) in [
            ("tiny-glm5", "Tiny Glm5"),
            ("GLM-5.2", "GLM 5.2"),
            ("my_model-v1.5-2b", "My_Model v1.5 2b"),
            ("a--b", "A B"),
        ] {
            assert_eq!(title(name), expected, "{name}");
        }
    }

    #[test]
    fn parameters_are_rounded_to_two_digits_or_more() {
        for (n, expected) in [
            (400, "0.40K"),
            (12_345_678, "12M"),
            (1_500_000_000, "1.5B"),
            (9_960_000_000, "10B"),
            (743_911_000_000, "744B"),
        ] {
            assert_eq!(rounded(n), expected, "{n}");
        }
    }

    #[test]
    fn only_numbers_become_sampling_keys() {
        let config = serde_json::json!({
            "do_sample": true, "temperature": 0.7, "top_p": "0.9", "top_k": 40, "min_p": null,
        });
        let expected = vec![("top_k", Value::I32(40)), ("temp", Value::F32(0.7))];
        assert_eq!(sampling(&config), expected);
    }
}
