//! Experts for many rows: kernels/experts_sort.cu around kernels/experts_gemm.cu.
//!
//! Pairs of a row and an expert are gathered by expert, multiplied in pieces of up to a tile's rows, and their results summed by row in
//! the order of its choices. Scratch is bounded by rows × choices; of the down product, the widest of it, by [`DOWN_BYTES`].

use glim_plan::{Op, Precision};

use super::tiles::{Path, Tile, choose};
use super::{Input, ROWS, path, prepare};
use crate::kernels::Kernel;
use crate::program::{Arg, Builder, grid, int};
use crate::weights::WeightInfo;

/// Results of the down product that wait for their sum: it runs in slices of so many columns that they take no more.
const DOWN_BYTES: usize = 256 << 20;
/// Columns of a slice are a multiple of this.
const DOWN_COLUMNS: usize = 256;
const GROUP_BYTES: usize = 8;
const PIECE_BYTES: usize = 16;

/// Pieces that `pairs` of `experts` experts can have at most: one more than is full for each expert.
pub(super) fn most_pieces(pairs: usize, experts: usize, tile: usize) -> usize {
    (pairs / tile + experts).min(pairs)
}

/// Columns of a slice of the down product.
fn slice_columns(pairs: usize, d: usize) -> usize {
    let fit = DOWN_BYTES / (pairs.max(1) * size_of::<f32>());
    (fit / DOWN_COLUMNS * DOWN_COLUMNS).clamp(DOWN_COLUMNS.min(d), d)
}

fn kernel(entry: &'static str, weight: &WeightInfo, path: Path, tile: Tile) -> Kernel {
    let defines = [
        ("TYPE", weight.ty.name()),
        ("FLOATS", path.define()),
        ("TILE", &tile.define()),
    ];
    Kernel::new("experts_gemm", entry, &defines)
}

pub(in crate::program) fn experts(b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    let Op::ExpertFfn {
        x: x_id,
        ids,
        expert_weights,
        gate: gate_id,
        up: up_id,
        down: down_id,
        out,
    } = op
    else {
        return Err(super::other(op));
    };
    let (gate, up, down) = (b.weight(*gate_id)?, b.weight(*up_id)?, b.weight(*down_id)?);
    if gate.ty != up.ty {
        return Err(format!(
            "gate is {} and up is {}, and its kernel reads both as one type: store them in the same",
            gate.ty, up.ty
        ));
    }
    let (rows, d, k) = (b.rows(*x_id), b.last(*x_id), b.last(*ids));
    let (experts, inner) = (b.axis(*gate_id, 0), b.axis(*gate_id, 1));
    let pairs = rows * k;
    let (first, second) = (
        path(b, gate.ty, Precision::Fast),
        path(b, down.ty, Precision::Fast),
    );
    // Pieces are cut once, so both products take tiles of as many rows.
    let pieces = |tile: usize| most_pieces(pairs, experts.min(pairs), tile);
    let common = first.tiles().iter().copied();
    let common = common.filter(|t| second.of_rows(t.rows).is_some());
    let up_tile = choose(common, pieces, 2 * inner, b.gpu().multiprocessors);
    let up_tile = up_tile.ok_or("there is no tile")?;
    let down_tile = second.of_rows(up_tile.rows).ok_or("there is no tile")?;
    let pieces = pieces(up_tile.rows);

    let input = Input {
        x: Arg::Buffer(*x_id),
        rows_of: *x_id,
        count: Arg::Null,
        rows,
        heads: 1,
        k: d,
        row_stride: d,
        head_stride: 0,
    };
    let x = prepare(b, &input, first)?;
    let place = Arg::Scratch(b.scratch(pairs * 4));
    let [order, groups, total, list] = [pairs * 4, experts * GROUP_BYTES, 4, pieces * PIECE_BYTES]
        .map(|bytes| Arg::Scratch(b.scratch(bytes)));
    let sort = |entry| Kernel::new("experts_sort", entry, &[]);
    let (k_arg, experts_arg) = (Arg::I32(int(k)?), Arg::I32(int(experts)?));
    let args = vec![
        Arg::Buffer(*ids),
        Arg::Rows(*x_id),
        k_arg,
        experts_arg,
        order,
        place,
        groups,
        total,
        Arg::Fault,
        Arg::OpIndex,
    ];
    b.launch(sort("experts_sort"), [grid(experts)?, 1, 1], 256, 0, args);
    let args = vec![
        groups,
        experts_arg,
        Arg::I32(int(up_tile.rows)?),
        list,
        Arg::I32(int(pieces)?),
    ];
    b.launch(sort("experts_pieces"), [1, 1, 1], 256, 0, args);

    let hidden = Arg::Scratch(b.scratch(pairs * inner * size_of::<f32>()));
    let args = vec![
        x.x,
        x.scales,
        Arg::Buffer(*gate_id),
        Arg::Buffer(*up_id),
        order,
        list,
        hidden,
        experts_arg,
        Arg::I32(int(d)?),
        Arg::I32(int(inner)?),
        k_arg,
        Arg::I32(int(x.padded)?),
    ];
    let blocks = [grid(inner.div_ceil(up_tile.outputs / 2))?, grid(pieces)?, 1];
    let shared = up_tile.shared(first, gate.ty);
    let up_kernel = kernel("experts_up", gate, first, up_tile);
    b.launch(up_kernel, blocks, up_tile.threads(), shared, args);

    // A tile may read rows behind the last pair's.
    let input = Input {
        x: hidden,
        count: total,
        rows: pairs + ROWS,
        k: inner,
        row_stride: inner,
        ..input
    };
    let hidden = prepare(b, &input, second)?;
    let columns = slice_columns(pairs, d);
    let part = Arg::Scratch(b.scratch(pairs * columns * size_of::<f32>()));
    for start in (0..d).step_by(columns) {
        let width = columns.min(d - start);
        let (start_arg, width_arg) = (Arg::I32(int(start)?), Arg::I32(int(width)?));
        let args = vec![
            hidden.x,
            hidden.scales,
            Arg::Buffer(*down_id),
            list,
            part,
            experts_arg,
            Arg::I32(int(inner)?),
            Arg::I32(int(d)?),
            start_arg,
            width_arg,
            Arg::I32(int(hidden.padded)?),
        ];
        let blocks = [grid(width.div_ceil(down_tile.outputs))?, grid(pieces)?, 1];
        let shared = down_tile.shared(second, down.ty);
        let down_kernel = kernel("experts_down", down, second, down_tile);
        b.launch(down_kernel, blocks, down_tile.threads(), shared, args);
        let args = vec![
            part,
            place,
            Arg::Buffer(*expert_weights),
            Arg::Buffer(*out),
            Arg::Rows(*out),
            k_arg,
            start_arg,
            width_arg,
            Arg::I32(int(d)?),
        ];
        let blocks = [grid(rows)?, grid(width.div_ceil(256))?, 1];
        b.launch(sort("experts_combine"), blocks, 256, 0, args);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_of_the_down_product_fits_its_room() {
        for (pairs, d) in [(1, 33), (24, 768), (4096 * 8, 6144), (1 << 20, 6144)] {
            let columns = slice_columns(pairs, d);
            assert!(columns >= 1 && columns <= d, "{pairs} {d}: {columns}");
            let least = columns == DOWN_COLUMNS.min(d);
            assert!(
                least || pairs * columns * 4 <= DOWN_BYTES,
                "{pairs} {d}: {columns}"
            );
        }
    }

    #[test]
    fn pieces_hold_every_split_of_the_pairs() {
        // All on one expert, evenly, and one each with the rest on the last.
        for (pairs, experts, tile) in [(1, 5, 16), (60, 5, 16), (4096, 256, 64), (100, 256, 16)] {
            let most = most_pieces(pairs, experts, tile);
            let cut = |counts: &[usize]| counts.iter().map(|n| n.div_ceil(tile)).sum::<usize>();
            assert!(cut(&[pairs]) <= most);
            let ones = experts.min(pairs) - 1;
            let mut uneven = vec![1; ones];
            uneven.push(pairs - ones);
            assert!(cut(&uneven) <= most, "{pairs} {experts} {tile}");
            let even: Vec<usize> = (0..experts).map(|e| (pairs + e) / experts).collect();
            assert!(cut(&even) <= most, "{pairs} {experts} {tile}");
        }
    }
}
