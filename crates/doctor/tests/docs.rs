//! docs/doctor.md lists the checks that there are.
#![allow(clippy::unwrap_used, reason = "tests")]

use glim_doctor::{AtStart, CHECKS, probe};

/// First and second cell of each row of a table, where the first is `code`.
fn rows(page: &str) -> Vec<(String, String)> {
    let cells = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let rows =
        cells.filter_map(|(id, rest)| Some((id.to_owned(), rest.split_once(" |")?.0.to_owned())));
    rows.collect()
}

#[test]
fn the_page_lists_every_check_in_order() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/doctor.md");
    let page = std::fs::read_to_string(path).unwrap();
    let checks = CHECKS.iter().map(|check| (check.id, check.asks));
    let all = checks.chain(probe::CHECKS.iter().copied());
    let expected: Vec<_> = all
        .map(|(id, asks)| (id.to_owned(), asks.to_owned()))
        .collect();
    assert_eq!(rows(&page), expected);
}

#[test]
fn the_page_says_what_a_service_asks_when_it_starts() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/doctor.md");
    let page = std::fs::read_to_string(path).unwrap();
    for check in CHECKS {
        let expected = match check.at_start {
            AtStart::Always => "always",
            AtStart::OnGpus => "GPUs",
            AtStart::No => "–",
        };
        let row = format!("| `{}` |", check.id);
        let mut rows = page.lines().filter(|line| line.starts_with(&row));
        let cells: Vec<&str> = rows.next().unwrap().split('|').collect();
        assert_eq!(cells[5].trim(), expected, "{}", check.id);
    }
}
