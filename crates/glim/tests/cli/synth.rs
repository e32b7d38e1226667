//! `glim synth`: models of a real shape, full of random weights or of holes.

use std::path::Path;

use glim_gguf::Gguf;
use serde_json::Value as Json;

use super::{glim, text};

fn synth(out: &Path, options: &[&str]) -> Json {
    let outcome = glim(&[&["synth", text(out), "--json"], options].concat());
    assert_eq!(outcome.code, 0, "{outcome:?}");
    outcome.json()
}

#[test]
fn a_tiny_model_of_any_kind_of_type_runs() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("tiny.gguf");
    for ty in ["q4_k_m", "ud-q2_k_xl", "mxfp4", "iq1_m", "bf16"] {
        let made = synth(&out, &["--shape", "tiny", "--type", ty]);
        assert_eq!(made["tensors"], 163, "{ty}");
        // Logits that are not finite end with another exit code.
        let options = ["--max-tokens", "3", "--ignore-eos", "--raw", "--json"];
        let ran = glim(&[&["run", text(&out), "-p", "Hello"], &options[..]].concat());
        assert_eq!(ran.code, 0, "{ty}: {ran:?}");
        assert_eq!(ran.json()["completion_tokens"], 3, "{ty}");
    }
}

#[test]
fn equal_seeds_give_equal_bytes_and_other_seeds_others() {
    let dir = tempfile::tempdir().unwrap();
    let make = |name: &str, seed: &str| {
        let out = dir.path().join(name);
        synth(&out, &["--shape", "tiny", "--seed", seed]);
        std::fs::read(out).unwrap()
    };
    let first = make("a.gguf", "1");
    assert!(first == make("b.gguf", "1"));
    assert!(first != make("c.gguf", "2"));
}

#[test]
fn fewer_layers_experts_and_parts_are_as_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("small.gguf");
    let options = "--shape tiny --layers 3 --experts 4 --vocab 5000 --no-mtp --split 2";
    let made = synth(&out, &options.split(' ').collect::<Vec<_>>());
    let first = dir.path().join("small-00001-of-00002.gguf");
    assert_eq!(made["paths"].as_array().unwrap().len(), 2);
    assert_eq!(made["paths"][0], text(&first));

    let seen = glim(&["inspect", text(&first), "--json"]).json();
    let sizes = &seen["architecture"]["hyper_parameters"];
    for (name, expected) in [
        ("n_layers", 3),
        ("n_mtp_layers", 0),
        ("n_routed_experts", 4),
        ("vocab_size", 5000),
    ] {
        assert_eq!(sizes[name], expected, "{name}");
    }
    assert_eq!(seen["tokenizer"]["vocab_size"], 5000);
    assert_eq!(seen["params"], made["params"]);
}

/// Bytes that a file takes on disk.
#[cfg(unix)]
fn disk_bytes(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).unwrap().blocks() * 512
}

/// Without holes each file would take half a terabyte.
#[cfg(unix)]
fn keeps_holes(dir: &Path) -> bool {
    let probe = dir.join("probe");
    let file = std::fs::File::create(&probe).unwrap();
    let keeps = file.set_len(1 << 40).is_ok() && disk_bytes(&probe) < 1 << 20;
    std::fs::remove_file(&probe).unwrap();
    keeps
}

/// Parameters with MTP block, as counted from the published `config.json`; layers with an indexer of their own.
#[cfg(unix)]
#[test]
fn models_of_744_billion_parameters_fit_on_a_small_disk_and_are_inspected() {
    let dir = tempfile::tempdir().unwrap();
    if !keeps_holes(dir.path()) {
        println!("skipped: {} keeps no holes", dir.path().display());
        return;
    }
    for (shape, ty, params, indexers) in [
        ("glm-5", "q4_k_m", 753_864_139_008u64, 78),
        ("glm-5.2", "ud-q2_k_xl", 753_329_940_480, 21),
    ] {
        let folder = dir.path().join(shape);
        std::fs::create_dir(&folder).unwrap();
        let out = folder.join(format!("{shape}.gguf"));
        let options = ["--shape", shape, "--type", ty, "--sparse", "--split", "10"];
        let made = synth(&out, &options);
        assert_eq!(made["params"], params);
        let files = std::fs::read_dir(&folder).unwrap();
        let paths: Vec<_> = files.map(|entry| entry.unwrap().path()).collect();
        assert_eq!(paths.len(), 10);
        let taken: u64 = paths.iter().map(|path| disk_bytes(path)).sum();
        assert!(taken < 64 << 20, "{taken} bytes");

        // All of it from headers: a page touched in each tensor would not show, hundreds of gigabytes read would.
        let seen = glim(&["inspect", text(&folder), "--json"]).json();
        assert_eq!(seen["params"], params);
        assert_eq!(seen["files"].as_array().unwrap().len(), 10);
        let architecture = &seen["architecture"];
        let sizes = &architecture["hyper_parameters"];
        assert_eq!(sizes["n_layers"], 78);
        assert_eq!(sizes["indexer_full_layers"], indexers);
        assert_eq!(seen["oddities"], Json::Array(Vec::new()));
        let weights = architecture["memory"]["weights_bytes"].as_u64().unwrap();
        let stored = made["bytes"].as_u64().unwrap();
        assert!(weights > stored / 10 * 9 && weights < stored);

        let gguf = Gguf::open(&folder).unwrap();
        let backed = |tensor| gguf.extents(tensor).iter().map(|r| r.len()).sum::<usize>();
        let backed: usize = gguf.tensors().iter().map(backed).sum();
        assert!(backed < 16 << 20, "{backed} bytes of data");
    }
}

#[test]
fn what_cannot_be_made_is_said_and_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("no.gguf");
    let refused = |options: &str, words: &[&str]| {
        let options: Vec<&str> = options.split(' ').collect();
        let outcome = glim(&[&["synth", text(&out), "--shape", "tiny"], &options[..]].concat());
        outcome.fails(64, words);
    };
    refused("--vocab 100", &["vocab 100", "at least 4096"]);
    refused("--layers 7", &["layers 7", "1 to 6"]);
    refused("--experts 1", &["experts 1", "2 to 65536"]);
    refused("--type q9_k", &["q9_k", "q4_k_m"]);
    refused("--split 500", &["163 tensors", "500"]);
    let named = glim(&["synth", text(&dir.path().join("no.bin")), "--shape", "tiny"]);
    named.fails(64, &["must end in .gguf"]);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
