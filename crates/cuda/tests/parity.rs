//! The operation parity table, in both arithmetics, with graphs and without, which must agree to the bit.
//!
//! Each case must stay within its operation's bound. Run by `cargo xtask emulate` on the emulator, and by `cargo xtask gpu` on a GPU. `GLIM_PARITY` narrows it to cases whose names
//! hold one of its words (separated by commas).
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::hash::{DefaultHasher, Hash, Hasher};

use glim_cuda::{CudaBackend, CudaOptions, Math};
use glim_plan::Backend;
use glim_testkit::parity::{Arithmetic, Subject, check_some};

/// Parts that the table is cut into: each is a test of its own, so that they run beside each other.
const PARTS: u64 = 8;

fn part_of(name: &str) -> u64 {
    let mut hash = DefaultHasher::new();
    name.hash(&mut hash);
    hash.finish() % PARTS
}

fn parity(math: Math, part: u64) {
    let words = std::env::var("GLIM_PARITY").unwrap_or_default();
    let wanted =
        |name: &str| part_of(name) == part && words.split(',').any(|word| name.contains(word));
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

macro_rules! parts {
    ($($fast:ident $exact:ident $part:literal)*) => {$(
        #[test]
        #[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
        fn $fast() {
            parity(Math::Fast, $part);
        }

        #[test]
        #[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
        fn $exact() {
            parity(Math::Exact, $part);
        }
    )*};
}

parts! {
    fast_math_0 exact_math_0 0
    fast_math_1 exact_math_1 1
    fast_math_2 exact_math_2 2
    fast_math_3 exact_math_3 3
    fast_math_4 exact_math_4 4
    fast_math_5 exact_math_5 5
    fast_math_6 exact_math_6 6
    fast_math_7 exact_math_7 7
}
