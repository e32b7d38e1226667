//! The measurements of a GPU's memory, and of the way between two, run and give figures.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn the_bandwidth_is_a_number_above_0() {
    let options = common::options();
    let found = glim_cuda::bandwidth_of(options.gpu, &options.cache, 1 << 20).unwrap();
    assert!(found > 0.0 && found.is_finite(), "{found}");
}

/// Its own peer, as far as one GPU can show: all bytes are right, and the flag comes back.
#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn what_a_gpu_reads_and_writes_of_itself_is_right() {
    let options = common::options();
    let gpu = options.gpu;
    let found = glim_cuda::pair_of(gpu, gpu, &options.cache, 1 << 20).unwrap();
    assert_eq!((found.bytes, found.wrong_bytes), (3 << 20, 0));
    assert!(found.read > 0.0 && found.write > 0.0, "{found:?}");
    assert!(!found.round_trip.is_zero(), "{found:?}");
}
