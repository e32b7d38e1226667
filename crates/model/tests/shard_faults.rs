//! The classic faults of sharded models, made on purpose: the checker refuses each list by name, without data.
//!
//! The lists are written here as the engines that had these faults would have made them.
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(
    clippy::single_range_in_vec_init,
    reason = "a list of one range is meant"
)]

use std::ops::Range;

use glim_model::catalogue::TensorSpec;
use glim_model::kv_b::KvBDims;
use glim_model::shard::{
    Fused, FusedRows, HeadCounts, Options, PaperModel, Part, ShardError, Shards, Slice, Weight,
    boxes_of_bytes,
};
use glim_quant::GgmlType;

/// GLM-5 with all matrices in Q8_0 and keys in Q8_0: 64 heads of 192 + 256, 256 experts of 2048.
fn glm5(world_size: usize) -> Shards {
    let model = PaperModel::glm5();
    let rule = |spec: &TensorSpec| {
        if spec.role.is_float_only() {
            GgmlType::F32
        } else {
            GgmlType::Q8_0
        }
    };
    Shards::new(
        model.heads,
        model.weights(rule),
        world_size,
        &Options::default(),
    )
    .unwrap()
}

/// What the checker says of one tensor's list that was replaced.
fn fault(world_size: usize, name: &str, slices: impl Fn(usize) -> Vec<Slice>) -> String {
    let mut shards = glm5(world_size);
    shards
        .set_slices(name, (0..world_size).map(slices).collect())
        .unwrap();
    shards.check().unwrap_err().to_string()
}

fn fused_fault(shards: &Shards, list: &FusedRows) -> String {
    match shards.check_fused(list) {
        Ok(()) => panic!("accepted"),
        Err(error @ ShardError::Fault(_)) => error.to_string(),
        Err(error) => panic!("not a fault of the list: {error}"),
    }
}

const GATE: &str = "blk.3.ffn_gate_exps.weight";
const UP: &str = "blk.3.ffn_up_exps.weight";
const DOWN: &str = "blk.3.ffn_down_exps.weight";
const KEYS: &str = "blk.0.attn_k_b.weight";
const VALUES: &str = "blk.0.attn_v_b.weight";
const EXPERTS: usize = 256;
const INNER: usize = 2048;
const HIDDEN: usize = 6144;
const DIMS: KvBDims = KvBDims {
    n_heads: 64,
    nope: 192,
    v: 256,
    rank: 512,
};

fn gate_up(shards: &Shards) -> FusedRows {
    shards
        .fused_rows(
            "blk.3.ffn_gate_up_exps.weight",
            Fused::gate_up(EXPERTS, INNER, HIDDEN),
            [GATE, UP],
        )
        .unwrap()
}

fn kv_b(shards: &Shards) -> FusedRows {
    shards
        .fused_rows("blk.0.attn_kv_b.weight", Fused::kv_b(DIMS), [KEYS, VALUES])
        .unwrap()
}

#[test]
fn the_sound_lists_pass() {
    for world_size in [1, 2, 4, 8, 16] {
        let shards = glm5(world_size);
        shards.check().unwrap();
        let (gate_up, kv_b) = (gate_up(&shards), kv_b(&shards));
        shards.check_fused(&gate_up).unwrap();
        shards.check_fused(&kv_b).unwrap();
        // Rank 0's rows of the first two experts, and of the first two heads.
        let part = INNER / world_size;
        assert_eq!(gate_up.rows[0][0][..2], [0..part, 4096..4096 + part]);
        assert_eq!(
            gate_up.rows[1][0][..2],
            [2048..2048 + part, 6144..6144 + part]
        );
        assert_eq!(kv_b.rows[0][0][..2], [0..192, 448..640]);
        assert_eq!(kv_b.rows[1][0][..2], [192..448, 640..896]);
    }
}

/// Gate and up are concatenated, the whole is cut in R, and each rank takes its first half for gate.
#[test]
fn concatenate_then_split_is_refused_in_the_stored_tensor() {
    for world_size in [2, 8] {
        let shards = glm5(world_size);
        let mut list = gate_up(&shards);
        let of_rank = 2 * INNER / world_size;
        for (half, rows) in list.rows.iter_mut().enumerate() {
            *rows = (0..world_size)
                .map(|rank| {
                    let start = rank * of_rank + half * of_rank / 2;
                    (0..EXPERTS)
                        .map(|e| e * 2 * INNER + start..e * 2 * INNER + start + of_rank / 2)
                        .collect()
                })
                .collect();
        }
        let middle = world_size / 2;
        assert_eq!(
            fused_fault(&shards, &list),
            format!(
                "tensor `blk.3.ffn_gate_up_exps.weight`, rank {middle}: row 2048 is taken for `{GATE}`, but is row 0 of \
                 expert 0 of `{UP}`"
            )
        );
    }
}

/// The same fault in logical tensors: each is tiled perfectly, but rank 0 has gate rows only. No tensor by itself shows it.
#[test]
fn concatenate_then_split_is_refused_between_the_logical_tensors() {
    let mut shards = glm5(2);
    let whole = Slice::whole(&[EXPERTS, INNER, HIDDEN]);
    shards
        .set_slices(GATE, vec![vec![whole.clone()], vec![]])
        .unwrap();
    shards.set_slices(UP, vec![vec![], vec![whole]]).unwrap();
    assert_eq!(
        shards.check().unwrap_err().to_string(),
        format!(
            "rank 0 holds inner blocks none of tensor `{UP}`, but 0..64 of `{GATE}`; expected the same of both"
        )
    );
}

/// Keys of all heads, then values of all heads: what the name `kv_b` suggests and no file has.
#[test]
fn all_keys_then_all_values_is_refused() {
    let shards = glm5(2);
    let mut list = kv_b(&shards);
    let (keys, values) = (DIMS.n_heads * DIMS.nope, DIMS.n_heads * DIMS.v);
    list.rows = [
        vec![vec![0..keys / 2], vec![keys / 2..keys]],
        vec![
            vec![keys..keys + values / 2],
            vec![keys + values / 2..keys + values],
        ],
    ];
    assert_eq!(
        fused_fault(&shards, &list),
        format!(
            "tensor `blk.0.attn_kv_b.weight`, rank 0: row 192 is taken for `{KEYS}`, but is row 0 of head 0 of `{VALUES}`"
        )
    );
    // Keys right and values so.
    list.rows[0] = kv_b(&shards).rows[0].clone();
    assert_eq!(
        fused_fault(&shards, &list),
        // 12288 = 27 * 448 + 192: by chance the first value row of head 27. It is the next head's keys that give it away.
        format!(
            "tensor `blk.0.attn_kv_b.weight`, rank 0: row 12544 is taken for `{VALUES}`, but is row 0 of head 28 of `{KEYS}`"
        )
    );
}

/// Rank r takes the r-th part of the bytes: right for rows, wrong for columns.
#[test]
fn a_contiguous_byte_range_for_a_column_cut_is_refused() {
    let bytes_of = |shape: &[usize], world_size: usize, rank: usize| -> Range<usize> {
        let bytes = shape.iter().product::<usize>() / 32 * 34;
        rank * bytes / world_size..(rank + 1) * bytes / world_size
    };
    let name = "blk.0.attn_output.weight";
    let shape = [6144, 16_384];
    assert_eq!(
        fault(8, name, |rank| boxes_of_bytes(
            GgmlType::Q8_0,
            &shape,
            bytes_of(&shape, 8, rank)
        )
        .unwrap()),
        "tensor `blk.0.attn_output.weight`, rank 0: slice [0..768, 0..16384] is cut along axis 0; expected a cut along axis 1 \
         only (columns: a strided copy, not a contiguous range of bytes)"
    );
    let shape = [EXPERTS, HIDDEN, INNER];
    assert_eq!(
        fault(2, DOWN, |rank| boxes_of_bytes(
            GgmlType::Q8_0,
            &shape,
            bytes_of(&shape, 2, rank)
        )
        .unwrap()),
        format!(
            "tensor `{DOWN}`, rank 0: slice [0..128, 0..6144, 0..2048] is cut along axis 0; expected a cut along axis 2 only \
             (columns: a strided copy, not a contiguous range of bytes)"
        )
    );
    // And for rows inside of experts: whole experts.
    let shape = [EXPERTS, INNER, HIDDEN];
    assert_eq!(
        fault(2, GATE, |rank| boxes_of_bytes(
            GgmlType::Q8_0,
            &shape,
            bytes_of(&shape, 2, rank)
        )
        .unwrap()),
        format!(
            "tensor `{GATE}`, rank 0: slice [0..128, 0..2048, 0..6144] is cut along axis 0; expected a cut along axis 1 only"
        )
    );
}

#[test]
fn mixed_expert_halves_are_refused() {
    let shards = glm5(2);
    let sound = gate_up(&shards);
    // Up first: the halves exchanged.
    let mut list = sound.clone();
    list.rows.swap(0, 1);
    assert_eq!(
        fused_fault(&shards, &list),
        format!(
            "tensor `blk.3.ffn_gate_up_exps.weight`, rank 0: row 2048 is taken for `{GATE}`, but is row 0 of expert 0 of `{UP}`"
        )
    );
    // All experts' gates, then all experts' ups.
    let mut list = sound.clone();
    let half = EXPERTS * INNER;
    list.rows = [0, half].map(|first| {
        vec![
            vec![first..first + half / 2],
            vec![first + half / 2..first + half],
        ]
    });
    assert!(fused_fault(&shards, &list).contains("rank 0: row 2048 is taken for"));
    // Rank 0's gate with rank 1's up: each half tiles, the two do not meet.
    let mut list = sound.clone();
    list.rows[1].reverse();
    assert_eq!(
        fused_fault(&shards, &list),
        format!(
            "tensor `{UP}`, rank 0: its part begins at 1024 of axis 1; expected 0: gathered in the order of ranks the parts \
             are not the whole"
        )
    );
    // One expert's half is another's.
    let mut list = sound.clone();
    list.rows[0][1][7] = list.rows[0][1][8].clone();
    assert!(fused_fault(&shards, &list).contains(&format!("tensor `{GATE}`, rank 1: slice")));
    // One expert's half is the other rank's.
    let mut list = sound.clone();
    list.rows[0][1][7] = list.rows[0][0][7].clone();
    assert!(fused_fault(&shards, &list).contains(&format!("tensor `{GATE}`, rank 1: slice")));
    // Gate and up cut alike, but not like down.
    let mut list = sound;
    for (part, first) in [0, INNER].into_iter().enumerate() {
        let rows = |range: Range<usize>| {
            (0..EXPERTS)
                .map(|e| e * 2 * INNER + first + range.start..e * 2 * INNER + first + range.end)
                .collect()
        };
        list.rows[part] = vec![rows(0..512), rows(512..2048)];
    }
    assert_eq!(
        fused_fault(&shards, &list),
        format!(
            "rank 0 holds inner blocks 0..32 of tensor `{DOWN}`, but 0..16 of `{GATE}`; expected the same of both"
        )
    );
    let mut list = gate_up(&shards);
    list.rows[1][1][255].end += 1;
    assert_eq!(
        fused_fault(&shards, &list),
        "tensor `blk.3.ffn_gate_up_exps.weight`, rank 1: slice [1047552..1048577, 0..6144] is not inside of shape [1048576, 6144]"
    );
}

#[test]
fn ranks_gathered_in_reverse_order_are_refused() {
    let sound = glm5(4);
    for (name, axis, found) in [
        ("output.weight", 0, 116_160),
        ("blk.0.attn_q_b.weight", 0, 12_288),
        (KEYS, 0, 48),
        ("blk.0.attn_output.weight", 1, 12_288),
        (DOWN, 2, 1536),
    ] {
        let slices = sound.weight(name).unwrap().slices();
        assert_eq!(
            fault(4, name, |rank| slices[3 - rank].clone()),
            format!(
                "tensor `{name}`, rank 0: its part begins at {found} of axis {axis}; expected 0: gathered in the order of \
                 ranks the parts are not the whole"
            )
        );
    }
}

#[test]
fn whatever_does_not_tile_is_refused() {
    let name = "blk.0.ffn_down.weight";
    let columns = |range: Range<usize>| vec![Slice::new(vec![0..6144, range])];
    let cut = |ranges: [Range<usize>; 2]| fault(2, name, |rank| columns(ranges[rank].clone()));
    assert_eq!(
        cut([0..6144, 6176..12_288]),
        format!("tensor `{name}`: no rank holds 6144..6176 of axis 1")
    );
    assert_eq!(
        cut([0..6144, 6144..12_256]),
        format!("tensor `{name}`: no rank holds 12256..12288 of axis 1")
    );
    assert_eq!(
        cut([0..6176, 6144..12_288]),
        format!("tensor `{name}`, rank 1: 6144..6176 of axis 1 is also held by rank 0")
    );
    assert_eq!(
        cut([0..6150, 6150..12_288]),
        format!("tensor `{name}`, rank 0: a cut at 6150 of axis 1; expected a multiple of 32")
    );
    assert_eq!(
        cut([0..6144, 6144..12_320]),
        format!(
            "tensor `{name}`, rank 1: slice [0..6144, 6144..12320] is not inside of shape [6144, 12288]"
        )
    );
    assert_eq!(
        cut([0..3200, 3200..12_288]),
        format!(
            "rank 0 holds inner blocks 0..100 of tensor `{name}`, but 0..192 of `blk.0.ffn_gate.weight`; expected the same of both"
        )
    );
    assert_eq!(
        fault(2, name, |rank| [
            columns(rank * 6144..rank * 6144 + 32),
            columns(rank * 6144 + 32..(rank + 1) * 6144)
        ]
        .concat()),
        format!(
            "tensor `{name}`, rank 0: 2 slices; expected one, as its bytes could not be gathered row by row"
        )
    );
    // Between heads only.
    let rows = |range: Range<usize>| vec![Slice::new(vec![range, 0..2048])];
    assert_eq!(
        fault(2, "blk.0.attn_q_b.weight", |rank| rows(
            [0..8000, 8000..16_384][rank].clone()
        )),
        "tensor `blk.0.attn_q_b.weight`, rank 0: a cut at 8000 of axis 0; expected a multiple of 256"
    );
    assert_eq!(
        fault(2, VALUES, |rank| vec![Slice::new(vec![
            [0..31, 31..64][rank].clone(),
            0..256,
            0..512
        ])]),
        format!(
            "rank 0 holds heads 0..31 of tensor `{VALUES}`, but 0..32 of `blk.0.attn_q_b.weight`; expected the same of both"
        )
    );
}

#[test]
fn ranks_must_agree_on_what_is_replicated() {
    for name in [
        "blk.5.ffn_gate_inp.weight",
        "blk.5.indexer.attn_q_b.weight",
        "blk.5.attn_q_a.weight",
    ] {
        let whole = glm5(2).weight(name).unwrap().slices()[0].clone();
        let rows = whole[0].ranges()[0].end;
        let half = Slice::new(vec![0..rows / 2, whole[0].ranges()[1].clone()]);
        assert_eq!(
            fault(2, name, |rank| if rank == 0 {
                whole.clone()
            } else {
                vec![half.clone()]
            }),
            format!(
                "tensor `{name}`, rank 1: holds {half}; expected the whole, as it is replicated and ranks must agree"
            )
        );
        assert!(fault(2, name, |_| vec![]).contains("rank 0: holds nothing; expected the whole"));
    }
    let mut shards = glm5(2);
    shards.set_slices(DOWN, vec![vec![]; 3]).unwrap();
    assert_eq!(
        shards.check().unwrap_err().to_string(),
        format!("tensor `{DOWN}` is listed for 3 ranks; expected 2")
    );
    assert!(matches!(
        shards.set_slices("nothing", vec![]),
        Err(ShardError::Unknown { .. })
    ));
}

/// Fused outputs of ranks are [g0 u0 | g1 u1], not [g | u]: each part is gathered on its own, by its own shard list.
#[test]
fn fused_gathers_come_part_by_part() {
    let weight = |name: &str, role, shape: &[usize]| Weight {
        name: name.into(),
        role,
        layer: Some(0),
        ty: GgmlType::F32,
        shape: shape.to_vec(),
    };
    use glim_model::catalogue::Role::{FfnDown, FfnGate, FfnUp};
    let weights = vec![
        weight("g", FfnGate, &[4, 1]),
        weight("u", FfnUp, &[4, 1]),
        weight("d", FfnDown, &[1, 4]),
    ];
    let shards = Shards::new(
        HeadCounts {
            attention: 1,
            index: 1,
        },
        weights,
        2,
        &Options::default(),
    )
    .unwrap();
    let fused = Fused::gate_up(1, 4, 1);
    assert_eq!(
        fused
            .rows_of(Part::First, &Slice::new(vec![0..1, 2..4, 0..1]))
            .unwrap(),
        [2..4]
    );
    assert_eq!(
        fused
            .rows_of(Part::Second, &Slice::new(vec![0..1, 2..4, 0..1]))
            .unwrap(),
        [6..8]
    );
    assert_eq!(
        fused.rows_of(Part::Second, &Slice::new(vec![0..1, 2..5, 0..1])),
        None
    );
    // What two ranks compute is [g0 g1 u0 u1], [g2 g3 u2 u3]: gathered as they are, gate and up alternate.
    let of_rank = |name: &str, rank: usize| {
        shards.weight(name).unwrap().slices()[rank][0].ranges()[0].clone()
    };
    let gathered: Vec<(&str, usize)> = (0..2)
        .flat_map(|rank| {
            ["g", "u"]
                .into_iter()
                .flat_map(move |name| of_rank(name, rank).map(move |row| (name, row)))
        })
        .collect();
    let wanted = [
        ("g", 0),
        ("g", 1),
        ("u", 0),
        ("u", 1),
        ("g", 2),
        ("g", 3),
        ("u", 2),
        ("u", 3),
    ];
    assert_eq!(gathered, wanted);
    for name in ["g", "u"] {
        let order: Vec<_> = shards
            .weight(name)
            .unwrap()
            .gather_runs()
            .unwrap()
            .collect();
        assert_eq!(order, [(0, 0..8), (1, 0..8)]);
    }
    let order: Vec<_> = shards.weight("d").unwrap().gather_runs().unwrap().collect();
    assert_eq!(order, [(0, 0..8), (1, 0..8)]);
}
