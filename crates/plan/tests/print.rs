//! How a plan reads: the print is part of `inspect --plan`, so a change of it is seen in review.

mod common;

use common::toy;
use glim_plan::fuse;
use glim_plan::fuse::ADD_RMS_NORM;

#[test]
fn a_decode_plan_prints_one_line_an_operation() {
    insta::assert_snapshot!(toy::decode(4));
}

#[test]
fn a_fused_operation_prints_its_parts() {
    let mut plan = toy::prefill(16, 3);
    fuse(&mut plan, &[ADD_RMS_NORM]);
    let print = plan.to_string();
    let at = print.find("AddRmsNorm").unwrap_or(0);
    let start = print[..at].rfind('\n').map_or(0, |i| i + 1);
    let lines: Vec<&str> = print[start..].lines().take(3).collect();
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn a_step_kind_prints_its_bucket() {
    assert_eq!(toy::decode(4).step.to_string(), "decode 4 rows");
    assert_eq!(
        toy::prefill(16, 3).step.to_string(),
        "prefill 16 tokens, 3 sequences"
    );
}
