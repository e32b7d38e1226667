//! The tiles that kernels/include/tile.cuh has, and which of them fills the GPU. No choice changes a bit of a result.

use glim_plan::GgmlType;

/// How a product is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Path {
    /// Activations rounded to 8-bit integers, weights as scaled integers.
    Integer,
    /// Activations and weights as sums of bf16.
    Float,
}

/// Rows and outputs of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tile {
    pub(super) rows: usize,
    pub(super) outputs: usize,
}

const fn tile(rows: usize, outputs: usize) -> Tile {
    Tile { rows, outputs }
}

const INTEGER: &[Tile] = &[tile(128, 64), tile(64, 64), tile(16, 64)];
const FLOAT: &[Tile] = &[tile(64, 128), tile(16, 64)];

/// What it costs to bring an output's weights into a tile, as rows of the tile.
const UNPACKING: usize = 24;
/// Blocks that a multiprocessor needs to be busy: one alone waits for memory half of the time.
const BUSY: usize = 2;

impl Path {
    pub(super) fn tiles(self) -> &'static [Tile] {
        match self {
            Self::Integer => INTEGER,
            Self::Float => FLOAT,
        }
    }

    /// The value of the define `FLOATS`.
    pub(super) fn define(self) -> &'static str {
        match self {
            Self::Integer => "0",
            Self::Float => "1",
        }
    }

    /// The tile of so many rows.
    pub(super) fn of_rows(self, rows: usize) -> Option<Tile> {
        self.tiles().iter().copied().find(|t| t.rows == rows)
    }
}

impl Tile {
    /// Threads of a block: one for each 32 weights of a stage.
    pub(super) fn threads(self) -> u32 {
        2 * self.outputs as u32
    }

    /// The value of the define `TILE`.
    pub(super) fn define(self) -> String {
        self.rows.to_string()
    }

    /// Bytes of shared memory that a block has: two stages, as the path's header lays them out, with all that any type of weight needs.
    pub(super) fn shared(self, path: Path, ty: GgmlType) -> u32 {
        let row = 64;
        let stage = match path {
            Path::Integer => {
                let (scales, offsets) = (2 * 2 * 4, 2 * 2 * 4);
                self.rows * (row + 2 * 16) + self.outputs * (row + scales + offsets)
            }
            Path::Float => {
                let parts = match ty {
                    GgmlType::BF16 => 1,
                    GgmlType::F16 => 2,
                    _ => 3,
                };
                self.rows * row * 3 + self.outputs * row * parts
            }
        };
        2 * stage as u32
    }

    /// How long `pieces` row tiles of `outputs` outputs take, in units of one row of one output on a multiprocessor.
    fn time(self, pieces: usize, outputs: usize, multiprocessors: usize) -> usize {
        let blocks = pieces * outputs.div_ceil(self.outputs);
        let rounds = blocks.div_ceil(multiprocessors.max(1)).max(BUSY);
        rounds * self.outputs * (self.rows + UNPACKING)
    }
}

/// The tile that is through first. `pieces`: row tiles of so many rows that there are; of equal times the larger tile.
pub(super) fn choose(
    tiles: impl Iterator<Item = Tile>,
    pieces: impl Fn(usize) -> usize,
    outputs: usize,
    multiprocessors: u32,
) -> Option<Tile> {
    tiles.min_by_key(|t| t.time(pieces(t.rows), outputs, multiprocessors as usize))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::kernels::{all, source};

    fn chosen(path: Path, rows: usize, outputs: usize) -> usize {
        let pieces = |tile: usize| rows.div_ceil(tile);
        let tile = choose(path.tiles().iter().copied(), pieces, outputs, 132);
        tile.unwrap().rows
    }

    #[test]
    fn tiles_grow_with_the_work() {
        let rows = |outputs| [16, 512, 4096].map(|rows| chosen(Path::Integer, rows, outputs));
        assert_eq!(rows(2048), [16, 64, 128]);
        assert_eq!(rows(16384), [16, 128, 128]);
        assert_eq!(
            [16, 4096].map(|rows| chosen(Path::Float, rows, 2048)),
            [16, 64]
        );
    }

    /// The sizes of `tests/prefill.rs`, whose point is that they take every tile.
    #[test]
    fn tests_of_large_products_take_every_tile() {
        let integer = [200, 100, 16].map(|rows| chosen(Path::Integer, rows, 8443));
        assert_eq!(integer, [128, 64, 16]);
        assert_eq!(
            [100, 16].map(|rows| chosen(Path::Float, rows, 16891)),
            [64, 16]
        );
        let experts = |path: Path, rows: usize| {
            let pieces = |tile: usize| super::super::experts::most_pieces(2 * rows, 3, tile);
            let tile = choose(path.tiles().iter().copied(), pieces, 2 * 704, 132);
            tile.unwrap().rows
        };
        let integer = [600, 300, 16].map(|rows| experts(Path::Integer, rows));
        assert_eq!(integer, [128, 64, 16]);
        assert_eq!([600, 16].map(|rows| experts(Path::Float, rows)), [64, 16]);
    }

    #[test]
    fn tiles_are_those_of_the_kernels() {
        for path in [Path::Integer, Path::Float] {
            for tile in path.tiles() {
                let wanted = [
                    ("FLOATS", path.define().to_owned()),
                    ("TILE", tile.define()),
                ];
                for file in ["gemm", "experts_gemm"] {
                    let known = all().into_iter();
                    let mut known = known.filter(|u| u.file == file && u.defines[1..] == wanted);
                    let header = source(&known.next().unwrap()).unwrap();
                    let only = match (tile.rows, path) {
                        (16, _) => "",
                        (_, Path::Integer) => " && !FLOATS",
                        (_, Path::Float) => " && FLOATS",
                    };
                    let Tile { rows, outputs } = tile;
                    let line = format!(
                        "if TILE == {rows}{only}\nconstexpr int TILE_M = {rows}, TILE_N = {outputs},"
                    );
                    assert!(header.contains(&line), "{line}");
                }
            }
        }
    }
}
