//! Comparison of f32 results with values computed in f64.

/// Each element within `bound`, relative to values above one, absolute below.
#[track_caller]
pub(crate) fn assert_close(found: &[f32], expected: &[f64], bound: f64) {
    assert_eq!(found.len(), expected.len());
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        let off = (f64::from(*f) - e).abs();
        assert!(
            off <= bound * e.abs().max(1.0),
            "element {i}: {f}, expected {e}"
        );
    }
}
