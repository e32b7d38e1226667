//! The grids that kernels look up are those of the quant crate.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use glim_quant::tables::{
    IQ1_GRID, IQ2_S_GRID, IQ2_XS_GRID, IQ2_XXS_GRID, IQ3_S_GRID, IQ3_XXS_GRID,
};

/// Rows as `blocks/grid.cuh` reads them: each entry is the number of its level, the first lowest.
fn packed<const COLS: usize>(grid: &[[i8; COLS]], levels: &[i8]) -> Vec<u16> {
    let bits = 16 / COLS;
    let row = |row: &[i8; COLS]| {
        let entries = row.iter().enumerate();
        entries.fold(0, |word, (i, entry)| {
            let level = levels.iter().position(|level| level == entry).unwrap();
            word | (level as u16) << (bits * i)
        })
    };
    grid.iter().map(row).collect()
}

#[test]
fn the_grids_of_the_kernels_are_those_of_the_quant_crate() {
    const IQ2: &[i8] = &[8, 25, 43];
    let expected = [
        packed(&IQ2_XXS_GRID, IQ2),
        packed(&IQ2_XS_GRID, IQ2),
        packed(&IQ2_S_GRID, IQ2),
        packed(&IQ3_XXS_GRID, &[4, 12, 20, 28, 36, 44, 52, 62]),
        packed(&IQ3_S_GRID, &[1, 3, 5, 7, 9, 11, 13, 15]),
        packed(&IQ1_GRID, &[-1, 0, 1]),
    ]
    .concat();

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/include/blocks/iq_grids.cuh");
    let text = std::fs::read_to_string(&path).unwrap();
    let (_, table) = text.split_once('{').unwrap();
    let rows = table
        .split(',')
        .filter_map(|word| word.trim().strip_prefix("0x"));
    let found: Vec<u16> = rows
        .map(|hex| u16::from_str_radix(hex, 16).unwrap())
        .collect();
    assert_eq!(found.len(), expected.len());
    let wrong = found.iter().zip(&expected).position(|(a, b)| a != b);
    assert_eq!(wrong, None, "the first row that differs");
}
