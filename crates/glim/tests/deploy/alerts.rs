//! The alerts: each asks for what a server shows, says what to do, has its place in the operations guide, and a test that it fires.

use std::collections::BTreeSet;

use serde_json::Value as Json;

use crate::documents::{headings, options_named, options_of_operators};
use crate::exposition::Exposition;
use crate::{read, yaml};

const FILE: &str = "deploy/prometheus/alerts.yaml";
const GUIDE: &str = "docs/operations.md";

fn alerts() -> Vec<Json> {
    let file = yaml(FILE);
    let groups = file["groups"].as_array().unwrap().iter();
    let rules = groups.flat_map(|group| group["rules"].as_array().unwrap().clone());
    rules.collect()
}

fn name(alert: &Json) -> &str {
    alert["alert"].as_str().unwrap()
}

#[test]
fn alerts_and_dashboard_ask_for_what_a_server_shows() {
    let exposition = Exposition::of_a_server();
    let of_alerts = alerts().into_iter().map(|alert| {
        let expression = alert["expr"].as_str().unwrap().to_owned();
        (name(&alert).to_owned(), expression)
    });
    let all: Vec<_> = of_alerts.chain(crate::dashboard::expressions()).collect();
    assert!(all.len() > 40, "{}", all.len());
    let problems: Vec<String> = all
        .iter()
        .flat_map(|(place, expression)| {
            let unknown = exposition.unknown(expression);
            unknown
                .into_iter()
                .map(move |what| format!("{place}: {what}"))
        })
        .collect();
    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn every_alert_says_how_bad_it_is_and_what_to_do() {
    let options = options_of_operators();
    for alert in alerts() {
        let name = name(&alert);
        let severity = alert["labels"]["severity"].as_str().unwrap();
        assert!(
            ["critical", "warning"].contains(&severity),
            "{name}: {severity}"
        );
        for part in ["summary", "description", "runbook"] {
            let text = alert["annotations"][part].as_str().unwrap_or_default();
            assert!(text.len() > 20, "{name} has no {part}");
            for option in options_named(text) {
                assert!(options.contains(&option), "{name}: no command has {option}");
            }
        }
        let url = alert["annotations"]["runbook_url"].as_str().unwrap();
        let expected = format!("/{GUIDE}#{}", name.to_lowercase());
        assert!(url.ends_with(&expected), "{name}: {url}");
        assert!(
            url.starts_with(env!("CARGO_PKG_REPOSITORY")),
            "{name}: {url}"
        );
    }
}

#[test]
fn the_guide_has_a_heading_for_each_alert_and_for_no_other() {
    let alerts = alerts();
    let expected: BTreeSet<&str> = alerts.iter().map(name).collect();
    let guide = read(GUIDE);
    let found: BTreeSet<&str> = headings(&guide, "### ")
        .filter(|heading| heading.starts_with("Glim"))
        .collect();
    assert_eq!(found, expected);
}

/// promtool runs them; here it is seen that none is missing.
#[test]
fn every_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not() {
    let file = yaml("deploy/prometheus/alerts_test.yaml");
    for alert in alerts() {
        let name = name(&alert);
        let tests = file["tests"].as_array().unwrap();
        let own = tests.iter().find(|test| {
            let text = test["name"].as_str().unwrap();
            text.split(' ').next() == Some(name)
        });
        let own = own.unwrap_or_else(|| panic!("{name} has no test"));
        let expected = own["promql_expr_test"].as_array().unwrap().iter();
        let samples: Vec<_> = expected
            .map(|test| test["exp_samples"].as_array().unwrap())
            .collect();
        assert!(samples.iter().any(|samples| samples.is_empty()), "{name}");
        let fires = format!("alertname=\"{name}\", instance=\"a\"");
        let fired = samples.iter().flat_map(|samples| samples.iter());
        let fired: Vec<&str> = fired.map(|one| one["labels"].as_str().unwrap()).collect();
        assert!(
            fired.len() == 1 && fired[0].contains(&fires),
            "{name}: {fired:?}"
        );
        // Another series of the same test is there that it must not fire for.
        assert!(
            own["input_series"]
                .to_string()
                .contains("instance=\\\"b\\\""),
            "{name}"
        );
    }
}
