//! What is wrong, said in one line, and the exit code that goes with it.

use glim_plan::GgmlType;
use glim_testkit::assets;

use super::models::{self, Changes};
use super::{glim, glim_with, text, write};

#[test]
fn a_wrong_command_line_is_64() {
    glim(&["run", "--frob"]).fails(64, &["--frob"]);
    glim(&["frobnicate"]).fails(64, &["frobnicate"]);
    glim(&["run", "-p", "x", "--device", "gpu"]).fails(64, &["gpu", "auto, cpu, cuda"]);
    glim(&["run", "-p", "x", "--math", "quick"]).fails(64, &["quick", "--math"]);
    glim(&["run", "-p", "x", "--threads", "0"]).fails(64, &["--threads"]);
    glim(&["run", "-p", "x", "--tp", "0"]).fails(64, &["--tp"]);
    glim(&["run", "-p", "x", "--tp", "3"]).fails(
        64,
        &["8 heads cannot be divided among 3 ranks", "1, 2, 4, 8"],
    );
    glim(&["run", "--raw", "-p", "x", "--system", "y"]).fails(64, &["--raw", "--system"]);
    glim(&["tokenize"]).fails(64, &["--text", "--messages"]);
    glim(&["eval"]).fails(64, &["--text", "--against"]);
    glim(&["inspect", "--plan=verify:1"]).fails(64, &["decode:ROWS"]);
    assert_eq!(glim(&[]).code, 64);
}

#[test]
fn errors_are_json_where_json_is_asked_for() {
    for args in [
        &["run", "--frob", "--json"][..],
        &["--json", "run", "-p", "x", "--tp", "3"],
    ] {
        let out = glim(args);
        let error = &out.json()["error"];
        assert_eq!((out.code, &error["kind"]), (64, &"usage".into()), "{out:?}");
        assert!(
            error["message"].as_str().is_some_and(|m| !m.is_empty()),
            "{error}"
        );
        assert!(error["hint"].is_string(), "{error}");
        assert_eq!(out.stderr, "");
    }
}

/// These tests see no GPU, whatever the machine has.
#[test]
fn a_gpu_that_is_asked_for_and_not_there_is_69_with_the_reason() {
    let commands: [&[&str]; 6] = [
        &["run", "-p", "x"],
        &["eval", "--text", "x"],
        &["bench"],
        &["explain"],
        &["verify"],
        &["serve", "--port", "0"],
    ];
    for command in commands {
        for device in ["cuda", "cuda:0,2"] {
            let out = glim(&[command, &["--device", device]].concat());
            out.fails(69, &["--device cuda: ", "NVIDIA driver"]);
            assert!(
                out.stderr.contains("\nhint: ") && out.stderr.contains("--device cpu"),
                "{out:?}"
            );
        }
    }
    let out = glim(&["run", "-p", "x", "--device", "cuda", "--json"]);
    assert_eq!(out.json()["error"]["kind"], "unavailable");
}

#[test]
fn without_a_gpu_one_line_says_that_the_cpu_runs_and_why() {
    let say = |device: &str| {
        let out = glim(&["run", "-p", "Hi", "--max-tokens", "1", "--device", device]);
        assert_eq!(out.code, 0, "{out:?}");
        let about_it = out
            .stderr
            .lines()
            .filter(|line| line.contains("running on the CPU"));
        about_it.map(str::to_owned).collect::<Vec<_>>()
    };
    let said = say("auto");
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(
        said[0].starts_with("note: running on the CPU: ") && said[0].contains("NVIDIA driver"),
        "{said:?}"
    );
    assert_eq!(say("cpu"), [""; 0]);
    let bench = glim(&[
        "bench",
        "--rows",
        "1",
        "--context",
        "0",
        "--prompt",
        "1",
        "--repeat",
        "1",
    ]);
    assert!(
        bench.stderr.contains("note: running on the CPU: "),
        "{bench:?}"
    );
}

#[test]
fn a_missing_file_is_66_and_named() {
    glim(&["run", "nowhere.gguf", "-p", "x"]).fails(66, &["nowhere.gguf", "no such file"]);
    glim(&["inspect", "nowhere.gguf"]).fails(66, &["nowhere.gguf"]);
    glim(&["tokenize", "nowhere.gguf", "--text", "x"]).fails(66, &["nowhere.gguf"]);
    glim(&["run", "--messages", "nowhere.json"]).fails(66, &["nowhere.json"]);
    glim(&["run", "-p", "x", "--template", "nowhere.jinja"]).fails(66, &["nowhere.jinja"]);
    glim(&["eval", "--text", "nowhere.txt"]).fails(66, &["nowhere.txt"]);
    glim(&["eval", "--against", "nowhere.safetensors"]).fails(66, &["nowhere.safetensors"]);
}

#[test]
fn a_prompt_in_the_place_of_the_model_gets_a_hint() {
    let out = glim(&["run", "What is 27 + 58?"]);
    out.fails(66, &["What is 27 + 58?"]);
    assert!(
        out.stderr.contains("hint: ") && out.stderr.contains("-p"),
        "{out:?}"
    );
}

#[test]
fn garbage_is_65_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let garbage = write(dir.path(), "garbage.gguf", "this is no model");
    for command in [
        &["run", "-p", "x"][..],
        &["inspect"],
        &["tokenize", "--text", "x"],
        &["eval", "--text", text(&garbage)],
    ] {
        glim(&[&command[..1], &[text(&garbage)], &command[1..]].concat())
            .fails(65, &["garbage.gguf", "GGUF"]);
    }
    glim(&["run", "--messages", text(&garbage)]).fails(65, &["garbage.gguf", "JSON"]);
    glim(&["eval", "--against", text(&garbage)]).fails(65, &["garbage.gguf", "safetensors"]);
    let string = write(dir.path(), "string.json", "\"hello\"");
    glim(&["run", "--messages", text(&string)]).fails(65, &["string.json", "a string", "messages"]);
    let template = write(dir.path(), "broken.jinja", "{% if %}");
    glim(&["run", "-p", "x", "--template", text(&template)]).fails(65, &["template", "line 1"]);
    let raise = write(
        dir.path(),
        "raise.jinja",
        "{{ raise_exception('only cats') }}",
    );
    glim(&["run", "-p", "x", "--template", text(&raise)]).fails(65, &["only cats"]);
}

#[test]
fn a_truncated_model_is_65() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = std::fs::read(assets::tiny_glm5()).unwrap();
    let path = dir.path().join("half.gguf");
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    glim(&["run", text(&path), "-p", "x"]).fails(65, &["half.gguf", "incomplete download"]);
}

#[test]
fn a_split_model_opens_from_each_part_and_a_missing_part_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let parts = models::split(dir.path(), 3);
    assert_eq!(parts.len(), 3);
    for part in parts.iter().map(|part| part.as_path()).chain([dir.path()]) {
        assert_eq!(
            glim(&["run", text(part), "-p", "What is 27 + 58?"]).ok(),
            "85\n"
        );
    }
    std::fs::remove_file(&parts[1]).unwrap();
    for part in [&parts[0], &parts[2]] {
        let missing = parts[1].file_name().unwrap().to_str().unwrap();
        glim(&["run", text(part), "-p", "x"]).fails(66, &[missing, "3 parts"]);
    }
}

#[test]
fn a_request_that_cannot_fit_is_64_with_both_numbers() {
    let long = "word ".repeat(40);
    glim(&["run", "--context", "32", "-p", &long])
        .fails(64, &["tokens of context", "32", "--context"]);
    glim(&["run", "-p", "x", "--max-tokens", "99999"]).fails(64, &["4096"]);
    glim(&["run", "-p", "x", "--context", "5000"]).fails(64, &["5000", "4096"]);
    glim(&["inspect", "--context", "5000"]).fails(64, &["5000", "4096"]);
}

#[test]
fn sampling_values_without_a_meaning_are_64() {
    for (option, value) in [
        ("--temperature", "-1"),
        ("--temperature", "nan"),
        ("--top-p", "0"),
        ("--top-p", "1.5"),
    ] {
        let name = option.trim_start_matches('-').replace('-', "_");
        glim(&["run", "-p", "x", option, value]).fails(64, &[&name]);
    }
    glim(&["run", "-p", "x", "--top-k", "-1"]).fails(64, &["-1"]);
    glim(&["run", "-p", "x", "--max-tokens", "0"]).fails(64, &["--max-tokens"]);
    glim(&["eval", "--text", "x", "--latent-norm-eps", "-1"]).fails(64, &["--latent-norm-eps"]);
}

#[test]
fn no_prompt_at_all_is_64() {
    glim(&["run"]).fails(64, &["stdin is empty"]);
    glim(&["run", "--raw", "-p", ""]).fails(64, &["prompt is empty"]);
    glim_with(&["run", "--messages", "-"], "[]\n{").fails(65, &["JSON"]);
}

#[test]
fn a_model_of_another_architecture_is_refused_but_can_be_inspected() {
    let dir = tempfile::tempdir().unwrap();
    let changes = Changes {
        keys: vec![("general.architecture", "llama")],
        ..Changes::default()
    };
    let path = models::variant(dir.path(), "llama.gguf", &changes);
    glim(&["run", text(&path), "-p", "x"])
        .fails(65, &["llama.gguf", "general.architecture", "glm-dsa"]);
    let out = glim(&["inspect", text(&path)]);
    out.fails(65, &["llama"]);
    assert!(
        out.stdout.contains("general.architecture = \"llama\""),
        "{out:?}"
    );
    let json = glim(&["inspect", text(&path), "--json"]).json();
    assert_eq!(
        (
            &json["error"]["kind"],
            json["tensors"].as_array().map(Vec::len)
        ),
        (&"bad_data".into(), Some(163))
    );
}

#[test]
fn weights_that_are_not_numbers_are_noticed_and_poison_names_the_operation() {
    let dir = tempfile::tempdir().unwrap();
    let tensor = (
        "blk.3.attn_norm.weight",
        GgmlType::F32,
        f32::NAN.to_le_bytes().repeat(256),
    );
    let path = models::variant(
        dir.path(),
        "nan.gguf",
        &Changes {
            tensors: vec![tensor],
            ..Changes::default()
        },
    );
    glim(&["run", text(&path), "-p", "x"]).fails(70, &["NaN", "--poison"]);
    glim(&["run", text(&path), "-p", "x", "--poison"]).fails(70, &["blk.3.attn_norm"]);
}
