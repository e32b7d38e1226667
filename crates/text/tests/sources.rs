//! What files are refused, and with which words; what is read besides the vocabulary.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::Path;

use common::{GGUF, HF, ids};
use glim_gguf::{Array, Gguf, Metadata};
use glim_testkit::assets;
use glim_text::{ChatRequest, TextModel, Tokenizer, from_gguf, from_hf, pretok};
use serde_json::{Value, json};

/// The Hugging Face folder's text files, one of them changed.
fn folder(change: impl Fn(&str, &mut Value)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in [
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "config.json",
    ] {
        let mut json: Value =
            serde_json::from_str(&std::fs::read_to_string(assets::odd_glm52().join(name)).unwrap())
                .unwrap();
        change(name, &mut json);
        std::fs::write(folder.path().join(name), json.to_string()).unwrap();
    }
    folder
}

fn refusal(path: &str, value: Value) -> String {
    let folder = folder(|name, json| {
        if name == "tokenizer.json" {
            *json.pointer_mut(path).unwrap() = value.clone();
        }
    });
    Tokenizer::from_hf(folder.path()).unwrap_err().to_string()
}

#[test]
fn parts_of_a_tokenizer_that_would_change_ids_are_refused_by_name() {
    for (path, value, words) in [
        (
            "/normalizer",
            json!({"type": "NFC"}),
            "`normalizer` is `NFC`",
        ),
        (
            "/model/type",
            json!("Unigram"),
            "`model.type` is \"Unigram\"",
        ),
        (
            "/model/byte_fallback",
            json!(true),
            "`model.byte_fallback` is true",
        ),
        ("/model/dropout", json!(0.1), "`model.dropout` is 0.1"),
        (
            "/pre_tokenizer",
            json!({"type": "Metaspace"}),
            "`pre_tokenizer` is `Metaspace`",
        ),
        (
            "/pre_tokenizer/pretokenizers/0/pattern/Regex",
            json!("\\w+"),
            "the expressions of glm4, glm5",
        ),
        (
            "/pre_tokenizer/pretokenizers/0/behavior",
            json!("Removed"),
            "`pre_tokenizer[0].behavior` is \"Removed\"",
        ),
        (
            "/pre_tokenizer/pretokenizers/1/add_prefix_space",
            json!(true),
            "`pre_tokenizer[1].add_prefix_space` is true",
        ),
        (
            "/post_processor",
            json!({"type": "BertProcessing"}),
            "`post_processor` is `BertProcessing`",
        ),
        (
            "/added_tokens/0/lstrip",
            json!(true),
            "`added_tokens[0].lstrip` is true",
        ),
        (
            "/added_tokens/3/id",
            json!(1u64 << 40),
            "`added_tokens[3]` is 1099511627776",
        ),
        (
            "/model/merges/5",
            json!(["a"]),
            "`model.merges[5]` is [\"a\"]",
        ),
        (
            "/model/merges/0",
            json!(["h", "no such token"]),
            "`merges` is unusable",
        ),
        ("/model/vocab", json!([]), "`model.vocab` is []"),
    ] {
        let error = refusal(path, value);
        assert!(error.contains(words), "{path}: {error}");
    }
}

#[test]
fn post_processors_that_only_add_tokens_on_request_are_accepted() {
    let value = json!({"type": "Sequence", "processors": [{"type": "ByteLevel"}, {"type": "TemplateProcessing"}]});
    let folder = folder(|name, json| {
        if name == "tokenizer.json" {
            json["post_processor"] = value.clone();
            // Older files write merges as text.
            for merge in json["model"]["merges"].as_array_mut().unwrap() {
                *merge = json!(format!(
                    "{} {}",
                    merge[0].as_str().unwrap(),
                    merge[1].as_str().unwrap()
                ));
            }
        }
    });
    let tokenizer = Tokenizer::from_hf(folder.path()).unwrap();
    assert_eq!(tokenizer.vocab().merges, HF.tokenizer.vocab().merges);
}

#[test]
fn the_stop_set_is_the_union_of_all_files() {
    let folder = folder(|name, json| match name {
        "tokenizer_config.json" => json["eos_token"] = json!({"content": "[MASK]"}),
        "generation_config.json" => json["eos_token_id"] = json!(7),
        "config.json" => json["eos_token_id"] = json!([9, 8, 7]),
        _ => {}
    });
    let source = from_hf::read(folder.path()).unwrap();
    assert_eq!(source.vocab.stop, ids(&[7, 8, 9, 4064, 4065, 4071, 4073]));
    assert_eq!(source.chat_template, None);
}

#[test]
fn templates_are_found_in_the_configuration_too() {
    for template in [
        json!("T"),
        json!([{"name": "tool_use", "template": "U"}, {"name": "default", "template": "T"}]),
    ] {
        let folder = folder(|name, json| {
            if name == "tokenizer_config.json" {
                json["chat_template"] = template.clone();
            }
        });
        assert_eq!(
            from_hf::read(folder.path())
                .unwrap()
                .chat_template
                .as_deref(),
            Some("T")
        );
    }
}

#[test]
fn missing_and_broken_files_are_named() {
    let error = Tokenizer::from_hf(Path::new("no/such/folder"))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("no/such/folder") && error.contains("tokenizer.json"),
        "{error}"
    );
    let folder = folder(|_, _| {});
    std::fs::write(folder.path().join("config.json"), "{").unwrap();
    let error = Tokenizer::from_hf(folder.path()).unwrap_err().to_string();
    assert!(error.contains("config.json is not valid JSON"), "{error}");
}

fn metadata() -> Metadata {
    Gguf::open(&assets::tiny_glm5()).unwrap().metadata().clone()
}

#[test]
fn gguf_metadata_that_cannot_be_used_is_named() {
    type Change = fn(&mut Metadata);
    let cases: [(Change, &str); 8] = [
        (
            |m| m.set("tokenizer.ggml.model", "llama"),
            "`tokenizer.ggml.model` is `llama`",
        ),
        (
            |m| m.set("tokenizer.ggml.pre", "default"),
            "`tokenizer.ggml.pre` is `default`",
        ),
        (
            |m| m.set("tokenizer.ggml.pre", "default"),
            "supported: glm4, glm5",
        ),
        (
            |m| m.set("tokenizer.ggml.eot_token_id", 4096u32),
            "`tokenizer.ggml.eot_token_id` is 4096",
        ),
        (
            |m| m.set("tokenizer.ggml.token_type", Array::I32(vec![1; 3])),
            "`tokenizer.ggml.token_type` is an array of 3",
        ),
        (
            |m| m.set("tokenizer.ggml.token_type", Array::I32(vec![6; 4096])),
            "6 for token 0",
        ),
        (
            |m| {
                m.set(
                    "tokenizer.ggml.merges",
                    Array::String(["ab"].into_iter().collect()),
                )
            },
            "`tokenizer.ggml.merges[0]` is \"ab\"",
        ),
        (
            |m| m.set("tokenizer.ggml.tokens", 3u32),
            "tokenizer.ggml.tokens",
        ),
    ];
    for (change, words) in cases {
        let mut metadata = metadata();
        change(&mut metadata);
        let error = from_gguf::from_metadata(&metadata).unwrap_err().to_string();
        assert!(error.contains(words), "{words}: {error}");
    }
    for key in [
        "tokenizer.ggml.model",
        "tokenizer.ggml.pre",
        "tokenizer.ggml.tokens",
    ] {
        let mut less = Metadata::new();
        metadata()
            .iter()
            .filter(|(name, _)| *name != key)
            .for_each(|(name, value)| less.set(name, value.clone()));
        let error = from_gguf::from_metadata(&less).unwrap_err().to_string();
        assert!(error.contains(key), "{error}");
    }
}

#[test]
fn another_template_sees_the_special_tokens_of_the_file() {
    let model = TextModel::new(from_gguf::from_metadata(&metadata()).unwrap()).unwrap();
    let model = model
        .with_template("{{ bos_token }}{{ eos_token }}")
        .unwrap();
    let rendered = model
        .template
        .unwrap()
        .render(&ChatRequest::default(), model.tokenizer.added_tokens())
        .unwrap();
    assert_eq!(rendered.text(), "[gMASK]<|endoftext|>");
}

#[test]
fn the_name_glm5_means_glm4() {
    let mut metadata = metadata();
    metadata.set("tokenizer.ggml.pre", "glm5");
    let model = TextModel::new(from_gguf::from_metadata(&metadata).unwrap()).unwrap();
    assert_eq!(
        model.tokenizer.vocab().pre_tokenizer,
        GGUF.tokenizer.vocab().pre_tokenizer
    );
}

#[test]
fn every_spelling_in_the_table_leads_back_to_its_row() {
    for row in pretok::PRE_TOKENIZERS {
        for spelling in row.spellings.iter().chain([&row.pattern]) {
            assert_eq!(pretok::by_pattern(spelling), Some(row));
        }
        for name in row.aliases.iter().chain([&row.name]) {
            assert_eq!(pretok::by_name(name), Some(row));
        }
    }
}
