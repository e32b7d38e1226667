//! Two results held against each other.

use glim_plan::{GgmlType, Plan, StepResults};

use super::bounds::ELEMENT;

/// The live rows of one result.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Buffer {
    pub(super) name: String,
    pub(super) ty: GgmlType,
    /// Words of each live row.
    pub(super) rows: Vec<Vec<u32>>,
}

/// The live rows of all results, in the order of the plan; of rows whose end is not written, what is written.
pub(super) fn live(
    plan: &Plan,
    results: &StepResults,
    rows: &[super::layout::Row],
    outputs: usize,
) -> Vec<Buffer> {
    use glim_plan::{BufferKind, Rows};
    let buffers = plan.buffers_where(|kind| *kind == BufferKind::Result);
    let buffer = |b: &glim_plan::BufferDecl| {
        let width = b.row_elements();
        let live = match b.rows {
            Rows::Tokens => rows.len(),
            Rows::Outputs => outputs,
            Rows::Whole => b.shape.first().copied().unwrap_or(1),
        };
        let words: Vec<u32> = match b.dtype {
            GgmlType::F32 => results
                .f32s(&b.name)
                .map(|v| v.iter().map(|v| v.to_bits()).collect()),
            _ => results
                .i32s(&b.name)
                .map(|v| v.iter().map(|v| *v as u32).collect()),
        }
        .unwrap_or_else(|| panic!("the backend gave no result {}", b.name));
        // Scores beyond a row's own position are not written.
        let written = |row: usize| match b.name.as_str() {
            super::table::SCORES => rows[row].position + 1,
            _ => width,
        };
        Buffer {
            name: b.name.clone(),
            ty: b.dtype,
            rows: (0..live)
                .map(|row| words[row * width..][..written(row)].to_vec())
                .collect(),
        }
    };
    buffers.map(|(_, b)| buffer(b)).collect()
}

/// How far a result is from the expected one.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Distance {
    /// Mean square of the differences over the mean square of the expected values.
    pub(super) nmse: f64,
    /// Largest difference over the root mean square of the expected values.
    pub(super) max: f64,
}

/// Compares a result with the expected one; a bound of 0 asks for the same bits.
pub(super) fn compare(found: &Buffer, expected: &Buffer, bound: f64) -> Result<Distance, String> {
    if found.rows.len() != expected.rows.len() {
        return Err(format!(
            "{} rows, expected {}",
            found.rows.len(),
            expected.rows.len()
        ));
    }
    let at = |row: usize, element: usize| format!("{} row {row} element {element}", expected.name);
    let exact = bound == 0.0 || expected.ty != GgmlType::F32;
    let (mut error, mut square, mut n, mut worst) = (0.0, 0.0, 0usize, (0f64, String::new()));
    for (r, (f, e)) in found.rows.iter().zip(&expected.rows).enumerate() {
        for (i, (f, e)) in f.iter().zip(e).enumerate() {
            let (x, y) = (f32::from_bits(*f), f32::from_bits(*e));
            if exact {
                let both_nan = expected.ty == GgmlType::F32 && x.is_nan() && y.is_nan();
                if f != e && !both_nan {
                    return Err(match expected.ty {
                        GgmlType::F32 => format!("{}: {x:e}, expected {y:e}", at(r, i)),
                        _ => format!("{}: {}, expected {}", at(r, i), *f as i32, *e as i32),
                    });
                }
                continue;
            }
            if x.is_finite() != y.is_finite() {
                return Err(format!("{}: {x}, expected {y}", at(r, i)));
            }
            if y.is_finite() {
                let off = (f64::from(x) - f64::from(y)).abs();
                error += off * off;
                square += f64::from(y).powi(2);
                n += 1;
                if off > worst.0 {
                    worst = (off, format!("{}: {x:e}, expected {y:e}", at(r, i)));
                }
            }
        }
    }
    if error == 0.0 {
        return Ok(Distance::default());
    }
    let size = (square / n as f64).sqrt();
    let distance = Distance {
        nmse: error / square,
        max: worst.0 / size,
    };
    // A handful of elements says little about a mean; single elements are held to theirs below.
    if n >= 64 && distance.nmse > bound {
        return Err(format!(
            "normalised mean squared error {:.2e}, allowed {bound:.2e}; worst {}",
            distance.nmse, worst.1
        ));
    }
    if n >= 64 && distance.max > ELEMENT * bound.sqrt() {
        let (max, allowed) = (distance.max, ELEMENT * bound.sqrt());
        return Err(format!(
            "off by {max:.2e} of the root mean square, allowed {allowed:.2e}; worst {}",
            worst.1
        ));
    }
    // `square` of few elements may be small by chance: their sums are of size 1, by the scale of weights and activations.
    if n < 64 && worst.0 > ELEMENT * bound.sqrt() {
        return Err(format!(
            "{}, allowed {:.2e}",
            worst.1,
            ELEMENT * bound.sqrt()
        ));
    }
    Ok(distance)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn buffer(values: &[f32]) -> Buffer {
        Buffer {
            name: "out".into(),
            ty: GgmlType::F32,
            rows: vec![values.iter().map(|v| v.to_bits()).collect()],
        }
    }

    #[test]
    fn bits_count_where_the_bound_is_zero() {
        let (a, b) = (buffer(&[1.0, f32::NAN]), buffer(&[1.0 + f32::EPSILON, 0.0]));
        assert!(compare(&a, &a, 0.0).is_ok());
        let error = compare(&a, &b, 0.0).unwrap_err();
        assert_eq!(error, "out row 0 element 0: 1e0, expected 1.0000001e0");
    }

    #[test]
    fn one_wrong_element_of_many_is_seen() {
        let expected = buffer(&[1.0; 1000]);
        let mut values = [1.0; 1000];
        values[700] = 1.1;
        let error = compare(&buffer(&values), &expected, 1e-4).unwrap_err();
        assert!(error.contains("element 700"), "{error}");
        values[700] = 1.01;
        assert!(compare(&buffer(&values), &expected, 1e-4).is_ok());
    }

    #[test]
    fn nan_is_not_a_small_error() {
        let (nan, one) = (buffer(&[f32::NAN]), buffer(&[1.0]));
        assert!(compare(&nan, &one, 1.0).is_err());
        assert!(compare(&one, &nan, 1.0).is_err());
        assert!(compare(&buffer(&[f32::INFINITY]), &nan, 1.0).is_ok());
    }
}
