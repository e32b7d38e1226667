//! The measurement of a GPU's memory runs, and gives a figure.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn the_bandwidth_is_a_number_above_0() {
    let options = common::options();
    let found = glim_cuda::read_bandwidth(options.gpu, &options.cache).unwrap();
    assert!(found > 0.0 && found.is_finite(), "{found}");
}
