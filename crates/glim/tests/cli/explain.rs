//! `glim explain`: what it says, not how fast it is.

use serde_json::Value as Json;

use super::{glim, text};

fn number(json: &Json, field: &str) -> f64 {
    let value = json[field].as_f64();
    value.unwrap_or_else(|| panic!("{field}: {json}"))
}

#[test]
fn the_object_has_the_fields_that_scripts_rely_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("step.json");
    let args = "explain --json --rows 2 --context 100 --steps 8 --tp 2 --threads 2 --trace";
    let args: Vec<&str> = args.split(' ').chain([text(&path)]).collect();
    let out = glim(&args);
    assert_eq!(out.code, 0, "{out:?}");
    let json = out.json();
    assert_eq!(
        (
            &json["step"],
            &json["rows"],
            &json["context"],
            &json["ranks"]
        ),
        (&"decode".into(), &2.into(), &100.into(), &2.into())
    );
    let ops = json["ops"].as_array().unwrap();
    let mut sum = 0.0;
    for op in ops {
        for name in ["label", "kind"] {
            assert!(op[name].is_string(), "{op}");
        }
        sum += number(op, "ms") + number(op, "gap_ms");
        assert!(number(op, "roofline_ms") >= 0.0);
    }
    let step = number(&json, "step_ms");
    assert!(
        (sum / step - number(&json, "accounted")).abs() < 1e-6,
        "{json}"
    );
    let share = number(&json, "collective_share");
    assert!(share > 0.0 && share < 1.0, "{json}");
    let head = ops.iter().find(|op| op["kind"] == "LmHead").unwrap();
    // Half of the head: 2048 rows of 256 in Q8_0, 34 bytes for 32.
    assert_eq!(head["bytes"], 2048.0 * 8.0 * 34.0);

    let trace: Json = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let complete = |rank: usize| {
        let of = events
            .iter()
            .filter(move |e| e["ph"] == "X" && e["pid"] == rank);
        of.map(|e| e["name"].as_str().unwrap().to_owned())
    };
    let labels: Vec<String> = ops
        .iter()
        .map(|op| op["label"].as_str().unwrap().to_owned())
        .collect();
    for rank in 0..2 {
        assert_eq!(complete(rank).collect::<Vec<_>>(), labels);
    }
    for event in events.iter().filter(|e| e["ph"] == "X") {
        assert!(number(event, "ts") >= 0.0 && number(event, "dur") >= 0.0);
    }
}

#[test]
fn people_see_sums_by_kind_and_the_costliest() {
    let page = glim(&["explain", "--steps", "2", "--top", "3"]).ok();
    for said in [
        "decode of 1 row",
        "1024 tokens",
        "of roofline",
        "ExpertFfn",
        "blk.*.",
        " more: ",
    ] {
        assert!(page.contains(said), "{said}: {page}");
    }
    let args = [
        "explain",
        "--prefill",
        "16",
        "--steps",
        "2",
        "--each",
        "--top",
        "1000",
    ];
    let page = glim(&args).ok();
    assert!(page.contains("prefill of 16 tokens"), "{page}");
    assert!(page.contains("\nblk.5.experts "), "{page}");
    assert!(!page.contains(" more: "), "{page}");
}

#[test]
fn what_cannot_be_is_refused() {
    glim(&["explain", "--rows", "2", "--prefill", "16"]).fails(64, &["--prefill"]);
    glim(&["explain", "--context", "9000"]).fails(64, &["9001", "4096"]);
    let args = [
        "explain",
        "--steps",
        "1",
        "--trace",
        "/no/such/folder/step.json",
    ];
    glim(&args).fails(75, &["/no/such/folder/step.json"]);
}
