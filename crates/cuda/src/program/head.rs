//! From logits to tokens.

use glim_plan::{BufferId, Op, SampleInputs};

use super::{Arg, Builder, grid, int};
use crate::kernels::Kernel;

/// Logits that one block scans.
const PART: usize = 2048;
/// Bytes of what a block's scan, its race, and a row's cut give.
const SCAN_BYTES: usize = 16;
const RACER_BYTES: usize = 16;
const CUT_BYTES: usize = 16;
/// Tokens that the cut sorts at once, with their ranked values and sums.
const CHUNK_BYTES: usize = 8192 * (8 + 4);

pub(super) fn top_k_merge(b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    let Op::TopKMerge {
        values,
        ids,
        k,
        out_values,
        out_ids,
    } = op
    else {
        return Err("it is not a TopKMerge".into());
    };
    let n = b.last(*values);
    b.launch(
        Kernel::new("shortlist", "top_k_merge", &[]),
        [grid(b.rows(*values))?, 1, 1],
        256,
        0,
        vec![
            Arg::Buffer(*values),
            Arg::Buffer(*ids),
            Arg::I32(int(n)?),
            Arg::I32(int(*k)?),
            Arg::Buffer(*out_values),
            Arg::Buffer(*out_ids),
            Arg::Rows(*out_ids),
        ],
    );
    Ok(())
}

pub(super) fn shortlist(b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    let Op::Shortlist {
        logits,
        first_id,
        inputs,
        k,
        out_values,
        out_ids,
    } = op
    else {
        return Err("it is not a Shortlist".into());
    };
    let (rows, width) = (b.rows(*logits), b.last(*logits));
    let parts = width.div_ceil(PART);
    int(first_id + width)?;
    let kept_of_part = (*k).min(PART);
    let tokens = k * size_of::<i32>();
    if tokens > SHORTLIST_BYTES {
        let most = SHORTLIST_BYTES / size_of::<i32>();
        return Err(format!("a shortlist of {k} tokens: at most {most} fit"));
    }
    let scans = b.scratch(rows * parts * SCAN_BYTES);
    let kept = b.scratch(rows * parts * kept_of_part * size_of::<u64>());
    let part = |b: &Builder<'_>| -> Result<Vec<Arg>, String> {
        Ok(vec![
            Arg::Buffer(*logits),
            Arg::Buffer(inputs.token_mask),
            Arg::I32(int(b.decl(inputs.token_mask).row_elements())?),
            Arg::I32(int(*first_id)?),
            Arg::I32(int(width)?),
        ])
    };
    let row = Arg::Rows(*out_ids);
    let size = [grid(parts)?, grid(rows)?, 1];
    let kernel = |entry| Kernel::new("shortlist", entry, &[]);

    let mut args = part(b)?;
    args.extend([Arg::Scratch(scans), row]);
    b.launch(kernel("shortlist_scan"), size, 256, 0, args);

    let mut args = part(b)?;
    args.extend(
        [
            inputs.temperature,
            inputs.top_k,
            inputs.seeds,
            inputs.positions,
        ]
        .map(Arg::Buffer),
    );
    args.extend([
        Arg::Scratch(scans),
        Arg::I32(int(*k)?),
        Arg::Scratch(kept),
        row,
    ]);
    b.launch(kernel("shortlist_part"), size, 256, 0, args);

    let args = vec![
        Arg::Buffer(*logits),
        Arg::I32(int(*first_id)?),
        Arg::I32(int(width)?),
        Arg::Scratch(scans),
        Arg::I32(int(parts)?),
        Arg::Scratch(kept),
        Arg::I32(int(*k)?),
        Arg::Buffer(*out_values),
        Arg::Buffer(*out_ids),
        row,
    ];
    let size = [grid(rows)?, 1, 1];
    b.launch(kernel("shortlist_pick"), size, 256, tokens as u32, args);
    Ok(())
}

/// Room for the tokens of a shortlist: what a block has without asking, less what the kernel declares.
const SHORTLIST_BYTES: usize = 32 * 1024;

pub(super) fn sample(b: &mut Builder<'_>, op: &Op) -> Result<(), String> {
    let Op::Sample {
        logits,
        ids,
        inputs,
        carry,
        out,
    } = op
    else {
        return Err("it is not a Sample".into());
    };
    let (rows, width) = (b.rows(*logits), b.last(*logits));
    let parts = width.div_ceil(PART);
    let scans = b.scratch(rows * parts * SCAN_BYTES);
    let cuts = b.scratch(rows * CUT_BYTES);
    let racers = b.scratch(rows * parts * RACER_BYTES);
    let row = Arg::Rows(*out);
    let all = row_args(b, *logits, *ids, inputs)?;
    let draw = [
        inputs.temperature,
        inputs.top_k,
        inputs.top_p,
        inputs.min_p,
        inputs.seeds,
        inputs.positions,
    ]
    .map(Arg::Buffer);
    let size = [grid(parts)?, grid(rows)?, 1];
    let each_row = [grid(rows)?, 1, 1];
    let kernel = |entry| Kernel::new("sample", entry, &[]);
    let (scans, cuts, racers) = (
        Arg::Scratch(scans),
        Arg::Scratch(cuts),
        Arg::Scratch(racers),
    );

    let args = [&all[..], &[scans, row]].concat();
    b.launch(kernel("sample_scan"), size, 256, 0, args);

    let args = [&all[..], &draw, &[scans, Arg::I32(int(parts)?), cuts, row]].concat();
    b.launch(
        kernel("sample_cut"),
        each_row,
        1024,
        CHUNK_BYTES as u32,
        args,
    );

    let args = [&all[..], &draw, &[scans, cuts, racers, row]].concat();
    b.launch(kernel("sample_race"), size, 256, 0, args);

    let mut args = vec![
        Arg::Buffer(inputs.temperature),
        scans,
        racers,
        Arg::I32(int(parts)?),
        Arg::Buffer(*out),
    ];
    match carry {
        Some(c) => args.extend([
            Arg::Buffer(c.carry),
            Arg::Buffer(c.cu_seqlens),
            Arg::I32(int(b.decl(c.sequence_slots).elements())?),
            Arg::Buffer(c.sequence_slots),
        ]),
        None => args.extend([Arg::Null, Arg::Null, Arg::I32(0), Arg::Null]),
    }
    args.push(row);
    b.launch(kernel("sample_pick"), each_row, 32, 0, args);
    Ok(())
}

/// Where the logits of all rows lie, with their tokens or masks.
fn row_args(
    b: &Builder<'_>,
    logits: BufferId,
    ids: Option<BufferId>,
    inputs: &SampleInputs,
) -> Result<Vec<Arg>, String> {
    Ok(vec![
        Arg::Buffer(logits),
        ids.map_or(Arg::Null, Arg::Buffer),
        Arg::Buffer(inputs.token_mask),
        Arg::I32(int(b.decl(inputs.token_mask).row_elements())?),
        Arg::I32(int(b.last(logits))?),
    ])
}
