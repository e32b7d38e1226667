//! Which series an expression of PromQL asks for. Not a parser: promtool says whether an expression is one (`tests/deploy/run.sh`).

/// A selector, or labels that are grouped by (with an empty name).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Selector {
    pub(crate) metric: String,
    /// Label, operator, value.
    pub(crate) matchers: Vec<(String, String, String)>,
}

/// Words that are no names of metrics though no parenthesis follows.
const WORDS: &[&str] = &[
    "and",
    "or",
    "unless",
    "bool",
    "offset",
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
];
/// Words before a list of labels.
const GROUPING: &[&str] = &[
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
];

/// All selectors, in their order, and the labels of all groupings.
pub(crate) fn selectors(expression: &str) -> (Vec<Selector>, Vec<String>) {
    let mut rest = expression;
    let (mut found, mut labels) = (Vec::new(), Vec::new());
    while let Some(first) = rest.chars().next() {
        if first == '"' {
            rest = after(&rest[1..], '"');
        } else if first == '[' {
            rest = after(rest, ']');
        } else if first.is_ascii_digit() {
            // A number, with the unit of a duration.
            rest = rest.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '.');
        } else if is_name(first) {
            let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
            let (name, behind) = rest.split_at(end);
            rest = behind.trim_start();
            if GROUPING.contains(&name) {
                if let Some(list) = rest.strip_prefix('(') {
                    let (list, behind) = list.split_once(')').unwrap_or((list, ""));
                    labels.extend(list.split(',').map(|label| label.trim().to_owned()));
                    rest = behind;
                }
            } else if let Some(braces) = rest.strip_prefix('{') {
                let (matchers, behind) = matchers(braces);
                let metric = name.to_owned();
                found.push(Selector { metric, matchers });
                rest = behind;
            } else if !is_call(rest) && !WORDS.contains(&name) {
                found.push(Selector {
                    metric: name.to_owned(),
                    matchers: Vec::new(),
                });
            }
        } else {
            rest = &rest[first.len_utf8()..];
        }
    }
    (found, labels)
}

/// Whether what stands before is a function, or an aggregation: its grouping may come first.
fn is_call(behind: &str) -> bool {
    let word = behind.split(|c| !is_name(c)).next().unwrap_or_default();
    behind.starts_with('(') || ["by", "without"].contains(&word)
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == ':'
}

fn after(text: &str, end: char) -> &str {
    text.split_once(end).map_or("", |(_, behind)| behind)
}

/// Matchers, and what is behind their brace.
fn matchers(mut rest: &str) -> (Vec<(String, String, String)>, &str) {
    let mut found = Vec::new();
    loop {
        rest = rest.trim_start_matches([' ', ',', '\n']);
        if let Some(behind) = rest.strip_prefix('}') {
            return (found, behind);
        }
        let Some((label, value)) = rest.split_once('"') else {
            panic!("a matcher without a value: {rest}");
        };
        let end = label.find(['=', '!']).unwrap();
        let (label, operator) = label.split_at(end);
        let (value, behind) = value.split_once('"').unwrap();
        found.push((label.trim().into(), operator.trim().into(), value.into()));
        rest = behind;
    }
}

#[test]
fn metrics_and_labels_are_found_and_functions_are_none() {
    let (found, labels) = selectors(
        r#"sum without (le, x) (rate(a:b_total{job="g", r!~"a|b"}[5m])) / on (job) c > 0.05 and time() - d offset 5m == bool 1"#,
    );
    let matcher = |label: &str, operator: &str, value: &str| {
        (label.to_owned(), operator.to_owned(), value.to_owned())
    };
    let plain = |metric: &str| Selector {
        metric: metric.to_owned(),
        matchers: Vec::new(),
    };
    let first = Selector {
        metric: "a:b_total".to_owned(),
        matchers: vec![matcher("job", "=", "g"), matcher("r", "!~", "a|b")],
    };
    assert_eq!(found, [first, plain("c"), plain("d")]);
    assert_eq!(labels, ["le", "x", "job"]);
}
