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
fn version() {
    assert_eq!(
        glim(&["--version"]).ok(),
        format!("glim {}\n", env!("CARGO_PKG_VERSION"))
    );
}
