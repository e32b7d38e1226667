//! `glim convert`: from a Hugging Face folder to a file that runs, and back.

use std::path::{Path, PathBuf};

use glim_gguf::Gguf;
use glim_testkit::assets;
use glim_testkit::hf::TinyHf;
use glim_testkit::tiny::Tiny;

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
    glim(&["convert", text(&assets::tiny_glm5()), path]).fails(64, &["out.gguf", "folder"]);
    glim(&["convert", text(&folder), path, "--type", "q4_k"]).fails(64, &["q4_k"]);
    glim(&["convert", text(&folder), "model.safetensors"]).fails(64, &[".gguf"]);
    glim(&["convert", text(&folder), path, "--pre", "no-such"]).fails(64, &["no-such", "glm4"]);
    let nowhere = dir.path().join("no-folder").join("out.gguf");
    glim(&["convert", text(&folder), text(&nowhere)]).fails(66, &["no-folder"]);
    glim(&["convert", text(&folder), path, "--split-size", "5"]).fails(64, &["split-size", "45G"]);
    glim(&["convert", text(&folder), path, "--split-size", "0G"]).fails(64, &["split-size"]);
    let (tiny, target) = (assets::tiny_glm5(), dir.path().join("hf"));
    let (tiny, target) = (text(&tiny), text(&target));
    glim(&["convert", tiny, target, "--type", "q8_0"]).fails(64, &["q8_0", "bf16"]);
    glim(&["convert", tiny, target, "--pre", "no-such"]).fails(64, &["no-such", "glm4"]);
    let nowhere = dir.path().join("no-folder").join("hf");
    glim(&["convert", tiny, text(&nowhere)]).fails(66, &["no-folder"]);
    assert_eq!(dir.path().read_dir().unwrap().count(), 0);
}

/// The keys as well: nothing of what GGUF files say of these models is lost in a folder.
#[test]
fn a_gguf_comes_back_from_its_folder_byte_for_byte() {
    let dir = tempfile::tempdir().unwrap();
    let (gguf, back) = (dir.path().join("a.gguf"), dir.path().join("b.gguf"));
    convert(&assets::odd_glm52(), &gguf, "bf16");
    // The name of the model is the folder's.
    let folder = dir.path().join("odd-glm52");
    let said = glim(&["convert", text(&gguf), text(&folder)]).ok();
    assert!(said.contains("174 tensors"), "{said}");
    convert(&folder, &back, "bf16");
    let (a, b) = (Gguf::open(&gguf).unwrap(), Gguf::open(&back).unwrap());
    assert_same_tensors(&b, &a);
    assert_eq!(different_keys(&a, &b), [] as [&str; 0]);
    let bytes = |path: &Path| std::fs::read(path).unwrap();
    assert!(
        bytes(&gguf) == bytes(&back),
        "the order of keys and tensors"
    );
}

#[test]
fn a_folder_made_of_a_gguf_runs_and_encodes_as_the_file_does() {
    let dir = tempfile::tempdir().unwrap();
    let (source, folder) = (assets::tiny_glm5(), dir.path().join("tiny-glm5"));
    let args = [
        "convert",
        text(&source),
        text(&folder),
        "--type",
        "f32",
        "--split-size",
        "30M",
    ];
    let outcome = glim(&args);
    assert!(
        outcome
            .stderr
            .contains("note: 217 tensors are quantised: their values are decoded, exact"),
        "{outcome:?}"
    );
    outcome.ok();
    let mut names: Vec<String> = folder
        .read_dir()
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "chat_template.jinja",
            "config.json",
            "generation_config.json",
            "model-00001-of-00003.safetensors",
            "model-00002-of-00003.safetensors",
            "model-00003-of-00003.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json",
            "tokenizer_config.json",
        ]
    );
    // The same values, and exact arithmetic: the same tokens.
    let answer = |model: &Path| {
        let args = [
            "run",
            text(model),
            "-p",
            "What is 27 + 58?",
            "--math",
            "exact",
        ];
        glim(&args).ok()
    };
    let (found, expected) = (answer(&folder), answer(&source));
    assert_eq!(expected, "85\n");
    assert_eq!(found, expected);
}

#[test]
fn a_set_of_parts_is_named_file_by_file() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, out) = (assets::odd_glm52(), dir.path().join("m.gguf"));
    let args = [
        "convert",
        text(&folder),
        text(&out),
        "--split-size",
        "4M",
        "--json",
    ];
    let json = glim(&args).json();
    let files: Vec<&str> = json["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|f| f.as_str().unwrap())
        .collect();
    let n = files.len();
    assert!(n >= 3, "{json}");
    for (i, file) in files.iter().enumerate() {
        assert!(
            file.ends_with(&format!("m-{:05}-of-{n:05}.gguf", i + 1)),
            "{json}"
        );
        assert!(
            std::fs::metadata(file).unwrap().len() <= 4_000_000,
            "{json}"
        );
    }
    assert_eq!(json["path"], files[0]);
    let whole = dir.path().join("whole.gguf");
    convert(&folder, &whole, "bf16");
    let (set, whole) = (
        Gguf::open(Path::new(files[1])).unwrap(),
        Gguf::open(&whole).unwrap(),
    );
    assert_same_tensors(&set, &whole);
    assert_eq!(
        different_keys(&set, &whole),
        ["split.count", "split.no", "split.tensors.count"]
    );
}

#[test]
fn fp8_is_converted_and_the_mtp_block_may_be_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("tiny-fp8");
    std::fs::create_dir(&folder).unwrap();
    let hf = TinyHf::from_gguf(&Tiny::new(61).build());
    hf.fp8("kv_b_proj.weight")
        .fp8("down_proj.weight")
        .write(&folder, 2);
    let mtp_blocks = |extra: &[&str]| {
        let out = dir.path().join("out.gguf");
        let args = ["convert", text(&folder), text(&out), "--no-tokenizer"];
        glim(&[&args[..], extra].concat()).ok();
        let gguf = Gguf::open(&out).unwrap();
        gguf.metadata()
            .uint("glm-dsa.nextn_predict_layers")
            .unwrap()
    };
    assert_eq!(
        (mtp_blocks(&[]), mtp_blocks(&["--no-mtp"])),
        (Some(1), None)
    );
    let inspected = glim(&["inspect", text(&folder), "--json"]).json();
    assert!(
        inspected["oddities"].to_string().contains("F8_E4M3"),
        "{inspected}"
    );
}

#[test]
fn a_folder_that_is_there_is_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    let kept = super::write(dir.path(), "kept.txt", "kept");
    let source = assets::tiny_glm5();
    glim(&["convert", text(&source), text(dir.path())]).fails(64, &["exists already"]);
    assert_eq!(std::fs::read_to_string(kept).unwrap(), "kept");
    assert_eq!(dir.path().read_dir().unwrap().count(), 1);
}

#[test]
fn a_pre_tokenizer_that_nobody_knows_is_named_and_may_be_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    Tiny::new(62)
        .build()
        .set_whole("tokenizer.ggml.model", "gpt2")
        .set_whole("tokenizer.ggml.pre", "no-such")
        .write(&path);
    let folder = dir.path().join("hf");
    let args = ["convert", text(&path), text(&folder)];
    let outcome = glim(&args);
    outcome.fails(65, &["no-such", "glm4"]);
    assert!(
        outcome.stderr.contains("hint: --no-tokenizer"),
        "{outcome:?}"
    );
    assert!(!folder.exists());
    glim(&[&args[..], &["--no-tokenizer"]].concat()).ok();
    assert!(folder.join("config.json").is_file() && !folder.join("tokenizer.json").exists());
}
