//! The operation parity table, for each set of kernels of this machine, both arithmetics, one thread and two.

use glim_cpu::{CpuBackend, CpuOptions, Isa, Math};
use glim_testkit::parity::{Arithmetic, Subject, check};

fn parity(math: Math, arithmetic: Arithmetic, threads: usize) {
    for isa in Isa::available() {
        let name = format!("cpu {isa} {math:?} on {threads}");
        check(&Subject::new(&name, arithmetic, &|poison| {
            Box::new(CpuBackend::new(CpuOptions {
                math,
                threads: Some(threads),
                isa: Some(isa),
                poison,
            }))
        }));
    }
}

#[test]
fn exact_math_on_one_thread() {
    parity(Math::Exact, Arithmetic::Exact, 1);
}

#[test]
fn exact_math_on_two_threads() {
    parity(Math::Exact, Arithmetic::Exact, 2);
}

#[test]
fn fast_math_on_one_thread() {
    parity(Math::Fast, Arithmetic::Fast, 1);
}

#[test]
fn fast_math_on_two_threads() {
    parity(Math::Fast, Arithmetic::Fast, 2);
}
