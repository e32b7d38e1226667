//! Rotary embeddings, and the angles that all of a step's rotations turn by.

use std::ops::Range;

use glim_plan::{BufferId, Op, RopeSpec, RopeStyle};

use super::rounded::{NOWHERE, offer_columns};
use super::{Arg, Builder, grid, int};
use crate::kernels::Kernel;

/// Buffers of one launch, as in `rope.cu`, and the threads of its blocks.
const HEADS: usize = 4;
const THREADS: usize = 256;

/// Angles that an operation of the program has computed.
#[derive(Debug)]
pub(super) struct Angles {
    positions: BufferId,
    n: usize,
    theta: f32,
    place: Arg,
}

/// Where the cosines and sines of a rotation lie; its first operation computes them for all.
pub(super) fn angles(
    b: &mut Builder<'_>,
    positions: BufferId,
    spec: &RopeSpec,
) -> Result<Arg, String> {
    let mut known = b.angles.iter();
    let is_same = |a: &&Angles| (a.positions, a.n, a.theta) == (positions, spec.n, spec.theta);
    if let Some(known) = known.find(is_same) {
        return Ok(known.place);
    }
    let (rows, pairs) = (b.rows(positions), spec.n / 2);
    let end = b.plan().ops.len();
    let place = Arg::Kept(b.keep(rows * pairs * 2 * size_of::<f32>(), end));
    let args = vec![
        Arg::Buffer(positions),
        place,
        Arg::I32(int(pairs)?),
        Arg::F32(spec.theta),
        Arg::Rows(positions),
    ];
    let size = [grid(pairs.div_ceil(64))?, grid(rows)?, 1];
    b.launch(Kernel::new("rope", "angles", &[]), size, 64, 0, args);
    b.angles.push(Angles {
        positions,
        n: spec.n,
        theta: spec.theta,
        place,
    });
    Ok(place)
}

/// What a launch does to the heads of one buffer.
struct Lane {
    /// The fields of `Heads` in `rope.cu`.
    fields: [Arg; 11],
    /// Threads that have something to do.
    threads: usize,
}

/// One rotation, or the fused pattern of several; and the rounding of the columns that they leave alone, where a product takes these.
pub(super) fn ropes(b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    let (mut lanes, mut rows_of) = (Vec::new(), None);
    for part in op.parts() {
        let Op::Rope { x, positions, spec } = part else {
            return Err("it is not a Rope".into());
        };
        rows_of = Some(*x);
        let angles = angles(b, *positions, spec)?;
        let (row, head) = (b.decl(*x).row_elements(), b.last(*x));
        let heads = row / head.max(1);
        let mut lane = |first: usize, n: usize, angles, rounded: [Arg; 3], half_split| {
            let [q, d, s] = rounded;
            lanes.push(Lane {
                fields: [
                    Arg::BufferAt(*x, first * size_of::<f32>()),
                    angles,
                    q,
                    d,
                    s,
                    Arg::I32(int(row)?),
                    Arg::I32(int(head)?),
                    Arg::I32(int(heads)?),
                    Arg::I32(int(n)?),
                    Arg::I32(half_split),
                    Arg::I32(0),
                ],
                threads: match angles {
                    Arg::Null => heads * n / 4,
                    _ => heads * n / 2,
                },
            });
            Ok::<(), String>(())
        };
        let half_split = i32::from(spec.style == RopeStyle::HalfSplit);
        lane(spec.start, spec.n, angles, NOWHERE, half_split)?;
        let rotated: Range<usize> = spec.start..spec.start + spec.n;
        for (columns, rounded) in offer_columns(b, *x, rotated) {
            lane(columns.start, columns.len(), Arg::Null, rounded, 0)?;
        }
    }
    let Some(rows_of) = rows_of else {
        return Ok(());
    };
    for lanes in lanes.chunks(HEADS) {
        let mut fields: Vec<Arg> = lanes.iter().flat_map(|lane| lane.fields).collect();
        for _ in lanes.len()..HEADS {
            fields.extend([Arg::Null; 5]);
            fields.extend([Arg::I32(0); 6]);
        }
        let threads = lanes.iter().map(|lane| lane.threads).max().unwrap_or(1);
        let args = vec![b.structure(fields), Arg::Rows(rows_of)];
        let rows = grid(b.rows(rows_of))?;
        let size = [
            rows,
            grid(lanes.len())?,
            grid(threads.div_ceil(THREADS).max(1))?,
        ];
        let kernel = Kernel::new("rope", "ropes", &[]);
        b.launch(kernel, size, THREADS as u32, 0, args);
    }
    Ok(())
}
