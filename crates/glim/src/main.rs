//! The glim binary
fn main() {}
