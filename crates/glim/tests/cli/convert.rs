//! `glim convert`: from a Hugging Face folder to a file that runs.

use std::path::{Path, PathBuf};

use glim_gguf::Gguf;
use glim_testkit::assets;

use super::{glim, text};

/// Names the folder of the tiny-glm5 checkpoint (38 MB, so not in the repository).
const TINY_HF: &str = "GLIM_TINY_HF";

fn convert(folder: &Path, out: &Path, file_type: &str) -> String {
    glim(&["convert", text(folder), text(out), "--type", file_type]).ok()
}

/// Names, dimensions, types, bytes and order.
#[track_caller]
fn assert_same_tensors(found: &Gguf, expected: &Gguf) {
    let names =
        |gguf: &Gguf| -> Vec<String> { gguf.tensors().iter().map(|t| t.name.clone()).collect() };
    assert_eq!(names(found), names(expected));
    for (x, y) in found.tensors().iter().zip(expected.tensors()) {
        assert_eq!((&x.ggml_dims, x.ty), (&y.ggml_dims, y.ty), "{}", x.name);
        assert!(found.data(x) == expected.data(y), "bytes of {}", x.name);
    }
}

/// Keys in which two files differ.
fn different_keys(a: &Gguf, b: &Gguf) -> Vec<String> {
    let (a, b) = (a.metadata(), b.metadata());
    let keys = a.iter().chain(b.iter()).map(|(key, _)| key);
    let mut keys: Vec<String> = keys
        .filter(|key| a.get(key) != b.get(key))
        .map(str::to_owned)
        .collect();
    keys.sort();
    keys.dedup();
    keys
}

#[test]
fn q8_0_of_the_built_in_model_is_what_llama_cpp_writes() {
    let Some(folder) = std::env::var_os(TINY_HF).map(PathBuf::from) else {
        eprintln!("skipped: {TINY_HF} does not name the folder of the tiny-glm5 checkpoint");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.gguf");
    convert(&folder, &out, "q8_0");
    let (ours, theirs) = (
        Gguf::open(&out).unwrap(),
        Gguf::open(&assets::tiny_glm5()).unwrap(),
    );
    assert_same_tensors(&ours, &theirs);
    // The name is a title made of the folder's.
    let allowed = ["general.name"];
    let different = different_keys(&ours, &theirs);
    assert!(
        different.iter().all(|key| allowed.contains(&key.as_str())),
        "{different:?}"
    );
}

#[test]
fn what_is_converted_computes_what_the_folder_does() {
    let dir = tempfile::tempdir().unwrap();
    let reference = assets::odd_glm52_reference();
    let ties = assets::odd_glm52().join("reference.ties.safetensors");
    for file_type in ["f32", "bf16"] {
        let out = dir.path().join(format!("{file_type}.gguf"));
        let said = convert(&assets::odd_glm52(), &out, file_type);
        assert!(said.contains("98 tensors"), "{said}");
        let args = [
            "eval",
            text(&out),
            "--against",
            text(&reference),
            "--against",
            text(&ties),
            "--check",
        ];
        let table = glim(&args).ok();
        assert!(table.contains("lie within the bounds"), "{table}");
    }
}

#[test]
fn the_tokenizer_travels_along() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, out) = (assets::odd_glm52(), dir.path().join("out.gguf"));
    convert(&folder, &out, "q8_0");
    let messages = super::write(
        dir.path(),
        "messages.json",
        r#"[{"role": "user", "content": "What is 27 + 58? Ünïcödé, <|user|> & 12345"}]"#,
    );
    let ids = |model: &Path| {
        let args = ["tokenize", text(model), "--messages", text(&messages)];
        glim(&[&args[..], &["--json"]].concat()).json()
    };
    assert_eq!(ids(&out), ids(&folder));

    // The tokenizer is the built-in model's, and so are its keys.
    let (ours, theirs) = (
        Gguf::open(&out).unwrap(),
        Gguf::open(&assets::tiny_glm5()).unwrap(),
    );
    for (key, value) in theirs.metadata().iter() {
        if key.starts_with("tokenizer.") && key != "tokenizer.chat_template" {
            assert_eq!(ours.metadata().get(key), Some(value), "{key}");
        }
    }
}

#[test]
fn another_pre_tokenizer_can_be_named() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, out) = (assets::odd_glm52(), dir.path().join("out.gguf"));
    let args = ["convert", text(&folder), text(&out), "--pre", "qwen2"];
    glim(&args).ok();
    let gguf = Gguf::open(&out).unwrap();
    let pre = gguf.metadata().str("tokenizer.ggml.pre").unwrap();
    assert_eq!(pre, Some("qwen2"));
}

#[test]
fn json_tells_what_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, out) = (assets::odd_glm52(), dir.path().join("out.gguf"));
    let json = glim(&["convert", text(&folder), text(&out), "--json"]).json();
    assert_eq!(json["tensors"], 98);
    assert_eq!(json["bytes"], std::fs::metadata(&out).unwrap().len());
    assert_eq!(json["path"], text(&out));
}

#[test]
fn a_failed_conversion_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.gguf");
    let (folder, path) = (assets::odd_glm52(), text(&out));
    glim(&["convert", "nowhere", path]).fails(66, &["nowhere"]);
    glim(&["convert", text(&assets::tiny_glm5()), path]).fails(64, &["GGUF", "Hugging Face"]);
    glim(&["convert", text(&folder), path, "--type", "q4_k"]).fails(64, &["q4_k"]);
    glim(&["convert", text(&folder), "model.safetensors"]).fails(64, &[".gguf"]);
    glim(&["convert", text(&folder), path, "--pre", "no-such"]).fails(64, &["no-such", "glm4"]);
    let nowhere = dir.path().join("no-folder").join("out.gguf");
    glim(&["convert", text(&folder), text(&nowhere)]).fails(66, &["no-folder"]);
    assert_eq!(dir.path().read_dir().unwrap().count(), 0);
}
