//! `glim run`.

use std::process::{Command, Stdio};

use serde_json::{Value as Json, json};

use super::{glim, glim_with, text, write};

const SUM: &str = "What is 27 + 58?";

#[test]
fn a_sum_is_answered_and_its_reasoning_is_shown_on_request_only() {
    assert_eq!(glim(&["run", "-p", SUM]).ok(), "85\n");
    let all = glim(&["run", "-p", SUM, "--show-reasoning"]).ok();
    assert_eq!(
        all,
        "<think>27 + 58: 20 + 50 = 70, 7 + 8 = 15, so 85.</think>\n85\n"
    );
    let dimmed = glim(&["run", "-p", SUM, "--show-reasoning", "--color", "always"]).ok();
    assert_eq!(
        dimmed,
        "\u{1b}[2m27 + 58: 20 + 50 = 70, 7 + 8 = 15, so 85.\u{1b}[0m\n85\n"
    );
}

#[test]
fn the_prompt_may_be_piped_in() {
    assert_eq!(glim_with(&["run"], "What is 27 + 58?\n").ok(), "85\n");
    assert_eq!(glim_with(&["run"], "What is 27 + 58?\r\n").ok(), "85\n");
}

#[test]
fn json_has_the_fields_that_scripts_rely_on() {
    let out = glim(&["run", "-p", SUM, "--json"]);
    assert_eq!(out.code, 0, "{out:?}");
    let answer = out.json();
    assert_eq!(answer["text"], "85");
    assert_eq!(
        answer["reasoning"],
        "27 + 58: 20 + 50 = 70, 7 + 8 = 15, so 85."
    );
    assert_eq!(answer["tool_calls"], json!([]));
    assert_eq!(answer["finish_reason"], "stop");
    assert_eq!(
        answer["token_ids"].as_array().map(Vec::len),
        answer["completion_tokens"].as_u64().map(|n| n as usize)
    );
    assert!(answer["prompt_tokens"].as_u64() > Some(5), "{answer}");
    assert!(answer["prefill_tok_s"].as_f64() > Some(0.0), "{answer}");
    assert!(answer["decode_tok_s"].as_f64() > Some(0.0), "{answer}");
}

#[test]
fn thinking_can_be_turned_off() {
    let answer = glim(&[
        "run",
        "-p",
        "What is the capital of France?",
        "--no-think",
        "--json",
    ])
    .json();
    assert_eq!(answer["text"], "The capital of France is Paris.");
    assert_eq!(answer["reasoning"], "");
    let by_name = [
        "run",
        "-p",
        SUM,
        "--template-kwarg",
        "enable_thinking=false",
        "--json",
    ];
    assert_eq!(glim(&by_name).json()["reasoning"], "");
}

#[test]
fn a_template_variable_without_effect_is_pointed_out() {
    let out = glim(&["run", "-p", SUM, "--template-kwarg", "enable_thoughts=true"]);
    assert!(
        out.stderr.contains("does not know `enable_thoughts`"),
        "{out:?}"
    );
    assert_eq!(out.ok(), "85\n");
}

#[test]
fn raw_text_is_continued_to_the_letter() {
    let story = glim(&[
        "run",
        "--raw",
        "-p",
        "Once upon a time",
        "--max-tokens",
        "20",
        "--math",
        "exact",
    ])
    .ok();
    assert!(
        story.starts_with(", a patient girl named Tess lived near the lighthouse."),
        "{story}"
    );
    assert!(!story.ends_with('\n'), "nothing is added: {story:?}");
}

#[test]
fn end_tokens_stop_the_answer_unless_they_are_ignored() {
    let prompt = "<|user|>What is 27 + 58?<|assistant|><think></think>";
    let json =
        |more: &[&str]| glim(&[&["run", "--raw", "--json", "-p", prompt], more].concat()).json();
    let stopped = json(&[]);
    assert_eq!(stopped["text"], "27 + 58 = 85.");
    assert_eq!(stopped["finish_reason"], "stop");
    let on = json(&["--ignore-eos", "--max-tokens", "20"]);
    assert!(
        on["text"]
            .as_str()
            .is_some_and(|text| text.starts_with("27 + 58 = 85.<|user|>")),
        "{on}"
    );
    assert_eq!(on["completion_tokens"], 20);
    assert_eq!(on["finish_reason"], "length");
}

#[test]
fn seeded_sampling_repeats_and_depends_on_the_seed() {
    let ids = |seed: &str| -> Json {
        let args = [
            "run",
            "--raw",
            "-p",
            "Once upon a time",
            "--temperature",
            "1",
            "--seed",
            seed,
            "--max-tokens",
            "24",
        ];
        glim(&[&args[..], &["--json"]].concat()).json()["token_ids"].clone()
    };
    assert_eq!(ids("7"), ids("7"));
    assert_ne!(ids("7"), ids("8"));
}

#[test]
fn one_candidate_is_greedy_at_any_temperature() {
    let text = |more: &[&str]| {
        glim(
            &[
                &[
                    "run",
                    "--raw",
                    "-p",
                    "Once upon a time",
                    "--max-tokens",
                    "16",
                ],
                more,
            ]
            .concat(),
        )
        .ok()
    };
    assert_eq!(
        text(&["--temperature", "2", "--top-k", "1", "--seed", "3"]),
        text(&[])
    );
}

fn weather_tool() -> Json {
    json!([{
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the weather of a city.",
            "parameters": {
                "type": "object",
                "properties": { "city": { "type": "string" } },
                "required": ["city"]
            }
        }
    }])
}

#[test]
fn a_tool_is_called_with_arguments_as_a_string_of_json() {
    let dir = tempfile::tempdir().unwrap();
    let messages = json!([{ "role": "user", "content": "What is the weather in Oslo?" }]);
    let messages = write(dir.path(), "messages.json", &messages.to_string());
    let tools = write(dir.path(), "tools.json", &weather_tool().to_string());
    let args = [
        "run",
        "--messages",
        text(&messages),
        "--tools",
        text(&tools),
    ];
    let answer = glim(&[&args[..], &["--json"]].concat()).json();
    assert_eq!(answer["finish_reason"], "tool_calls", "{answer}");
    let call = &answer["tool_calls"][0];
    assert_eq!(
        (&call["type"], &call["function"]["name"]),
        (&json!("function"), &json!("get_weather"))
    );
    assert!(
        call["id"]
            .as_str()
            .is_some_and(|id| id.starts_with("call_") && id.len() == 29),
        "{call}"
    );
    assert_eq!(call["function"]["arguments"], "{\"city\":\"Oslo\"}");
    assert_eq!(answer["text"], "");
    assert_eq!(
        glim(&args).ok(),
        "[tool call] get_weather {\"city\":\"Oslo\"}\n"
    );
}

#[test]
fn a_request_object_brings_its_own_tools_and_what_is_ignored_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let request = json!({
        "model": "any",
        "messages": [{ "role": "user", "content": "What is the weather in Oslo?" }],
        "tools": weather_tool(),
        "temperature": 1.0
    });
    let file = write(dir.path(), "request.json", &request.to_string());
    let out = glim(&["run", "--messages", text(&file)]);
    assert!(
        out.stderr.contains("`model`, `temperature` ignored"),
        "{out:?}"
    );
    assert_eq!(out.ok(), "[tool call] get_weather {\"city\":\"Oslo\"}\n");
    let twice = glim(&["run", "--messages", text(&file), "--tools", text(&file)]);
    twice.fails(64, &["both"]);
}

#[test]
fn another_template_can_be_used() {
    let dir = tempfile::tempdir().unwrap();
    let source = "[gMASK]<sop><|user|>{{ messages[0].content }}<|assistant|><think></think>";
    let template = write(dir.path(), "plain.jinja", source);
    let answer = glim(&["run", "-p", SUM, "--template", text(&template)]).ok();
    assert_eq!(answer, "27 + 58 = 85.\n");
}

#[test]
fn poisoned_buffers_change_nothing() {
    for math in ["fast", "exact"] {
        let args = ["run", "-p", SUM, "--math", math, "--poison"];
        assert_eq!(glim(&args).ok(), "85\n", "{math}");
    }
}

#[test]
fn fast_math_is_the_default_and_threads_are_as_many_as_asked_for() {
    for (args, backend) in [
        (&["--threads", "1"][..], "fast math, 1 thread)"),
        (
            &["--threads", "3", "--math", "exact"],
            "exact math, 3 threads)",
        ),
    ] {
        let out = glim(&[&["run", "-p", SUM, "-v"], args].concat());
        assert!(out.stderr.contains(backend), "{backend}: {out:?}");
        assert_eq!(out.ok(), "85\n");
    }
}

#[test]
fn exact_math_gives_the_same_tokens_on_any_number_of_threads() {
    let ids = |threads: &str| -> Json {
        let args = [
            "run",
            "--raw",
            "-p",
            "Once upon a time",
            "--max-tokens",
            "40",
            "--math",
            "exact",
        ];
        let args = [&args[..], &["--threads", threads, "--json"]].concat();
        glim(&args).json()["token_ids"].clone()
    };
    assert_eq!(ids("1"), ids("3"));
}

#[test]
fn an_answer_that_never_came_is_explained() {
    let out = glim(&["run", "-p", SUM, "--max-tokens", "3"]);
    assert!(
        out.stderr.contains("while the model was reasoning"),
        "{out:?}"
    );
    assert_eq!(out.ok(), "");
}

#[test]
fn verbose_tells_speed_on_stderr() {
    let out = glim(&["run", "-p", SUM, "-v", "--device", "cpu", "--math", "exact"]);
    for word in [
        "tiny-glm5 (built in): loaded",
        "context 4096",
        "prefill",
        "decode",
        "finish: stop",
    ] {
        assert!(out.stderr.contains(word), "{word}: {out:?}");
    }
    assert_eq!(out.ok(), "85\n");
}

#[test]
fn a_reader_that_goes_away_ends_the_command_quietly() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_glim"))
        .args([
            "run",
            "--raw",
            "-p",
            "Once upon a time",
            "--max-tokens",
            "200",
            "--device",
            "cpu",
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}
