//! How far two arrays are apart, and where.

use std::fmt;

/// The outcome of comparing two arrays of one shape.
#[derive(Debug, Clone, PartialEq)]
pub struct Diff {
    /// Largest absolute difference; infinite if one side is NaN or infinite where the other is not the same.
    pub max_abs: f32,
    /// Largest absolute difference over the largest magnitude of the expected array (not element by element: values
    /// near zero have no meaningful relative error of their own).
    pub max_rel: f32,
    /// Where `max_abs` occurs.
    pub worst: Option<Place>,
}

/// One element of an array, and what both sides have there.
#[derive(Debug, Clone, PartialEq)]
pub struct Place {
    /// Index on each axis, slowest first.
    pub at: Vec<usize>,
    /// The value under test.
    pub found: f32,
    /// The reference.
    pub expected: f32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "at {:?}: found {}, expected {}",
            self.at, self.found, self.expected
        )
    }
}

/// Compares two row-major arrays of `shape`.
///
/// # Panics
/// If a length is not the shape's.
pub fn compare(found: &[f32], expected: &[f32], shape: &[usize]) -> Diff {
    check_lengths(found.len(), expected.len(), shape);
    let mut diff = Diff {
        max_abs: 0.0,
        max_rel: 0.0,
        worst: None,
    };
    for (index, (&x, &y)) in found.iter().zip(expected).enumerate() {
        let distance = distance(x, y);
        if distance > diff.max_abs {
            diff.max_abs = distance;
            diff.worst = Some(Place {
                at: coordinates(index, shape),
                found: x,
                expected: y,
            });
        }
    }
    let scale = expected
        .iter()
        .filter(|y| y.is_finite())
        .fold(0f32, |max, y| max.max(y.abs()));
    diff.max_rel = if diff.max_abs == 0.0 {
        0.0
    } else {
        diff.max_abs / scale
    };
    diff
}

/// The first element, in row-major order, that is further than `max_abs` from its reference.
///
/// # Panics
/// If a length is not the shape's.
pub fn first_mismatch(
    found: &[f32],
    expected: &[f32],
    shape: &[usize],
    max_abs: f32,
) -> Option<Place> {
    check_lengths(found.len(), expected.len(), shape);
    let index = found
        .iter()
        .zip(expected)
        .position(|(&x, &y)| distance(x, y) > max_abs)?;
    Some(Place {
        at: coordinates(index, shape),
        found: found[index],
        expected: expected[index],
    })
}

/// Fails the test, naming `what` and the first and the worst element, unless every element is within `max_abs`.
///
/// # Panics
/// Then, and if a length is not the shape's.
#[track_caller]
pub fn assert_close(what: &str, found: &[f32], expected: &[f32], shape: &[usize], max_abs: f32) {
    let Some(first) = first_mismatch(found, expected, shape, max_abs) else {
        return;
    };
    let diff = compare(found, expected, shape);
    let worst = diff
        .worst
        .map_or_else(String::new, |place| format!("; worst {place}"));
    panic!(
        "{what} {shape:?} is off by up to {} (allowed: {max_abs}); first {first}{worst}",
        diff.max_abs
    );
}

/// 0 for equal bits' values and for two NaNs; infinite where only one side is a number.
fn distance(x: f32, y: f32) -> f32 {
    if x == y || (x.is_nan() && y.is_nan()) {
        return 0.0;
    }
    let distance = (x - y).abs();
    if distance.is_nan() {
        f32::INFINITY
    } else {
        distance
    }
}

fn check_lengths(found: usize, expected: usize, shape: &[usize]) {
    let elements: usize = shape.iter().product();
    assert_eq!(found, elements, "found elements, against shape {shape:?}");
    assert_eq!(
        expected, elements,
        "expected elements, against shape {shape:?}"
    );
}

/// Index on each axis of element `index` of a row-major array.
pub fn coordinates(index: usize, shape: &[usize]) -> Vec<usize> {
    let mut rest = index;
    let mut at: Vec<usize> = shape
        .iter()
        .rev()
        .map(|&n| {
            let i = rest % n;
            rest /= n;
            i
        })
        .collect();
    at.reverse();
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_element_is_found_with_its_coordinates() {
        let expected = [0.0, 1.0, 2.0, 3.0, 4.0, 8.0];
        let found = [0.0, 1.0, 2.5, 3.0, 3.0, 8.0];
        let diff = compare(&found, &expected, &[2, 3]);
        assert_eq!((diff.max_abs, diff.max_rel), (1.0, 0.125));
        assert_eq!(
            diff.worst,
            Some(Place {
                at: vec![1, 1],
                found: 3.0,
                expected: 4.0
            })
        );
        let first = first_mismatch(&found, &expected, &[2, 3], 0.25);
        assert_eq!(
            first,
            Some(Place {
                at: vec![0, 2],
                found: 2.5,
                expected: 2.0
            })
        );
    }

    #[test]
    fn a_nan_is_never_close_to_a_number() {
        let diff = compare(&[f32::NAN], &[1.0], &[1]);
        assert_eq!(diff.max_abs, f32::INFINITY);
        assert!(diff.worst.is_some());
        assert_eq!(
            compare(&[f32::NEG_INFINITY], &[f32::NEG_INFINITY], &[1]).max_abs,
            0.0
        );
        assert_eq!(
            compare(&[f32::INFINITY], &[f32::NEG_INFINITY], &[1]).max_abs,
            f32::INFINITY
        );
    }

    #[test]
    #[should_panic(
        expected = "logits [2] is off by up to 1 (allowed: 0.5); first at [1]: found 3, expected 2"
    )]
    fn assert_close_says_what_and_where() {
        assert_close("logits", &[1.0, 3.0], &[1.0, 2.0], &[2], 0.5);
    }
}
