//! `glim imatrix`, and what `glim quantize` makes of its file.

use glim_gguf::Gguf;
use glim_testkit::assets;

use super::{glim, text};

#[test]
fn an_importance_matrix_weights_a_quantised_file() {
    let dir = tempfile::tempdir().unwrap();
    let (model, heldout) = (assets::tiny_glm5(), assets::heldout_text());
    let imatrix = dir.path().join("imatrix.gguf");
    let args = [
        "imatrix",
        text(&model),
        "--text",
        text(&heldout),
        "-o",
        text(&imatrix),
        "--window",
        "128",
        "--windows",
        "2",
        "--json",
    ];
    let json = glim(&args).json();
    assert_eq!(
        (&json["windows"], &json["tokens"]),
        (&2.into(), &256.into())
    );
    assert!(json["perplexity"].as_f64().unwrap() > 1.0);

    let file = Gguf::open(&imatrix).unwrap();
    let keys = file.metadata();
    assert_eq!(keys.str("general.type").unwrap(), Some("imatrix"));
    assert_eq!(keys.uint("imatrix.chunk_count").unwrap(), Some(2));
    assert_eq!(keys.uint("imatrix.chunk_size").unwrap(), Some(128));
    assert_eq!(
        file.tensors().len() as u64,
        2 * json["entries"].as_u64().unwrap()
    );
    // Fastest first: columns, experts.
    let dims = |name: &str| file.tensor(name).map(|t| t.ggml_dims.clone());
    assert_eq!(
        dims("blk.2.ffn_down_exps.weight.in_sum2"),
        Some(vec![256, 8])
    );
    assert_eq!(dims("blk.2.ffn_down_exps.weight.counts"), Some(vec![1, 8]));
    assert_eq!(dims("blk.2.attn_k_b.weight.in_sum2"), Some(vec![96 * 8, 1]));
    assert_eq!(
        dims("output.weight.in_sum2"),
        None,
        "only with --process-output"
    );

    let out = dir.path().join("out.gguf");
    let args = [
        "quantize",
        text(&model),
        text(&out),
        "--type",
        "q2_k_s",
        "--imatrix",
        text(&imatrix),
    ];
    let outcome = glim(&args);
    assert!(
        outcome
            .stderr
            .contains("the importance matrix does not know"),
        "the MTP block is not run: {outcome:?}"
    );
    assert!(!out.exists());
}

#[test]
fn what_cannot_be_read_is_told_before_the_weights_are_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let (model, out) = (assets::tiny_glm5(), dir.path().join("out.gguf"));
    let short = super::write(dir.path(), "short.txt", "too short");
    let of = |file: &str, out: &str| glim(&["imatrix", text(&model), "--text", file, "-o", out]);
    of(text(&short), text(&out)).fails(65, &["short.txt", "512"]);
    of("nowhere.txt", text(&out)).fails(66, &["nowhere.txt"]);
    of(text(&short), "out.dat").fails(64, &[".gguf"]);
    assert!(!out.exists());
}
