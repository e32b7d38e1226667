//! `glim verify`: what it says and how it ends; what it checks is tested in `glim-model` and `glim-engine`.

use glim_testkit::assets;
use glim_testkit::faults::GgufFile;
use serde_json::Value as Json;

use super::{glim, text};

/// A page without times and rates, and with two spaces between columns.
fn timeless(page: &str) -> String {
    let is_number = |cell: &str| cell.contains('.') && cell.parse::<f64>().is_ok();
    let line = |line: &str| {
        let cells = line
            .split("  ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty());
        let cells = cells.map(|cell| if is_number(cell) { "#" } else { cell });
        let cells: Vec<&str> = cells.collect();
        match cells.as_slice() {
            // Which commit this is, and which kernels it has.
            ["glim", build] if build.contains("), kernels ") => "glim  (a build)\n".to_owned(),
            cells => cells.join("  ") + "\n",
        }
    };
    page.lines().map(line).collect()
}

fn checks(json: &Json) -> &[Json] {
    json["checks"].as_array().unwrap()
}

/// The check of a name, which must be there.
fn check<'j>(json: &'j Json, name: &str) -> &'j Json {
    let found = checks(json).iter().find(|check| check["name"] == name);
    found.unwrap_or_else(|| panic!("no check {name}: {json}"))
}

#[test]
fn the_built_in_model_passes_all_levels() {
    let page = glim(&["verify"]).ok();
    insta::assert_snapshot!(timeless(&page));
}

#[test]
fn the_object_has_the_fields_that_scripts_rely_on() {
    let json = glim(&["verify", "--levels", "1,2,4", "--tp", "2", "--json"]).json();
    assert_eq!(json["ok"], true, "{json}");
    assert!(json["digest"].is_string(), "{json}");
    let mut levels: Vec<u64> = Vec::new();
    for check in checks(&json) {
        levels.push(check["level"].as_u64().unwrap());
        assert_eq!(check["ok"], true, "{check}");
        for number in ["bytes", "seconds"] {
            assert!(check[number].is_number(), "{number}: {check}");
        }
        for string in ["name", "covered", "detail"] {
            assert!(check[string].is_string(), "{string}: {check}");
        }
        assert!(check["first_bad"].is_null(), "{check}");
    }
    assert!(levels.is_sorted(), "{levels:?}");
    levels.dedup();
    assert_eq!(levels, [1, 2, 4]);
    let left_out = json["not_covered"].to_string();
    for what in ["3 checkpoint", "6 function", "7 sense"] {
        assert!(left_out.contains(what), "{what}: {left_out}");
    }
}

#[test]
fn a_number_that_cannot_be_is_an_answer_of_no_with_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nan.gguf");
    let tensor = "blk.1.attn_q_b.weight";
    GgufFile::read(&assets::tiny_glm5())
        .nan_scale(tensor, 7)
        .write(&path);
    let args = ["verify", text(&path), "--levels", "1"];

    let out = glim(&[&args[..], &["--json"]].concat());
    assert_eq!(out.code, 1, "{out:?}");
    let json = out.json();
    assert_eq!(json["ok"], false);
    let values = check(&json, "values");
    assert_eq!(
        (&values["level"], &values["ok"]),
        (&Json::from(1), &Json::from(false))
    );
    let bad = &values["first_bad"];
    assert_eq!(bad["tensor"], tensor, "{values}");
    for field in ["row", "col"] {
        assert!(bad[field].is_u64(), "{values}");
    }
    for field in ["expected", "found"] {
        assert!(bad[field].is_string(), "{values}");
    }

    let out = glim(&args);
    assert_eq!(out.code, 1, "{out:?}");
    for said in ["✗", tensor, "first wrong element: ", "checks failed."] {
        assert!(out.stdout.contains(said), "{said}: {}", out.stdout);
    }
}

#[test]
fn weights_in_the_wrong_place_are_an_answer_of_no() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("swapped.gguf");
    let file = GgufFile::read(&assets::tiny_glm5());
    (0..6).fold(file, GgufFile::swapped_kv).write(&path);
    let out = glim(&["verify", text(&path), "--levels", "7", "--json"]);
    assert_eq!(out.code, 1, "{out:?}");
    assert_eq!(check(&out.json(), "text")["ok"], false);
}

#[test]
fn a_file_that_does_not_open_is_a_failed_check() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("short.gguf");
    let file = GgufFile::read(&assets::tiny_glm5());
    std::fs::write(&path, file.bytes_without_end(1000)).unwrap();
    let out = glim(&["verify", text(&path), "--json"]);
    assert_eq!(out.code, 1, "{out:?}");
    let json = out.json();
    assert_eq!(
        (&json["ok"], &json["digest"]),
        (&Json::from(false), &Json::Null)
    );
    assert_eq!(checks(&json).len(), 1);
    let container = check(&json, "container");
    assert_eq!(
        (&container["level"], &container["ok"]),
        (&Json::from(1), &Json::from(false))
    );
    assert!(
        container["detail"].as_str().unwrap().contains("short.gguf"),
        "{container}"
    );
    let out = glim(&["verify", text(&path)]);
    assert_eq!(out.code, 1, "{out:?}");
    assert!(
        out.stdout.contains("1 of 1 checks failed."),
        "{}",
        out.stdout
    );
}

#[test]
fn a_file_that_is_not_there_is_no_verdict() {
    glim(&["verify", "no-such-model.gguf"]).fails(66, &["no-such-model.gguf"]);
    let args = ["verify", "--levels", "3", "--against", "no-such-folder"];
    glim(&args).fails(66, &["no-such-folder"]);
}

#[test]
fn contradictions_are_refused_before_anything_is_read() {
    let cases: [(&[&str], &str); 4] = [
        (&["--levels", "3"], "level 3"),
        (&["--levels", "1", "--against", "x"], "--against"),
        (&["--levels", "9"], "--levels"),
        (&["--tp", "0"], "--tp"),
    ];
    for (args, word) in cases {
        glim(&[&["verify", "no-such-model.gguf"], args].concat()).fails(64, &[word]);
    }
    // tiny-glm5 ends at 4096.
    let too_long = ["verify", "--levels", "7", "--context", "5000"];
    glim(&too_long).fails(64, &["5000", "4096"]);
}

#[test]
fn a_converted_file_is_its_folder_and_another_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("odd.gguf");
    let folder = assets::odd_glm52();
    glim(&["convert", text(&folder), text(&path), "--type", "q8_0"]).ok();
    let run = |file: &std::path::Path| {
        let against = text(&folder);
        glim(&[
            "verify",
            text(file),
            "--levels",
            "3",
            "--against",
            against,
            "--json",
        ])
    };
    let json = run(&path).json();
    assert_eq!(json["ok"], true, "{json}");

    let faulty = dir.path().join("exchanged.gguf");
    GgufFile::read(&path)
        .exchanged_experts(3, 0, 5)
        .write(&faulty);
    let out = run(&faulty);
    assert_eq!(out.code, 1, "{out:?}");
    let json = out.json();
    let bad: Vec<&Json> = checks(&json).iter().filter(|c| c["ok"] == false).collect();
    let tensor = bad[0]["first_bad"]["tensor"].as_str().unwrap();
    assert!(
        tensor.starts_with("blk.3.ffn_") && tensor.contains("_exps"),
        "{}",
        bad[0]
    );
}

/// odd-glm52 has six heads.
#[test]
fn ranks_that_do_not_fit_are_left_out_unless_they_are_asked_for() {
    let model = assets::odd_glm52();
    let args = ["verify", text(&model), "--levels", "4", "--json"];
    let json = glim(&args).json();
    assert_eq!(json["ok"], true, "{json}");
    let made: Vec<Option<bool>> = checks(&json).iter().map(|c| c["ok"].as_bool()).collect();
    assert_eq!(made, [Some(true), None, None], "{json}");
    let out = glim(&[&args[..], &["--tp", "2,4"]].concat());
    assert_eq!(out.code, 1, "{out:?}");
    let made: Vec<Option<bool>> = checks(&out.json())
        .iter()
        .map(|c| c["ok"].as_bool())
        .collect();
    assert_eq!(made, [Some(true), Some(false)]);
}

#[test]
fn random_weights_are_what_the_file_says_but_make_no_sense() {
    let model = assets::odd_glm52();
    for math in ["fast", "exact"] {
        let args = [
            "verify",
            text(&model),
            "--levels",
            "6",
            "--math",
            math,
            "--json",
        ];
        let json = glim(&args).json();
        assert_eq!(json["ok"], true, "{json}");
        assert_eq!(checks(&json).len(), 3);
    }
    let out = glim(&["verify", text(&model), "--levels", "7"]);
    assert_eq!(out.code, 1, "{out:?}");
    assert!(
        out.stdout.contains("or the model was never trained"),
        "{}",
        out.stdout
    );
}
