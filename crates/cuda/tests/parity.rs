//! The operation parity table, in both arithmetics, with graphs and without, which must agree to the bit.
//!
//! Run by `cargo xtask emulate` on the emulator, and by `cargo xtask gpu` on a GPU. `GLIM_PARITY` narrows it to cases whose names
//! hold one of its words (separated by commas).
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use glim_cuda::{CudaBackend, CudaOptions, Math};
use glim_plan::Backend;
use glim_testkit::parity::{Arithmetic, Subject, check_some};

fn parity(math: Math) {
    let words = std::env::var("GLIM_PARITY").unwrap_or_default();
    let wanted = |name: &str| words.split(',').any(|word| name.contains(word));
    let digests = [true, false].map(|graphs| {
        let name = format!("cuda {math:?}{}", if graphs { " graphs" } else { "" });
        let make = |poison| CudaOptions {
            math,
            graphs,
            poison,
            ..common::options()
        };
        let make =
            |poison| -> Box<dyn Backend> { Box::new(CudaBackend::new(make(poison)).unwrap()) };
        check_some(&Subject::new(&name, Arithmetic::Fast, &make), &wanted)
    });
    assert_eq!(digests[0], digests[1], "a graph's replay gives other bits");
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn fast_math_stays_within_the_bounds() {
    parity(Math::Fast);
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn exact_math_stays_within_the_bounds() {
    parity(Math::Exact);
}
