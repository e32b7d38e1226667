//! What codes are looked up in: the levels of the 4-bit types, and the grids of the IQ1, IQ2 and
//! IQ3 types.
//!
//! A grid is a list of short vectors; a code names a row, so that eight (or four) elements share
//! their bits. No rule is known that makes the rows, so they are data: `data/iq_grids.bin` holds
//! them packed as gguf-py 0.19.0 does, at two bits an entry (IQ1, IQ2) or four (IQ3), low bits
//! first, one grid after the other in the order of this file. `xtask/py/golden_quant.py` makes the
//! file; `data/iq_grids.LICENSE` is its licence. The compiler unpacks it.

/// Levels of IQ4_NL and IQ4_XS: denser near zero, where most weights are.
pub const IQ4_LEVELS: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// Levels of MXFP4 and NVFP4: the E2M1 floats, doubled to be integers. Code 8, their negative zero,
/// is 0.
pub const FP4_LEVELS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// All grids, packed.
const PACKED: &[u8] = include_bytes!("../data/iq_grids.bin");

/// Entries of the IQ2 grids, by their two bits.
const IQ2_LEVELS: [i8; 3] = [8, 25, 43];
/// Entries of the grid of IQ3_XXS, by their three bits (in four).
const IQ3_XXS_LEVELS: [i8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];
/// Entries of the grid of IQ3_S, by their three bits (in four).
const IQ3_S_LEVELS: [i8; 8] = [1, 3, 5, 7, 9, 11, 13, 15];
/// Entries of the IQ1 grid, by their two bits.
const IQ1_LEVELS: [i8; 3] = [-1, 0, 1];

// Where each grid begins in PACKED, in bytes.
const IQ2_XXS_AT: usize = 0;
const IQ2_XS_AT: usize = IQ2_XXS_AT + 256 * 8 / 4;
const IQ2_S_AT: usize = IQ2_XS_AT + 512 * 8 / 4;
const IQ3_XXS_AT: usize = IQ2_S_AT + 1024 * 8 / 4;
const IQ3_S_AT: usize = IQ3_XXS_AT + 256 * 4 / 2;
const IQ1_AT: usize = IQ3_S_AT + 512 * 4 / 2;
const _: () = assert!(PACKED.len() == IQ1_AT + 2048 * 8 / 4);

/// Magnitudes of IQ2_XXS, `[row, element]`; signs are stored beside the row's number.
pub static IQ2_XXS_GRID: [[i8; 8]; 256] = unpack(IQ2_XXS_AT, &IQ2_LEVELS);
/// Magnitudes of IQ2_XS, `[row, element]`.
pub static IQ2_XS_GRID: [[i8; 8]; 512] = unpack(IQ2_XS_AT, &IQ2_LEVELS);
/// Magnitudes of IQ2_S, `[row, element]`.
pub static IQ2_S_GRID: [[i8; 8]; 1024] = unpack(IQ2_S_AT, &IQ2_LEVELS);
/// Magnitudes of IQ3_XXS, `[row, element]`.
pub static IQ3_XXS_GRID: [[i8; 4]; 256] = unpack(IQ3_XXS_AT, &IQ3_XXS_LEVELS);
/// Magnitudes of IQ3_S, `[row, element]`.
pub static IQ3_S_GRID: [[i8; 4]; 512] = unpack(IQ3_S_AT, &IQ3_S_LEVELS);
/// Values of IQ1_S and IQ1_M, `[row, element]`, each -1, 0 or 1.
pub static IQ1_GRID: [[i8; 8]; 2048] = unpack(IQ1_AT, &IQ1_LEVELS);

/// Unpacks the grid that begins at byte `at`. Three levels take two bits, eight take four; the
/// compiler refuses a code that has no level.
const fn unpack<const COLS: usize, const ROWS: usize>(
    at: usize,
    levels: &[i8],
) -> [[i8; COLS]; ROWS] {
    let bits = if levels.len() <= 4 { 2 } else { 4 };
    let per_byte = 8 / bits;
    let mut grid = [[0; COLS]; ROWS];
    let mut i = 0;
    while i < ROWS * COLS {
        let code = PACKED[at + i / per_byte] >> (i % per_byte * bits) & ((1 << bits) - 1);
        grid[i / COLS][i % COLS] = levels[code as usize];
        i += 1;
    }
    grid
}

/// The eight sign bits (bit `k` set: element `k` is negative) that seven stored bits stand for: the
/// number of minus signs is even, so the eighth follows from the others.
///
/// Used by IQ2_XXS, IQ2_XS and IQ3_XXS; bits of `code` above the seventh are ignored.
#[inline]
pub const fn even_signs(code: u8) -> u8 {
    let code = code & 0x7f;
    code | (code.count_ones() as u8 & 1) << 7
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_a_grid_is_there_once() {
        fn check<const COLS: usize>(grid: &[[i8; COLS]], levels: &[i8]) {
            let mut rows = grid.to_vec();
            rows.sort_unstable();
            rows.dedup();
            assert_eq!(rows.len(), grid.len());
            for level in levels {
                assert!(grid.as_flattened().contains(level), "{level}");
            }
        }
        check(&IQ2_XXS_GRID, &IQ2_LEVELS);
        check(&IQ2_XS_GRID, &IQ2_LEVELS);
        check(&IQ2_S_GRID, &IQ2_LEVELS);
        check(&IQ3_XXS_GRID, &IQ3_XXS_LEVELS);
        check(&IQ3_S_GRID, &IQ3_S_LEVELS);
        check(&IQ1_GRID, &IQ1_LEVELS);
    }

    #[test]
    fn signs_are_even_in_number_and_keep_the_stored_bits() {
        for code in 0..128 {
            let signs = even_signs(code);
            assert_eq!(signs & 0x7f, code);
            assert!(signs.count_ones().is_multiple_of(2), "{code}");
        }
    }
}
