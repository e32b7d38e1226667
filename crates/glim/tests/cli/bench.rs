//! `glim bench`: what it says, not how fast it is.

use super::glim;

#[test]
fn bench_reports_what_scripts_rely_on() {
    let args = [
        "bench",
        "--json",
        "--rows",
        "1,2",
        "--context",
        "0,100",
        "--prompt",
        "16",
        "--repeat",
        "1",
    ];
    let out = glim(&args);
    assert_eq!(out.code, 0, "{out:?}");
    assert!(out.stderr.contains("of memory: weights"), "{out:?}");
    let json = out.json();
    assert!(
        json["read_bandwidth_gb_s"]
            .as_f64()
            .is_some_and(|x| x > 0.0),
        "{json}"
    );
    assert!(
        json["device"]
            .as_str()
            .is_some_and(|d| d.starts_with("cpu")),
        "{json}"
    );
    let decode = json["decode"].as_array().unwrap();
    let sizes: Vec<_> = decode
        .iter()
        .map(|d| (d["rows"].as_u64(), d["context"].as_u64()))
        .collect();
    assert_eq!(
        sizes,
        [(1, 0), (2, 0), (1, 100), (2, 100)].map(|(r, c)| (Some(r), Some(c)))
    );
    for d in decode {
        for field in ["ms", "tok_s", "bytes", "roofline_ms", "ratio", "nodes"] {
            assert!(d[field].as_f64().is_some_and(|x| x > 0.0), "{field}: {d}");
        }
    }
    let prefill = &json["prefill"][0];
    assert_eq!(prefill["tokens"], 16);
    assert!(
        prefill["flops_ratio"].as_f64().is_some_and(|x| x > 0.0),
        "{json}"
    );
}

#[test]
fn sizes_beyond_the_model_are_refused() {
    glim(&["bench", "--context", "9000"]).fails(64, &["9001", "4096"]);
    glim(&["bench", "--rows", "0"]).fails(64, &["--rows"]);
    glim(&["bench", "--rows", "129"]).fails(64, &["--rows"]);
}

#[test]
fn requests_at_a_time_are_reported_with_what_chunks_spare() {
    let args = "bench --json --concurrency 1,3 --request-prompt 8 --request-answer 4 --long-prompt 40 --chunk 16";
    let out = glim(&args.split(' ').collect::<Vec<_>>());
    assert_eq!(out.code, 0, "{out:?}");
    let json = out.json();
    let runs = json["concurrency"].as_array().unwrap();
    let sizes: Vec<_> = runs.iter().map(|r| r["requests"].as_u64()).collect();
    assert_eq!(sizes, [Some(1), Some(3)]);
    for run in runs {
        for field in ["total_ms", "tok_s", "decode_tok_s"] {
            assert!(
                run[field].as_f64().is_some_and(|x| x > 0.0),
                "{field}: {run}"
            );
        }
    }
    let arrivals = json["arrival"].as_array().unwrap();
    let chunks: Vec<_> = arrivals.iter().map(|a| a["chunk"].as_u64()).collect();
    assert_eq!(chunks, [Some(16), Some(40)]);
    for arrival in arrivals {
        for field in ["short_ttft_ms", "long_ttft_ms", "longest_gap_ms"] {
            assert!(
                arrival[field].as_f64().is_some_and(|x| x > 0.0),
                "{field}: {arrival}"
            );
        }
    }
    glim(&["bench", "--concurrency", "0"]).fails(64, &["--concurrency"]);
    glim(&["bench", "--concurrency", "1", "--request-prompt", "9000"]).fails(64, &["9032", "4096"]);
}

/// One rank of eight of GLM-5's shape, with few layers and experts: it runs, and its bytes are those of the shape.
#[test]
fn a_rank_of_a_shape_is_measured_without_a_file() {
    let shape = "--shape tiny --rank 1/2 --dense q4_0 --experts q8_0 --collective 5 --json";
    let bench = format!("bench {shape} --rows 1,2 --context 0,100 --prompt 16 --repeat 1");
    let out = glim(&bench.split(' ').collect::<Vec<_>>());
    assert_eq!(out.code, 0, "{out:?}");
    assert!(
        out.stderr
            .contains("tiny on paper, rank 1/2, 6 layers, Q4_0 dense, Q8_0 experts, F32 router"),
        "{out:?}"
    );
    let json = out.json();
    let bytes = |json: &serde_json::Value| json["bytes"].as_f64().unwrap();
    let decode = json["decode"].as_array().unwrap();
    assert_eq!(decode.len(), 4);
    // 2048 rows of the head, 18 bytes for 32 columns, are half of it; all of the rank's weights are more.
    assert!(bytes(&decode[0]) > 2048.0 * 256.0 / 32.0 * 18.0, "{json}");
    assert!(bytes(&decode[2]) > bytes(&decode[0]) && bytes(&decode[1]) > bytes(&decode[0]));

    let explain = format!("explain {shape} --steps 2 --context 10");
    let json = glim(&explain.split(' ').collect::<Vec<_>>()).json();
    assert_eq!((&json["rank"], &json["ranks"]), (&1.into(), &2.into()));
    // 13 collectives of at least 5 µs.
    let share = json["collective_share"].as_f64().unwrap() * json["step_ms"].as_f64().unwrap();
    assert!(share >= 13.0 * 0.005, "{json}");

    glim(&["bench", "--rank", "0/8"]).fails(64, &["--shape"]);
    glim(&["bench", "--shape", "glm-5", "--rank", "8/8"]).fails(64, &["8/8"]);
    glim(&["bench", "--shape", "glm-5", "--tp", "2"]).fails(64, &["--tp"]);
    glim(&["bench", "model.gguf", "--shape", "glm-5"]).fails(64, &["--shape"]);
}
