//! What files are refused, and with which words; what is read besides the vocabulary.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::Path;

use common::{GGUF, HF, ids};
use glim_gguf::{Array, Gguf, Metadata};
use glim_testkit::assets;
use glim_text::{
    ChatRequest, TextError, TextModel, TextOptions, Tokenizer, from_gguf, from_hf, pretok,
};
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

/// An id allocates all below it: here four million, whatever the file's size.
#[test]
fn an_id_far_beyond_all_others_is_refused() {
    let error = refusal("/added_tokens/0/id", json!(4_194_303));
    let words = "`added_tokens[0]` is 4194303, expected a token id below ";
    assert!(error.contains(words), "{error}");
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
            r#"`pre_tokenizer` is a cut by the regular expressions ["\\w+"]"#,
        ),
        (
            "/pre_tokenizer/pretokenizers/0/pattern",
            json!({"String": " "}),
            r#"`pre_tokenizer[0].pattern` is {"String":" "}"#,
        ),
        (
            "/pre_tokenizer/pretokenizers/0/invert",
            json!(true),
            "`pre_tokenizer[0].invert` is true",
        ),
        (
            "/pre_tokenizer/pretokenizers/0",
            json!({"type": "Punctuation"}),
            "`pre_tokenizer[0]` is `Punctuation`",
        ),
        (
            "/pre_tokenizer/pretokenizers/1/use_regex",
            json!(true),
            "`pre_tokenizer` is a cut by the regular expressions",
        ),
        (
            "/pre_tokenizer/pretokenizers/1",
            json!({"type": "Metaspace"}),
            "`pre_tokenizer` is `Sequence`, which is not supported (supported: ByteLevel, or a Sequence that ends with it)",
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
            "(known: glm4, glm5, ",
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
        let error = from_gguf::from_metadata(&metadata, TextOptions::default())
            .unwrap_err()
            .to_string();
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
        let error = from_gguf::from_metadata(&less, TextOptions::default())
            .unwrap_err()
            .to_string();
        assert!(error.contains(key), "{error}");
    }
}

#[test]
fn another_template_sees_the_special_tokens_of_the_file() {
    let model =
        TextModel::new(from_gguf::from_metadata(&metadata(), TextOptions::default()).unwrap())
            .unwrap();
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
    let model =
        TextModel::new(from_gguf::from_metadata(&metadata, TextOptions::default()).unwrap())
            .unwrap();
    assert_eq!(
        model.tokenizer.vocab().pre_tokenizer,
        GGUF.tokenizer.vocab().pre_tokenizer
    );
}

/// `glm4` by default: what a name in the options gives instead.
fn with_pre(pre: &str) -> TextOptions<'_> {
    TextOptions { pre: Some(pre) }
}

#[test]
fn a_pre_tokenizer_named_by_the_user_stands_in_for_an_unknown_one() {
    let mut unknown = metadata();
    unknown.set("tokenizer.ggml.pre", "default");
    let mut absent = Metadata::new();
    metadata()
        .iter()
        .filter(|(key, _)| *key != "tokenizer.ggml.pre")
        .for_each(|(key, value)| absent.set(key, value.clone()));
    for (metadata, words) in [
        (&unknown, "`tokenizer.ggml.pre` is `default`"),
        (&absent, "`tokenizer.ggml.pre` is absent"),
    ] {
        let error = from_gguf::from_metadata(metadata, TextOptions::default()).unwrap_err();
        let error = error.to_string();
        assert!(error.contains(words), "{error}");
        assert!(error.contains("`--pre NAME`"), "{error}");
        assert!(error.contains(&pretok::known_names()), "{error}");
    }
    for metadata in [unknown, absent, metadata()] {
        for name in ["glm5", "smollm"] {
            let source = from_gguf::from_metadata(&metadata, with_pre(name)).unwrap();
            assert_eq!(source.vocab.pre_tokenizer, pretok::by_name(name).unwrap());
        }
    }
    // The folder: an expression, and a part, that nobody knows.
    for part in [
        json!({"type": "Split", "pattern": {"Regex": "\\w+"}, "behavior": "Isolated", "invert": false}),
        json!({"type": "Punctuation"}),
    ] {
        let folder = folder(|name, json| {
            if name == "tokenizer.json" {
                json["pre_tokenizer"]["pretokenizers"][0] = part.clone();
            }
        });
        let error = TextModel::from_hf(folder.path()).unwrap_err();
        assert!(matches!(error, TextError::UnknownPreTokenizer { .. }));
        assert!(error.to_string().contains("`--pre NAME`"), "{error}");
        let model = TextModel::from_hf_with(folder.path(), with_pre("glm4")).unwrap();
        let text = "Hello, world! 12345";
        let special = glim_text::Special::Text;
        assert_eq!(
            model.tokenizer.encode(text, special).unwrap(),
            HF.tokenizer.encode(text, special).unwrap()
        );
    }
}

#[test]
fn a_name_of_the_user_that_nobody_knows_is_refused_with_the_known_ones() {
    let gguf = Gguf::open(&assets::tiny_glm5()).unwrap();
    for error in [
        TextModel::from_gguf_with(&gguf, with_pre("default")).unwrap_err(),
        TextModel::from_hf_with(&assets::odd_glm52(), with_pre("default")).unwrap_err(),
    ] {
        assert_eq!(
            error.to_string(),
            format!(
                "`--pre default`: no pre-tokenizer has this name; known are {}",
                pretok::known_names()
            )
        );
    }
}

#[test]
fn a_pre_tokenizer_named_by_the_user_does_not_replace_the_byte_alphabet() {
    let folder = folder(|name, json| {
        if name == "tokenizer.json" {
            json["pre_tokenizer"] = json!({"type": "Metaspace"});
        }
    });
    let error = TextModel::from_hf_with(folder.path(), with_pre("glm4")).unwrap_err();
    assert!(matches!(error, TextError::Unsupported { .. }), "{error}");
}

#[test]
fn a_name_brings_its_defaults_and_the_keys_of_the_file_override_them() {
    let read = |pre: &str, add_bos: Option<bool>| {
        let mut metadata = Metadata::new();
        self::metadata()
            .iter()
            .filter(|(key, _)| *key != "tokenizer.ggml.add_bos_token")
            .for_each(|(key, value)| metadata.set(key, value.clone()));
        metadata.set("tokenizer.ggml.pre", pre);
        if let Some(add_bos) = add_bos {
            metadata.set("tokenizer.ggml.add_bos_token", add_bos);
        }
        let vocab = from_gguf::from_metadata(&metadata, TextOptions::default())
            .unwrap()
            .vocab;
        (vocab.ignore_merges, vocab.add_bos)
    };
    for (pre, ignore_merges, add_bos) in [
        ("glm4", true, false),
        ("chatglm-bpe", false, false),
        ("llama3", true, true),
        ("qwen2", false, false),
        ("deepseek-llm", false, false),
        ("deepseek-v3", false, false),
        ("gpt-2", false, false),
        ("smollm", false, false),
    ] {
        assert_eq!(read(pre, None), (ignore_merges, add_bos), "{pre}");
        for value in [true, false] {
            assert_eq!(read(pre, Some(value)), (ignore_merges, value), "{pre}");
        }
    }
}

#[test]
fn the_chains_of_published_tokenizers_are_recognised() {
    let byte_level = |use_regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": use_regex});
    let digits = |individual: bool| json!({"type": "Digits", "individual_digits": individual});
    let split = |pattern: &str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    let sequence = |parts: Vec<Value>| json!({"type": "Sequence", "pretokenizers": parts});
    let splits = |name: &str| -> Vec<Value> {
        let row = pretok::by_name(name).unwrap();
        row.splits.iter().map(|one| split(one.pattern)).collect()
    };
    let mut deepseek_llm = splits("deepseek-llm");
    *deepseek_llm.last_mut().unwrap() = digits(false);
    for (chain, name) in [
        (byte_level(true), "gpt-2"),
        (
            json!({"type": "ByteLevel", "add_prefix_space": false}),
            "gpt-2",
        ),
        (sequence(vec![digits(true), byte_level(true)]), "smollm"),
        (
            sequence([splits("qwen2"), vec![byte_level(false)]].concat()),
            "qwen2",
        ),
        (
            sequence([splits("deepseek-v3"), vec![byte_level(false)]].concat()),
            "deepseek-v3",
        ),
        (
            sequence([deepseek_llm, vec![byte_level(false)]].concat()),
            "deepseek-llm",
        ),
    ] {
        let folder = folder(|file, json| {
            if file == "tokenizer.json" {
                json["pre_tokenizer"] = chain.clone();
            }
        });
        let vocab = from_hf::read(folder.path()).unwrap().vocab;
        assert_eq!(vocab.pre_tokenizer.name, name);
    }
}
