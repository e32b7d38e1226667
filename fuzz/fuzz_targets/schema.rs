//! libFuzzer's entry to the target of this name in `glim_fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| glim_fuzz::run("schema", data));
