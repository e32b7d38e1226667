//! The indexer and latent attention: shapes of grids and shared memory; `kernels/{index,index_row,select,mla}.cu` say what they
//! compute.

use glim_plan::{Op, Paging};

use super::{Arg, Builder, grid, int, writes};
use crate::kernels::Kernel;

/// Bytes of an element of everything here.
const F32: usize = size_of::<f32>();

/// Cached keys that a block of `index_score` holds at a time, and its threads for each query row.
const KEYS: usize = 64;
const ROW_THREADS: usize = 64;

/// Blocks of `index_score` for each multiprocessor: more only repeat the staging of queries.
const SCORE_BLOCKS: usize = 4;

/// What `index_score_row` takes at a time: heads, keys, elements of a key in a piece; the widest key; its threads.
const ROW_KEYS: usize = 16;
const PIECE: usize = 32;
const MOST_ROW_DIM: usize = 128;
const SCORE_ROW_THREADS: u32 = 128;

/// What it may read before its wait: `EARLY_…` in `index_row.cu`.
const EARLY_QUERIES: i32 = 1;
const EARLY_OLD_KEYS: i32 = 2;
const EARLY_KEYS: i32 = 4;

/// Threads of `select.cu`'s kernels and the shared memory that their variables take; from how many positions on rows are sifted, by how
/// many blocks, and the room of these and of the block that chooses.
const SELECT_THREADS: u32 = 1024;
const SELECT_SHARED: usize = 20 * 1024;
const SIFT_FROM: usize = 8192;
const SIFTS: usize = 32;
const LIST: usize = 4096;
const SIFTED: usize = 8192;

/// Latent columns that `mla_attend` can accumulate, and its threads.
const MOST_RANK: usize = 512;
const ATTEND_THREADS: usize = 256;

/// How `mla_attend` cuts a row in decode: `chunk_of` in `mla.cu`.
const MIN_CHUNK: usize = 32;
const MOST_CHUNKS: usize = 64;
const LEAST_CHUNKS: usize = 16;

/// Blocks of one row that fill a GPU: beyond it, more chunks only cost more scratch. Not the number of multiprocessors that there are:
/// how a row is cut is part of its result.
const ROW_BLOCKS: usize = 128;

/// Shared memory that is left to a kernel's static variables.
const STATIC_SHARED: usize = 2048;

/// The arguments that say where cached rows are: block tables, number of sequences, blocks of a table, block size.
fn paging(b: &Builder<'_>, p: &Paging) -> Result<[Arg; 6], String> {
    let sequences = b.decl(p.cu_seqlens).elements() - 1;
    Ok([
        Arg::Buffer(p.positions),
        Arg::Buffer(p.cu_seqlens),
        Arg::Buffer(p.block_tables),
        Arg::I32(int(sequences)?),
        Arg::I32(int(b.last(p.block_tables))?),
        Arg::I32(int(b.geometry().block_size)?),
    ])
}

/// `"4"` where everything that is moved in 16-byte pieces is a multiple of four elements.
fn vec(sizes: &[usize]) -> &'static str {
    match sizes.iter().all(|n| n.is_multiple_of(4)) {
        true => "4",
        false => "1",
    }
}

pub(super) fn index_score(b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    let Op::IndexScore {
        q,
        weights,
        keys,
        paging: places,
        scale,
        out,
    } = op
    else {
        return Ok(());
    };
    let (heads, dim) = (b.axis(*q, 1), b.last(*q));
    if b.is_decode() && dim <= MOST_ROW_DIM {
        return index_score_row(b, op);
    }
    let lane_heads = if heads <= 8 { 2 } else { 8 };
    let tiled_heads = heads.next_multiple_of(4 * lane_heads);
    let stride = dim.next_multiple_of(4) + 4;
    let shared = |rows: usize| F32 * ((KEYS + rows * tiled_heads) * stride + rows * tiled_heads);
    let limit = b.gpu().shared_memory as usize - STATIC_SHARED;
    let rows = match b.is_decode() {
        true => 1,
        // Rows of a prompt share the keys that a block has loaded.
        false => *[4, 2, 1]
            .iter()
            .find(|rows| shared(**rows) <= limit)
            .unwrap_or(&1),
    };
    if shared(rows) > limit {
        let bytes = shared(rows);
        return Err(format!(
            "{heads} index heads of {dim} need {bytes} bytes of shared memory, and a block has {limit}"
        ));
    }
    let row_blocks = b.rows(*out).div_ceil(rows);
    let tiles = b.geometry().max_positions().div_ceil(KEYS);
    let most = (SCORE_BLOCKS * b.gpu().multiprocessors as usize)
        .div_ceil(row_blocks)
        .max(1);
    let mut args = vec![
        Arg::Buffer(*q),
        Arg::Buffer(*weights),
        Arg::Buffer(*keys),
        Arg::Buffer(*out),
        Arg::F32(*scale),
        Arg::I32(int(heads)?),
        Arg::I32(int(dim)?),
        Arg::I32(int(b.last(*out))?),
        Arg::I32(int(b.unread_below(*out))?),
    ];
    args.extend(paging(b, places)?);
    args.push(Arg::Rows(*out));
    let defines = [
        ("ROWS", &*rows.to_string()),
        ("LANE_HEADS", &*lane_heads.to_string()),
        ("VEC", vec(&[dim])),
    ];
    let kernel = Kernel::new("index", "index_score", &defines);
    let blocks = [grid(row_blocks)?, grid(tiles.min(most).max(1))?, 1];
    let threads = (rows * ROW_THREADS) as u32;
    b.launch(kernel, blocks, threads, grid(shared(rows))?, args);
    Ok(())
}

/// Rows that have keys of their own.
fn index_score_row(b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    let Op::IndexScore {
        q,
        weights,
        keys,
        paging: places,
        scale,
        out,
    } = op
    else {
        return Ok(());
    };
    let (rows, heads, dim) = (b.rows(*out), b.axis(*q, 1), b.last(*q));
    let pieces = if dim <= PIECE {
        1
    } else {
        MOST_ROW_DIM / PIECE
    };
    let shared = F32 * heads * (pieces * PIECE + 1);
    let limit = b.gpu().shared_memory as usize - STATIC_SHARED;
    if shared > limit {
        return Err(format!(
            "{heads} index heads of {dim} need {shared} bytes of shared memory, and a block has {limit}"
        ));
    }
    let early = match b.before(op) {
        None => 0,
        Some(before) => {
            let flag = |is, flag| if is { flag } else { 0 };
            let queries = !writes(before, *q) && !writes(before, *weights);
            flag(queries, EARLY_QUERIES) | EARLY_OLD_KEYS | flag(!writes(before, *keys), EARLY_KEYS)
        }
    };
    let mut args = vec![
        Arg::Buffer(*q),
        Arg::Buffer(*weights),
        Arg::Buffer(*keys),
        Arg::Buffer(*out),
        Arg::F32(*scale),
        Arg::I32(int(heads)?),
        Arg::I32(int(dim)?),
        Arg::I32(int(b.last(*out))?),
        Arg::I32(int(b.unread_below(*out))?),
        Arg::I32(early),
    ];
    args.extend(paging(b, places)?);
    args.push(Arg::Rows(*out));
    let pieces = pieces.to_string();
    let defines = [("PIECES", &*pieces), ("VEC", vec(&[dim]))];
    let tiles = b.geometry().max_positions().div_ceil(ROW_KEYS);
    let most = (SCORE_BLOCKS * b.gpu().multiprocessors as usize).div_ceil(rows);
    let blocks = [grid(rows)?, grid(tiles.min(most).max(1))?, 1];
    let kernel = Kernel::new("index_row", "index_score_row", &defines);
    b.launch(kernel, blocks, SCORE_ROW_THREADS, grid(shared)?, args);
    Ok(())
}

pub(super) fn index_select(b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    let Op::IndexSelect {
        scores,
        positions,
        topk,
        forced,
        out,
    } = op
    else {
        return Ok(());
    };
    let stride = b.last(*scores);
    let (given, given_stride) = match forced {
        Some(f) => (Arg::BufferAt(f.buffer, f.start * F32), b.last(f.buffer)),
        None => (Arg::Null, 0),
    };
    let defines = [("VEC", vec(&[stride]))];
    let rows = b.rows(*out);
    // Lists, places, and two bits a position.
    let shared = SIFTED * 2 * F32 + stride.div_ceil(32) * 2 * F32;
    let room = b.gpu().shared_memory as usize - SELECT_SHARED;
    // In prefill rows fill the GPU, and a row that has no room for its bits is looked through as it is.
    let sifts = b.is_decode() && stride > SIFT_FROM && shared <= room;
    let [lists, counts] = match sifts {
        false => [Arg::Null; 2],
        true => [LIST * 2 * F32, F32].map(|bytes| Arg::Scratch(b.scratch(rows * SIFTS * bytes))),
    };
    if sifts {
        let args = vec![
            Arg::Buffer(*scores),
            Arg::I32(int(stride)?),
            Arg::Buffer(*positions),
            Arg::I32(int(*topk)?),
            lists,
            counts,
            Arg::Rows(*out),
        ];
        let kernel = Kernel::new("select", "index_sift", &defines);
        let blocks = [grid(rows)?, grid((ROW_BLOCKS / rows).clamp(1, SIFTS))?, 1];
        b.launch(kernel, blocks, SELECT_THREADS, 0, args);
    }
    let args = vec![
        Arg::Buffer(*scores),
        Arg::I32(int(stride)?),
        Arg::Buffer(*positions),
        Arg::I32(int(*topk)?),
        given,
        Arg::I32(int(given_stride)?),
        Arg::Buffer(*out),
        lists,
        counts,
        Arg::Rows(*out),
    ];
    let kernel = Kernel::new("select", "index_select", &defines);
    let shared = if sifts { grid(shared)? } else { 0 };
    b.launch(kernel, [grid(rows)?, 1, 1], SELECT_THREADS, shared, args);
    Ok(())
}

/// Chunks that a row of this many heads is cut into at most: a power of two, as chunks are.
fn most_chunks(head_tiles: usize) -> usize {
    let chunks = ROW_BLOCKS / head_tiles.next_power_of_two();
    chunks.clamp(LEAST_CHUNKS, MOST_CHUNKS)
}

/// Chunks of a row of `n` positions.
fn chunks_of(n: usize, most_chunks: usize) -> usize {
    let mut chunk = MIN_CHUNK;
    while chunk * most_chunks < n {
        chunk *= 2;
    }
    n.div_ceil(chunk)
}

/// Chunks of the row that is cut into most, among rows of up to `most` positions.
fn room_for_chunks(most: usize, most_chunks: usize) -> usize {
    // At each length up to this the chunk is the smallest, and beyond it there are no more chunks than at it.
    chunks_of(most.min(MIN_CHUNK * most_chunks), most_chunks).max(1)
}

pub(super) fn attend(b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    let Op::MlaAttend {
        q_latent,
        q_rope,
        latent,
        topk,
        paging: places,
        scale,
        out,
    } = op
    else {
        return Ok(());
    };
    let (heads, rank, rope) = (b.axis(*q_latent, 1), b.last(*q_latent), q_rope.len);
    let rope_stride = b.last(q_rope.buffer);
    if rank > MOST_RANK {
        return Err(format!("latents of {rank} are wider than {MOST_RANK}"));
    }
    let tile = if heads <= 4 { 4 } else { 8 };
    let padded_rank = rank.next_multiple_of(4);
    let stride = (padded_rank + rope.next_multiple_of(4) + 15) / 32 * 32 + 16;
    let warps = ATTEND_THREADS / 32;
    let shared =
        |positions: usize| F32 * ((positions + tile) * stride + (warps + 1) * positions * tile);
    let limit = b.gpu().shared_memory as usize - STATIC_SHARED;
    let positions = if shared(32) <= limit { 32 } else { 16 };
    if shared(positions) > limit {
        let bytes = shared(positions);
        return Err(format!(
            "latents of {rank} and {rope} need {bytes} bytes of shared memory, and a block has {limit}"
        ));
    }
    let defines = [
        ("HEADS", &*tile.to_string()),
        ("POSITIONS", &*positions.to_string()),
        ("VEC", vec(&[rank, rope, q_rope.start, rope_stride])),
    ];
    let rows = b.rows(*out);
    let width = topk.map_or(0, |topk| b.last(topk));
    let most = b.geometry().max_positions();
    let most = topk.map_or(most, |_| most.min(width));
    let tiles = heads.div_ceil(tile);
    // In prefill rows fill the GPU, and each is one chunk.
    let most_chunks = if b.is_decode() { most_chunks(tiles) } else { 1 };
    let chunks = match most_chunks {
        1 => 1,
        _ => room_for_chunks(most, most_chunks),
    };
    let [partial, sums, counts] = match chunks {
        1 => [Arg::Null; 3],
        _ => {
            let places = rows * chunks;
            let bytes = [heads * padded_rank * F32, heads * 2 * F32, F32];
            bytes.map(|bytes| Arg::Scratch(b.scratch(places * bytes)))
        }
    };
    let settled = b.before(op).is_some_and(|before| {
        !writes(before, *latent) && topk.is_none_or(|topk| !writes(before, topk))
    });
    let chosen = topk.map_or(Arg::Null, Arg::Buffer);
    let mut args = vec![
        Arg::Buffer(*q_latent),
        Arg::BufferAt(q_rope.buffer, q_rope.start * F32),
        Arg::I32(int(rope_stride)?),
        Arg::Buffer(*latent),
        Arg::Buffer(*out),
        Arg::F32(*scale),
        Arg::I32(int(heads)?),
        Arg::I32(int(rank)?),
        Arg::I32(int(rope)?),
        chosen,
        Arg::I32(int(width)?),
        Arg::I32(int(most_chunks)?),
        Arg::I32(i32::from(settled)),
        partial,
        sums,
        counts,
    ];
    args.extend(paging(b, places)?);
    args.extend([Arg::Rows(*out), Arg::Fault, Arg::OpIndex]);
    let blocks = [grid(rows)?, grid(tiles)?, grid(chunks)?];
    let kernel = Kernel::new("mla", "mla_attend", &defines);
    b.launch(
        kernel,
        blocks,
        ATTEND_THREADS as u32,
        grid(shared(positions))?,
        args,
    );
    if chunks == 1 {
        return Ok(());
    }
    let args = vec![
        partial,
        sums,
        counts,
        Arg::Buffer(*out),
        Arg::I32(int(heads)?),
        Arg::I32(int(rank)?),
        Arg::I32(int(chunks)?),
        Arg::I32(int(most_chunks)?),
        Arg::I32(int(width)?),
        Arg::Buffer(places.positions),
        Arg::Rows(*out),
    ];
    // A warp's lanes have four columns each.
    let blocks = [grid(rows)?, grid(heads)?, grid(padded_rank.div_ceil(128))?];
    let kernel = Kernel::new("mla", "mla_merge", &defines);
    b.launch(kernel, blocks, ATTEND_THREADS as u32, 0, args);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_has_room_for_every_shorter_row() {
        for tiles in [1, 2, 3, 8, 100] {
            let most_chunks = most_chunks(tiles);
            assert!(most_chunks.is_power_of_two() && most_chunks <= MOST_CHUNKS);
            for most in [1, 31, 32, 33, 2047, 2048, 2049, 5000, 200_000] {
                let room = room_for_chunks(most, most_chunks);
                let needed = (1..=most).map(|n| chunks_of(n, most_chunks)).max();
                assert_eq!(needed, Some(room), "{most} positions, {tiles} tiles");
            }
        }
    }
}
