//! One chunk of a tensor beside the same chunk of another checkpoint's.
//!
//! What is expected depends on the two types:
//!
//! | file | other | expected |
//! | --- | --- | --- |
//! | float | the same | the same bytes |
//! | float | another float | the other's numbers, rounded to the file's type |
//! | quantised | float | the bytes that our encoder makes of the numbers; or a block within the bounds of [`super::bounds`] |
//! | any | quantised | the same bytes, if the types are the same; or blocks within the sum of both bounds |

use std::ops::Range;

use glim_quant::{GgmlType, dequantize, quantize};

use super::bounds::{self, Verdict};
use super::logical::Logical;
use super::report::BadElement;
use super::stored::bad_element;
use crate::error::ModelError;

/// What a chunk turned out to be.
#[derive(Debug, Default)]
pub(super) struct Compared {
    /// Blocks with the expected bytes, and others.
    pub(super) identical: u64,
    pub(super) others: u64,
    /// Of the others, the largest error in bounds: above 1 is out of bounds.
    pub(super) worst: f64,
    /// The first block that is not what was expected, though within its bound.
    pub(super) first_other: Option<BadElement>,
    /// The first that is out of bounds.
    pub(super) first_bad: Option<BadElement>,
    /// Bytes of the file that were read.
    pub(super) bytes: u64,
    /// It lies in holes of both files.
    pub(super) holes: bool,
}

fn is_float(ty: GgmlType) -> bool {
    matches!(ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16)
}

/// A chunk of both, with what it takes to name an element.
struct Chunk<'a> {
    name: &'a str,
    columns: usize,
    first: usize,
    file: (GgmlType, &'a [u8]),
    other: (GgmlType, &'a [u8]),
}

/// Compares some elements of `file`'s tensor with those of `other`'s.
///
/// # Errors
/// A type without decoder.
pub(super) fn compare(
    file: &Logical<'_>,
    other: &Logical<'_>,
    elements: &Range<usize>,
) -> Result<Compared, ModelError> {
    if !file.has_data(elements) && !other.has_data(elements) {
        return Ok(Compared {
            holes: true,
            ..Compared::default()
        });
    }
    let (file_bytes, other_bytes) = (file.bytes(elements)?, other.bytes(elements)?);
    let chunk = Chunk {
        name: &file.desc.name,
        columns: file.desc.shape.last().copied().unwrap_or(1),
        first: elements.start,
        file: (file.desc.ty, &file_bytes),
        other: (other.desc.ty, &other_bytes),
    };
    let mut compared = match (is_float(chunk.file.0), is_float(chunk.other.0)) {
        _ if chunk.file == chunk.other => Compared {
            identical: (file_bytes.len() / chunk.file.0.block_bytes()) as u64,
            ..Compared::default()
        },
        (true, true) => chunk.of_floats(),
        (false, true) => chunk.of_original(file)?,
        (_, false) => chunk.of_other(file, other)?,
    };
    compared.bytes = file_bytes.len() as u64;
    Ok(compared)
}

impl Chunk<'_> {
    fn bad(&self, element: usize, expected: String, found: String) -> BadElement {
        bad_element(
            self.name,
            self.columns,
            self.first + element,
            expected,
            found,
        )
    }

    fn of_floats(&self) -> Compared {
        let (ty, found) = self.file;
        let (other_ty, other) = self.other;
        // Both types can be decoded, and floats take any number: neither call fails on whole elements.
        let mut numbers = vec![0f32; other.len() / other_ty.block_bytes()];
        let mut expected = vec![0u8; numbers.len() * ty.block_bytes()];
        let made = dequantize(other_ty, other, &mut numbers).and_then(|()| match ty == other_ty {
            true => {
                expected.copy_from_slice(other);
                Ok(())
            }
            false => quantize(ty, &numbers, &mut expected),
        });
        let size = ty.block_bytes();
        let mut compared = Compared::default();
        let pairs = found.chunks_exact(size).zip(expected.chunks_exact(size));
        for (i, (found, expected)) in pairs.enumerate() {
            if found == expected {
                compared.identical += 1;
                continue;
            }
            compared.others += 1;
            if compared.first_bad.is_none() {
                let number = |bytes: &[u8]| {
                    let mut value = [0f32];
                    // One whole element of a float type.
                    match dequantize(ty, bytes, &mut value) {
                        Ok(()) => value[0].to_string(),
                        Err(error) => error.to_string(),
                    }
                };
                compared.first_bad = Some(self.bad(i, number(expected), number(found)));
            }
        }
        if let Err(error) = made {
            compared.first_bad = Some(self.bad(0, "numbers".to_owned(), error.to_string()));
        }
        compared
    }

    /// A quantised file beside the numbers that it was made of.
    fn of_original(&self, file: &Logical<'_>) -> Result<Compared, ModelError> {
        let (ty, found) = self.file;
        let x = decode(file, self.other.0, self.other.1)?;
        let mut expected = vec![0u8; found.len()];
        let expected = quantize(ty, &x, &mut expected).ok().map(|()| expected);
        let (size, elems) = (ty.block_bytes(), ty.block_elems());
        let mut compared = Compared::default();
        let (mut y, mut ours) = (vec![0f32; elems], vec![0f32; elems]);
        for (i, (block, x)) in found
            .chunks_exact(size)
            .zip(x.chunks_exact(elems))
            .enumerate()
        {
            let made = expected
                .as_ref()
                .and_then(|all| all.get(i * size..(i + 1) * size));
            if made == Some(block) {
                compared.identical += 1;
                continue;
            }
            compared.others += 1;
            decode_into(file, ty, block, &mut y)?;
            let ours = match made {
                Some(made) => {
                    decode_into(file, ty, made, &mut ours)?;
                    Some(&ours[..])
                }
                None => None,
            };
            let verdict = bounds::against_original(ty, block, x, &y, ours);
            compared.worst = compared.worst.max(verdict.ratio);
            let is_bad = verdict.ratio > 1.0;
            if compared.first_bad.is_none() && (is_bad || compared.first_other.is_none()) {
                let named = self.name_original(i, &verdict, x, &y, made.zip(ours), block);
                match is_bad {
                    true => compared.first_bad = Some(named),
                    false => compared.first_other = Some(named),
                }
            }
        }
        Ok(compared)
    }

    /// The element of block `i` that shows best what is wrong with it.
    fn name_original(
        &self,
        i: usize,
        verdict: &Verdict,
        x: &[f32],
        y: &[f32],
        made: Option<(&[u8], &[f32])>,
        block: &[u8],
    ) -> BadElement {
        let first = i * y.len();
        let differs = |ours: &[f32]| {
            ours.iter()
                .zip(y)
                .position(|(a, b)| a.to_bits() != b.to_bits())
        };
        let e = match made {
            // Of a block that is within bounds: where it differs from ours, if it does.
            Some((_, ours)) if verdict.ratio <= 1.0 => differs(ours),
            _ => Some(verdict.element),
        };
        let (Some(e), made) = (e, made) else {
            let (made, _) = made.unwrap_or_default();
            let at = made
                .iter()
                .zip(block)
                .position(|(a, b)| a != b)
                .unwrap_or(0);
            let byte = |bytes: &[u8]| {
                format!(
                    "byte {at} of the block {:#04x}",
                    bytes.get(at).copied().unwrap_or_default()
                )
            };
            return self.bad(first, byte(made), byte(block));
        };
        let expected = match made {
            Some((_, ours)) => format!("{} ({} in the original)", ours[e], x[e]),
            None => format!("{} within the type's bound", x[e]),
        };
        self.bad(first + e, expected, y[e].to_string())
    }

    /// Beside a quantised file.
    fn of_other(&self, file: &Logical<'_>, other: &Logical<'_>) -> Result<Compared, ModelError> {
        let (a, b) = (self.file, self.other);
        let (y, z) = (decode(file, a.0, a.1)?, decode(other, b.0, b.1)?);
        // Both block sizes are powers of two, so the larger is whole blocks of the smaller.
        let elems = a.0.block_elems().max(b.0.block_elems());
        let bytes = |ty: GgmlType| elems / ty.block_elems() * ty.block_bytes();
        let blocks =
            a.1.chunks_exact(bytes(a.0))
                .zip(b.1.chunks_exact(bytes(b.0)));
        let values = y.chunks_exact(elems).zip(z.chunks_exact(elems));
        let mut compared = Compared::default();
        for (i, ((a_bytes, b_bytes), (y, z))) in blocks.zip(values).enumerate() {
            if a.0 == b.0 && a_bytes == b_bytes {
                compared.identical += 1;
                continue;
            }
            compared.others += 1;
            let verdict = bounds::against_other((a.0, a_bytes, y), (b.0, b_bytes, z));
            compared.worst = compared.worst.max(verdict.ratio);
            if verdict.ratio > 1.0 && compared.first_bad.is_none() {
                let e = verdict.element;
                let expected = format!("{} within both types' bounds", z[e]);
                compared.first_bad = Some(self.bad(i * elems + e, expected, y[e].to_string()));
            }
        }
        Ok(compared)
    }
}

fn decode(tensor: &Logical<'_>, ty: GgmlType, bytes: &[u8]) -> Result<Vec<f32>, ModelError> {
    let mut values = vec![0f32; bytes.len() / ty.block_bytes() * ty.block_elems()];
    decode_into(tensor, ty, bytes, &mut values)?;
    Ok(values)
}

fn decode_into(
    tensor: &Logical<'_>,
    ty: GgmlType,
    bytes: &[u8],
    values: &mut [f32],
) -> Result<(), ModelError> {
    dequantize(ty, bytes, values).map_err(|_| tensor.undecodable())
}
