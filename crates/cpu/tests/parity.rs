//! The operation parity table, for each set of kernels of this machine, in both arithmetics; on one thread and on two, which must
//! agree to the bit.

use glim_cpu::{CpuBackend, CpuOptions, Isa, Math};
use glim_testkit::parity::{Arithmetic, Subject, check};

fn parity(math: Math, arithmetic: Arithmetic) {
    for isa in Isa::available() {
        let digests = [1, 2].map(|threads| {
            let name = format!("cpu {isa} {math:?} on {threads}");
            let make = |poison| CpuOptions {
                math,
                threads: Some(threads),
                isa: Some(isa),
                poison,
                ..CpuOptions::default()
            };
            check(&Subject::new(&name, arithmetic, &|poison| {
                Box::new(CpuBackend::new(make(poison)))
            }))
        });
        assert_eq!(digests[0], digests[1], "{isa}: two threads, other bits");
    }
}

#[test]
fn exact_math_gives_the_reference_s_bits() {
    parity(Math::Exact, Arithmetic::Exact);
}

#[test]
fn fast_math_stays_within_the_bounds() {
    parity(Math::Fast, Arithmetic::Fast);
}
