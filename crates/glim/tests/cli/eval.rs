//! `glim eval`: the command; what it measures is tested in `glim-engine`.

use glim_testkit::assets;

use super::{glim, text, write};

fn excerpt(dir: &std::path::Path) -> std::path::PathBuf {
    let held_out = std::fs::read_to_string(assets::heldout_text()).unwrap();
    write(
        dir,
        "excerpt.txt",
        &held_out.chars().take(2000).collect::<String>(),
    )
}

#[test]
fn perplexity_of_a_text() {
    let dir = tempfile::tempdir().unwrap();
    let file = excerpt(dir.path());
    let json = glim(&["eval", "--text", text(&file), "--window", "128", "--json"]).json();
    let perplexity = json["perplexity"].as_f64().unwrap();
    assert!((1.5..4.0).contains(&perplexity), "{json}");
    let windows = json["windows"].as_u64().unwrap();
    assert_eq!(
        (json["context"].as_u64(), json["tokens"].as_u64()),
        (Some(128), Some(127 * windows))
    );
    let said = glim(&["eval", "--text", text(&file), "--window", "128"]).ok();
    assert!(
        said.starts_with(&format!("perplexity {perplexity:.4} (")),
        "{said}"
    );
}

#[test]
fn a_text_shorter_than_the_window_is_refused_with_both_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let file = write(dir.path(), "short.txt", "One two three.");
    let out = glim(&["eval", "--text", text(&file)]);
    out.fails(65, &["short.txt", "512"]);
    assert!(out.stderr.contains("--window"), "{out:?}");
}

#[test]
fn a_reference_is_compared_prompt_by_prompt() {
    let (model, reference) = (assets::odd_glm52(), assets::odd_glm52_reference());
    let args = [
        "eval",
        text(&model),
        "--against",
        text(&reference),
        "--math",
        "exact",
    ];
    let json = glim(&[&args[..], &["--json"]].concat()).json();
    let prompts = json["prompts"].as_array().unwrap();
    assert!(!prompts.is_empty());
    for prompt in prompts {
        assert!(prompt["name"].is_string(), "{prompt}");
        for number in [
            "max_abs_logit_diff",
            "mean_kl",
            "top1_agreement",
            "hidden_max_rel",
        ] {
            assert!(prompt[number].is_number(), "{number}: {prompt}");
        }
        for yes_or_no in ["greedy_match", "router_match", "index_topk_match"] {
            assert_eq!(prompt[yes_or_no], true, "{yes_or_no}: {prompt}");
        }
    }
    let table = glim(&args).ok();
    assert!(
        table.contains("max |Δlogit|") && table.lines().any(|line| line.starts_with("short ")),
        "{table}"
    );
}

#[test]
fn check_turns_a_distance_into_an_exit_code() {
    // An epsilon that no engine would use takes the hidden states out of their bounds.
    let (model, reference) = (assets::odd_glm52(), assets::odd_glm52_reference());
    let args = [
        "eval",
        text(&model),
        "--against",
        text(&reference),
        "--latent-norm-eps",
        "0.1",
    ];
    let out = glim(&[&args[..], &["--check"]].concat());
    assert_eq!(out.code, 1, "{out:?}");
    assert!(
        out.stdout.contains("short: outside the bounds: logits"),
        "{out:?}"
    );
    assert_eq!(
        glim(&args).code,
        0,
        "without --check a distance is only told"
    );
}

#[test]
fn check_computes_in_exact_math_unless_told_otherwise() {
    let (model, reference) = (assets::tiny_glm5(), assets::odd_glm52_reference());
    // Refused for its shape, but only after the model was loaded.
    let told = |more: &[&str]| {
        let args = ["eval", text(&model), "--against", text(&reference), "-v"];
        glim(&[&args[..], more].concat()).stderr
    };
    assert!(told(&["--check"]).contains("exact math"));
    assert!(told(&["--check", "--math", "fast"]).contains("fast math"));
    assert!(told(&[]).contains("fast math"));
}

#[test]
fn a_reference_of_another_model_is_refused() {
    glim(&["eval", "--against", text(&assets::odd_glm52_reference())])
        .fails(65, &["reference", "shape"]);
}
