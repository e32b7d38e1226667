//! The dashboard: panels that do not lie on each other, and say what they show.

use std::collections::BTreeSet;

use serde_json::Value as Json;

use crate::read;

const FILE: &str = "deploy/grafana/glim.json";

fn dashboard() -> Json {
    serde_json::from_str(&read(FILE)).unwrap()
}

fn panels(dashboard: &Json) -> &[Json] {
    dashboard["panels"].as_array().unwrap()
}

/// Every expression with its place; what Grafana puts in is put in.
pub(crate) fn expressions() -> Vec<(String, String)> {
    let dashboard = dashboard();
    let mut all = Vec::new();
    for panel in panels(&dashboard) {
        for target in panel["targets"].as_array().into_iter().flatten() {
            all.push((&panel["title"], &target["expr"]));
        }
    }
    for annotation in dashboard["annotations"]["list"].as_array().unwrap() {
        all.push((&annotation["name"], &annotation["expr"]));
    }
    let text = |value: &Json| value.as_str().unwrap().to_owned();
    all.into_iter()
        .map(|(title, expression)| {
            let expression = text(expression).replace("$__rate_interval", "5m");
            (format!("panel {title}"), expression)
        })
        .collect()
}

#[test]
fn panels_have_a_place_a_title_and_series_of_their_own() {
    let dashboard = dashboard();
    let mut ids = BTreeSet::new();
    let mut cells = BTreeSet::new();
    for panel in panels(&dashboard) {
        let title = panel["title"].as_str().unwrap();
        assert!(!title.is_empty());
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}");
        let place = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        let (x, y, w, h) = (place("x"), place("y"), place("w"), place("h"));
        assert!(w > 0 && h > 0 && x + w <= 24, "{title}");
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(cells.insert(cell), "{title} lies on another at {cell:?}");
        }
        if panel["type"] == "row" {
            continue;
        }
        assert!(
            panel["fieldConfig"]["defaults"]["unit"].is_string(),
            "{title}"
        );
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{title}");
        let names: BTreeSet<&str> = targets
            .iter()
            .map(|t| t["refId"].as_str().unwrap())
            .collect();
        assert_eq!(names.len(), targets.len(), "{title}");
        for target in targets {
            let expression = target["expr"].as_str().unwrap();
            assert!(expression.contains("instance=~\"$instance\""), "{title}");
        }
    }
}
