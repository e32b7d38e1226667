//! The help texts, as people read them.

use super::glim;

#[test]
fn help_of_the_whole() {
    insta::assert_snapshot!(glim(&["--help"]).ok());
}

#[test]
fn help_of_run() {
    insta::assert_snapshot!(glim(&["run", "--help"]).ok());
}

#[test]
fn help_of_inspect() {
    insta::assert_snapshot!(glim(&["inspect", "--help"]).ok());
}

#[test]
fn help_of_tokenize() {
    insta::assert_snapshot!(glim(&["tokenize", "--help"]).ok());
}

#[test]
fn help_of_eval() {
    insta::assert_snapshot!(glim(&["eval", "--help"]).ok());
}

#[test]
fn help_of_verify() {
    insta::assert_snapshot!(glim(&["verify", "--help"]).ok());
}

#[test]
fn help_of_convert() {
    insta::assert_snapshot!(glim(&["convert", "--help"]).ok());
}

#[test]
fn help_of_synth() {
    insta::assert_snapshot!(glim(&["synth", "--help"]).ok());
}

#[test]
fn help_of_quantize() {
    insta::assert_snapshot!(glim(&["quantize", "--help"]).ok());
}

#[test]
fn help_of_imatrix() {
    insta::assert_snapshot!(glim(&["imatrix", "--help"]).ok());
}

#[test]
fn help_of_bench() {
    insta::assert_snapshot!(glim(&["bench", "--help"]).ok());
}

#[test]
fn help_of_explain() {
    insta::assert_snapshot!(glim(&["explain", "--help"]).ok());
}

#[test]
fn help_of_doctor() {
    insta::assert_snapshot!(glim(&["doctor", "--help"]).ok());
}

#[test]
fn help_of_completions() {
    insta::assert_snapshot!(glim(&["completions", "--help"]).ok());
}

#[test]
fn help_of_man() {
    insta::assert_snapshot!(glim(&["man", "--help"]).ok());
}

/// That a release names its commit is seen in `tests/dist`.
#[test]
fn the_version_is_one_line_or_all_that_a_report_needs() {
    let short = glim(&["-V"]).ok();
    let known = concat!("glim ", env!("CARGO_PKG_VERSION"), " (");
    assert!(
        short.starts_with(known) && short.ends_with(")\n"),
        "{short}"
    );
    let long = glim(&["--version"]).ok();
    let rest = long
        .strip_prefix(&short)
        .unwrap_or_else(|| panic!("{long}"));
    let lines = rest.lines().map(|line| line.split_once("  ").unwrap());
    let names: Vec<&str> = lines.map(|(name, _)| name).collect();
    assert_eq!(
        names,
        ["features", "kernels", "compiler", "target"],
        "{long}"
    );
    assert!(rest.contains("builtin-model"), "{long}");
}
