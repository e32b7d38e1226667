//! What a server shows under `/metrics`: which series there are, and which values their labels have. Expressions are held against it.

use std::collections::{BTreeMap, BTreeSet};

use crate::promql::selectors;
use crate::server::Server;

/// Names of series with their labels' values. A histogram is three series.
pub(crate) struct Exposition(BTreeMap<String, BTreeMap<String, BTreeSet<String>>>);

/// Labels that Prometheus adds to what it reads.
const OF_THE_SCRAPE: [&str; 2] = ["job", "instance"];

/// Labels whose values are a small set that the program knows.
const CLOSED: [&str; 5] = ["finished_reason", "reason", "state", "phase", "status"];

impl Exposition {
    /// Of a server that has answered a request.
    pub(crate) fn of_a_server() -> Self {
        let server = Server::start(&[]);
        server.wait_ready();
        let asked = server.post(
            "/v1/completions",
            r#"{"prompt": "2 + 2 =", "max_tokens": 2}"#,
        );
        assert_eq!(asked.0, 200, "{}", asked.1);
        let (status, text) = server.get("/metrics");
        assert_eq!(status, 200);
        Self::parse(&text)
    }

    fn parse(text: &str) -> Self {
        let mut all: BTreeMap<String, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
        // What Prometheus itself says of each scrape.
        all.entry("up".to_owned()).or_default();
        for line in text.lines() {
            if let Some(family) = line.strip_prefix("# TYPE ") {
                let (name, kind) = family.split_once(' ').unwrap();
                let ends: &[&str] = match kind {
                    "histogram" => &["_bucket", "_sum", "_count"],
                    _ => &[""],
                };
                for end in ends {
                    all.entry(format!("{name}{end}")).or_default();
                }
            } else if !line.starts_with('#') {
                let (samples, labels) = selectors(line);
                assert!(samples.len() == 1 && labels.is_empty(), "{line}");
                let series = all.get_mut(&samples[0].metric);
                let series = series.unwrap_or_else(|| panic!("no type: {line}"));
                for (label, _, value) in &samples[0].matchers {
                    let values = series.entry(label.clone()).or_default();
                    values.insert(value.clone());
                }
            }
        }
        Self(all)
    }

    /// What an expression asks for that no server shows.
    pub(crate) fn unknown(&self, expression: &str) -> Vec<String> {
        let mut problems = Vec::new();
        let (found, groupings) = selectors(expression);
        let mut labels = BTreeSet::new();
        for selector in &found {
            let Some(series) = self.0.get(&selector.metric) else {
                problems.push(format!("no series {}", selector.metric));
                continue;
            };
            labels.extend(series.keys().map(String::as_str));
            for (label, operator, value) in &selector.matchers {
                if OF_THE_SCRAPE.contains(&label.as_str()) {
                    continue;
                }
                match series.get(label) {
                    None => problems.push(format!("{} has no label {label}", selector.metric)),
                    Some(values) if operator == "=" && CLOSED.contains(&label.as_str()) => {
                        if !values.contains(value) {
                            problems
                                .push(format!("{label} of {} is never {value}", selector.metric));
                        }
                    }
                    Some(_) => {}
                }
            }
        }
        if found.is_empty() {
            problems.push("asks for nothing".to_owned());
        }
        let known = |label: &&String| {
            labels.contains(label.as_str()) || OF_THE_SCRAPE.contains(&label.as_str())
        };
        let unknown = groupings.iter().filter(|label| !known(label));
        problems.extend(unknown.map(|label| format!("nothing has a label {label}")));
        problems
    }
}

#[test]
fn what_no_server_shows_is_named() {
    let text = "# TYPE a_total counter\na_total{reason=\"x\"} 1\n# TYPE h histogram\nh_bucket{le=\"1\"} 2\n";
    let exposition = Exposition::parse(text);
    for (expression, expected) in [
        ("rate(a_total{job=\"g\", reason=\"x\"}[5m]) > 0", None),
        ("sum by (le, instance) (h_bucket) / h_count / up", None),
        ("a", Some("no series a")),
        ("h", Some("no series h")),
        (
            "a_total{reason=\"y\"}",
            Some("reason of a_total is never y"),
        ),
        ("a_total{state=\"x\"}", Some("a_total has no label state")),
        (
            "sum by (state) (a_total)",
            Some("nothing has a label state"),
        ),
        ("1 > 0", Some("asks for nothing")),
    ] {
        let found = exposition.unknown(expression);
        assert_eq!(found, Vec::from_iter(expected), "{expression}");
    }
}
