//! FP8 weights of Hugging Face checkpoints: E4M3 codes and an f32 scale for each block of a matrix.
//!
//! `W.weight` of type F8_E4M3 goes with `W.weight_scale_inv` of type F32, one scale for each block of
//! `quantization_config.weight_block_size` elements (128 × 128 in published checkpoints; blocks at the right and lower
//! edge may be cut short). In spite of the name the scale multiplies:
//!
//! ```text
//! w[i][j] = e4m3(code[i][j]) * scale[i / 128][j / 128]      in f32, rounded once
//! ```
//!
//! E4M3 is the variant without infinities (`float8_e4m3fn`): sign, 4 bits of exponent with bias 7, 3 bits of mantissa;
//! all ones but the sign is NaN, 448 the largest number. Sources: Micikevicius et al., *FP8 Formats for Deep Learning*
//! (arXiv 2209.05433), table 1; transformers' `integrations/finegrained_fp8.py`.

use std::ops::Range;

use serde_json::Value;

use crate::error::ModelError;

/// What the name of a matrix's scales ends with, after the name of the matrix.
pub(super) const SCALE_SUFFIX: &str = "_scale_inv";

/// Decoded bytes that are worth a thread.
const MIN_BYTES_OF_THREAD: usize = 1 << 20;

/// Elements that share a scale: rows, columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockSize {
    rows: usize,
    cols: usize,
}

impl BlockSize {
    /// From `config.json`, whose file or folder is `origin`.
    pub(super) fn read(config: &Value, origin: &str) -> Result<Self, ModelError> {
        const CONFIG: &str = "quantization_config";
        let get = |key: &str| {
            config
                .get(CONFIG)?
                .get(key)
                .filter(|value| !value.is_null())
        };
        for (key, supported) in [("quant_method", "fp8"), ("fmt", "e4m3")] {
            match get(key) {
                Some(found) if found != supported => {
                    return Err(ModelError::Unsupported {
                        origin: origin.to_owned(),
                        key: format!("{CONFIG}.{key}"),
                        found: found
                            .as_str()
                            .map_or_else(|| found.to_string(), str::to_owned),
                        supported: format!("`{supported}`, with scales for blocks"),
                    });
                }
                _ => {}
            }
        }
        let key = format!("{CONFIG}.weight_block_size");
        let expected = "the rows and columns that share a scale, such as [128, 128]".to_owned();
        let Some(found) = get("weight_block_size") else {
            return Err(ModelError::MissingKey {
                origin: origin.to_owned(),
                key,
                expected: format!("{expected}, since there are tensors of type F8_E4M3"),
            });
        };
        let size = |value: &Value| {
            value
                .as_u64()
                .and_then(|n| usize::try_from(n).ok())
                .filter(|&n| n > 0)
        };
        match found
            .as_array()
            .map(|sizes| sizes.iter().map(size).collect::<Vec<_>>())
            .as_deref()
        {
            Some(&[Some(rows), Some(cols)]) => Ok(Self { rows, cols }),
            _ => Err(ModelError::BadKey {
                origin: origin.to_owned(),
                key,
                found: found.to_string(),
                expected,
            }),
        }
    }

    /// The shape of the scales of a matrix.
    pub(super) fn scales(self, rows: usize, cols: usize) -> [usize; 2] {
        [rows.div_ceil(self.rows), cols.div_ceil(self.cols)]
    }
}

/// A matrix as it is stored. Lengths have been checked: `rows * cols` codes, and four bytes for each scale.
#[derive(Debug, Clone, Copy)]
pub(super) struct Matrix<'a> {
    pub(super) codes: &'a [u8],
    pub(super) cols: usize,
    /// Little-endian f32, row-major.
    pub(super) scales: &'a [u8],
    pub(super) block: BlockSize,
}

impl Matrix<'_> {
    /// The values of some rows, as little-endian f32; large ones by all cores.
    pub(super) fn decode(&self, rows: Range<usize>) -> Vec<u8> {
        let row_bytes = self.cols * size_of::<f32>();
        let mut out = vec![0; rows.len() * row_bytes];
        if out.is_empty() {
            return out;
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = (out.len() / MIN_BYTES_OF_THREAD).clamp(1, cores);
        let rows_each = rows.len().div_ceil(threads);
        let mut parts = (rows.start..)
            .step_by(rows_each)
            .zip(out.chunks_mut(rows_each * row_bytes));
        let own = parts.next();
        std::thread::scope(|scope| {
            for (first, part) in parts {
                scope.spawn(move || self.decode_into(first, part));
            }
            if let Some((first, part)) = own {
                self.decode_into(first, part);
            }
        });
        out
    }

    /// Fills `out` with the rows from `first` on.
    fn decode_into(&self, first: usize, out: &mut [u8]) {
        let scale_row_bytes = self.cols.div_ceil(self.block.cols) * size_of::<f32>();
        let rows = out.chunks_exact_mut(self.cols * size_of::<f32>());
        for (row, out) in (first..).zip(rows) {
            let codes = &self.codes[row * self.cols..][..self.cols];
            let scales = &self.scales[row / self.block.rows * scale_row_bytes..][..scale_row_bytes];
            let blocks = codes
                .chunks(self.block.cols)
                .zip(out.as_chunks_mut::<4>().0.chunks_mut(self.block.cols));
            for ((codes, out), scale) in blocks.zip(scales.as_chunks::<4>().0) {
                let scale = f32::from_le_bytes(*scale);
                for (out, &code) in out.iter_mut().zip(codes) {
                    *out = (E4M3[usize::from(code)] * scale).to_le_bytes();
                }
            }
        }
    }
}

/// The value of each code.
static E4M3: [f32; 256] = {
    let mut values = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        values[code] = e4m3(code as u8);
        code += 1;
    }
    values
};

/// Every value is a normal number of f32, so that its bits can be put together.
const fn e4m3(code: u8) -> f32 {
    const F32_MANTISSA_BITS: u32 = 23;
    const F32_BIAS: u32 = 127;
    const BIAS: u32 = 7;
    let sign = (code as u32 >> 7) << 31;
    let (exponent, mantissa) = ((code as u32 >> 3) & 0xF, code as u32 & 7);
    let magnitude = match (exponent, mantissa) {
        (0xF, 7) => return f32::NAN,
        (0, 0) => 0,
        // Below the normal numbers: mantissa / 8 * 2^(1 - bias), whose leading one is made implicit.
        (0, _) => {
            let leading = mantissa.ilog2();
            let fraction = mantissa << (F32_MANTISSA_BITS - leading) & 0x7F_FFFF;
            (F32_BIAS + 1 - BIAS - 3 + leading) << F32_MANTISSA_BITS | fraction
        }
        _ => {
            (F32_BIAS - BIAS + exponent) << F32_MANTISSA_BITS | mantissa << (F32_MANTISSA_BITS - 3)
        }
    };
    f32::from_bits(sign | magnitude)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::json;
    use sha2::{Digest, Sha256};

    use super::*;

    #[test]
    fn every_code_is_what_the_formula_says() {
        for code in 0..=255u8 {
            let (exponent, mantissa) = (i32::from(code >> 3 & 0xF), f64::from(code & 7));
            let magnitude = match (exponent, code & 7) {
                (15, 7) => f64::NAN,
                (0, _) => mantissa / 8.0 * 2f64.powi(-6),
                _ => (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 7),
            };
            let expected = if code < 128 { magnitude } else { -magnitude } as f32;
            let found = E4M3[usize::from(code)];
            let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
            assert!(same, "{code:#04x}: {found}, expected {expected}");
        }
    }

    /// The hash was printed by torch 2.11:
    ///
    /// ```python
    /// values = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().nan_to_num(0.0)
    /// hashlib.sha256(values.numpy().tobytes()).hexdigest()
    /// ```
    #[test]
    fn all_values_are_those_of_torch() {
        const TORCH: &str = "0c5d81084420441d5c98db2c276b865fc29738d60fba9c32b55aa8214762b794";
        let number = |x: &f32| if x.is_nan() { 0.0 } else { *x };
        let bytes: Vec<u8> = E4M3.iter().flat_map(|x| number(x).to_le_bytes()).collect();
        let hash: String = Sha256::digest(&bytes)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(hash, TORCH);
    }

    #[test]
    fn each_block_has_its_scale_and_edges_are_cut_short() {
        let block = BlockSize { rows: 2, cols: 3 };
        assert_eq!(block.scales(3, 5), [2, 2]);
        let scales: Vec<u8> = [1.0f32, 10.0, 100.0, 1000.0]
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .collect();
        let matrix = Matrix {
            codes: &[0x38; 15],
            cols: 5,
            scales: &scales,
            block,
        };
        let values = |rows| -> Vec<f32> {
            let bytes = matrix.decode(rows);
            bytes
                .as_chunks::<4>()
                .0
                .iter()
                .map(|x| f32::from_le_bytes(*x))
                .collect()
        };
        let upper = [1.0, 1.0, 1.0, 10.0, 10.0];
        let lower = [100.0, 100.0, 100.0, 1000.0, 1000.0];
        assert_eq!(values(0..3), [upper, upper, lower].concat());
        assert_eq!(values(2..3), lower);
    }

    #[test]
    fn block_sizes_are_read_and_wrong_ones_named() {
        let read = |config: Value| BlockSize::read(&json!({ "quantization_config": config }), "HF");
        let published =
            json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 64]});
        assert_eq!(
            read(published).unwrap(),
            BlockSize {
                rows: 128,
                cols: 64
            }
        );
        for (config, words) in [
            (
                json!({}),
                "`quantization_config.weight_block_size` is missing",
            ),
            (
                json!({"weight_block_size": [128, 0]}),
                "is [128,0]; expected the rows and columns",
            ),
            (json!({"weight_block_size": 128}), "is 128; expected"),
            (
                json!({"quant_method": "fbgemm_fp8"}),
                "quant_method is `fbgemm_fp8`, which is not supported",
            ),
            (
                json!({"fmt": "e5m2"}),
                "fmt is `e5m2`, which is not supported",
            ),
        ] {
            let told = read(config).unwrap_err().to_string();
            assert!(told.contains(words), "{told}");
        }
    }
}
