//! `glim quantize` through the binary; the bytes of files are tested in glim-model.

use std::path::Path;

use glim_gguf::Gguf;
use glim_plan::GgmlType;
use glim_testkit::assets;

use super::{glim, text};

fn types(path: &Path) -> Vec<(String, GgmlType)> {
    let gguf = Gguf::open(path).unwrap();
    let of = |t: &glim_gguf::TensorInfo| (t.name.clone(), t.ty);
    gguf.tensors().iter().map(of).collect()
}

#[test]
fn a_quantised_model_answers() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.gguf");
    let source = assets::tiny_glm5();
    let args = ["quantize", text(&source), text(&out), "--type", "Q6_K"];
    let outcome = glim(&args);
    let told = &outcome.stderr;
    assert!(
        told.contains("were quantised before (Q8_0) and lose more now"),
        "{told}"
    );
    assert!(
        told.contains(
            "have rows that are no whole blocks of Q6_K and become Q8_0: blk.0.attn_k_b.weight"
        ),
        "{told}"
    );
    let said = outcome.ok();
    assert!(
        said.contains("MiB from 20.") && said.contains("bits per weight"),
        "{said}"
    );
    let answer = glim(&[
        "run",
        text(&out),
        "--raw",
        "-p",
        "Once upon a time",
        "--temperature",
        "0",
        "--max-tokens",
        "8",
    ]);
    assert!(!answer.ok().is_empty());
}

#[test]
fn a_dry_run_shows_each_tensor_and_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.gguf");
    let source = assets::tiny_glm5();
    let args = [
        "quantize",
        text(&source),
        text(&out),
        "--type",
        "q4_k_m",
        "--dry-run",
    ];
    let table = glim(&args).ok();
    for line in [
        "output.weight                           4096 × 256    Q8_0 → Q6_K      840.0 KiB  output head",
        "blk.0.attn_k_b.weight                 8 × 128 × 96    Q8_0 → Q5_0       66.0 KiB  the mix's type; rows are no whole blocks of Q4_K",
        "blk.1.ffn_gate_inp.weight                  8 × 256     F32 → F32         8.0 KiB  kept: router",
    ] {
        assert!(table.contains(line), "{line}\n{table}");
    }
    assert!(!out.exists());

    // Without a file to write, and as JSON.
    let args = [
        "quantize",
        text(&source),
        "--type",
        "q4_k_m",
        "--dry-run",
        "--json",
    ];
    let json = glim(&args).json();
    assert_eq!(json["type"], "q4_k_m");
    let list = json["tensor_list"].as_array().unwrap();
    assert_eq!(list.len(), json["tensors"]);
    let bytes: u64 = list.iter().map(|t| t["bytes"].as_u64().unwrap()).sum();
    assert_eq!(json["data_bytes"], bytes);
    let k_b = list
        .iter()
        .find(|t| t["name"] == "blk.0.attn_k_b.weight")
        .unwrap();
    assert_eq!(
        (&k_b["to"], &k_b["fallback_from"]),
        (&"Q5_0".into(), &"Q4_K".into())
    );
}

#[test]
fn options_name_types_of_single_tensors() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.gguf");
    let source = assets::tiny_glm5();
    let args = [
        "quantize",
        text(&source),
        text(&out),
        "--type",
        "copy",
        "--tensor-type",
        r"blk\.1\.ffn_.*_exps=q4_k",
        "--tensor-type",
        "ffn_=f16",
        "--output-tensor-type",
        "q6_k",
        "--token-embedding-type",
        "q5_k",
        "--json",
    ];
    let json = glim(&args).json();
    assert_eq!(json["bytes"], std::fs::metadata(&out).unwrap().len());
    for (name, ty) in types(&out) {
        let expected = match name.as_str() {
            "output.weight" => GgmlType::Q6_K,
            "token_embd.weight" => GgmlType::Q5_K,
            name if name.contains("_norm") || name.contains("_inp") || name.contains("bias") => {
                GgmlType::F32
            }
            name if name.starts_with("blk.1.ffn_") && name.contains("_exps") => GgmlType::Q4_K,
            name if name.contains(".ffn_") => GgmlType::F16,
            _ => continue,
        };
        assert_eq!(ty, expected, "{name}");
    }
}

#[test]
fn what_cannot_be_is_refused_and_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.gguf");
    let (source, path) = (assets::tiny_glm5(), text(&out));
    let source = text(&source);
    glim(&["quantize", source, path, "--type", "iq2_xxs"])
        .fails(64, &["iq2_xxs needs an encoder that glim lacks", "q2_k"]);
    glim(&["quantize", source, path, "--type", "q9"]).fails(64, &["q9", "q4_k_m"]);
    glim(&["quantize", source, path, "--type", "q2_k_s"])
        .fails(64, &["importance matrix", "glim imatrix"]);
    glim(&[
        "quantize",
        source,
        path,
        "--type",
        "q8_0",
        "--tensor-type",
        "a=iq1_s",
    ])
    .fails(64, &["iq1_s"]);
    glim(&["quantize", source, "--type", "q8_0"]).fails(64, &["OUT.gguf"]);
    glim(&["quantize", source, "out.bin", "--type", "q8_0"]).fails(64, &[".gguf"]);
    glim(&["quantize", "nowhere.gguf", path, "--type", "q8_0"]).fails(66, &["nowhere.gguf"]);
    glim(&[
        "quantize",
        source,
        path,
        "--type",
        "q8_0",
        "--imatrix",
        "nowhere.dat",
    ])
    .fails(66, &["nowhere.dat"]);
    glim(&[
        "quantize",
        source,
        path,
        "--type",
        "q8_0",
        "--imatrix",
        source,
    ])
    .fails(65, &["general.type"]);
    let folder = assets::odd_glm52();
    let outcome = glim(&["quantize", text(&folder), path, "--type", "q8_0"]);
    outcome.fails(64, &["is a Hugging Face folder"]);
    assert!(
        outcome
            .stderr
            .contains("hint: convert it first: glim convert"),
        "{outcome:?}"
    );
    assert_eq!(dir.path().read_dir().unwrap().count(), 0);

    std::fs::copy(source, &out).unwrap();
    glim(&["quantize", path, path, "--type", "q8_0"]).fails(64, &["is the file to read as well"]);
}
