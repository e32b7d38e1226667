//! `--tp`: one model over several ranks.

use super::glim;

/// Greedy tokens of the built-in model in exact math.
fn tokens(tp: &str, more: &[&str]) -> serde_json::Value {
    let args = [
        "run",
        "-p",
        "What is 27 + 58?",
        "--math",
        "exact",
        "--temperature",
        "0",
        "--json",
    ];
    let json = glim(&[&args, ["--tp", tp].as_slice(), more].concat()).json();
    assert!(
        json["completion_tokens"].as_u64().is_some_and(|n| n > 3),
        "{json}"
    );
    json["token_ids"].clone()
}

#[test]
fn more_ranks_answer_the_same() {
    let alone = tokens("1", &[]);
    assert_eq!(tokens("2", &[]), alone);
    assert_eq!(
        tokens("4", &["--tp-latents", "rows", "--threads", "2"]),
        alone
    );
    assert_eq!(tokens("8", &["--poison"]), alone);
}

#[test]
fn verbose_says_what_each_rank_takes_and_why_the_latents_lie_where_they_do() {
    let out = glim(&["run", "-v", "-p", "Hi", "--tp", "2", "--max-tokens", "1"]);
    assert_eq!(out.code, 0, "{out:?}");
    // Which way is cheaper depends on the machine and on what else it does.
    for part in [
        "2 ranks, of which the largest needs",
        ": a token is estimated at",
        "µs a collective",
    ] {
        assert!(out.stderr.contains(part), "{part}: {}", out.stderr);
    }
}

#[test]
fn latents_by_rows_need_an_index_head_for_each_rank() {
    glim(&["run", "-p", "x", "--tp", "8", "--tp-latents", "rows"]).fails(
        64,
        &["indexer.proj.weight", "8 ranks", "whole on each rank"],
    );
}

#[test]
fn verify_runs_on_the_ranks_that_are_named() {
    let args = ["verify", "--levels", "4,6", "--math", "exact", "--json"];
    let out = glim(&[args.as_slice(), &["--tp", "2"]].concat());
    let json = out.json();
    assert_eq!((out.code, &json["ok"]), (0, &true.into()), "{json}");
    let names = json["checks"].as_array().unwrap().iter();
    let names: Vec<&str> = names.map(|check| check["name"].as_str().unwrap()).collect();
    let expected = [
        "tp 2",
        "prefill, rank 0 of 2",
        "decode, rank 0 of 2",
        "prefill, rank 1 of 2",
        "decode, rank 1 of 2",
        "end to end, 2 ranks",
    ];
    assert_eq!(names, expected);
    // What cannot be cut is level 4's failure, and nothing runs.
    let out = glim(&[args.as_slice(), &["--tp", "3"]].concat());
    assert_eq!((out.code, &out.json()["ok"]), (1, &false.into()), "{out:?}");
}
