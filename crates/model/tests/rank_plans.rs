//! Plans for each rank: they pass every check, enter the same collectives, and hold the model between them.
#![allow(clippy::unwrap_used, reason = "tests")]

use glim_model::shard::{Latents, Options};
use glim_model::{Checkpoint, Config, EmitError, EmitRequest, Inventory, emit, states};
use glim_plan::{
    BufferKind, CacheGeometry, GgmlType, Load, Op, Placement, Plan, StepKind, arrange,
    check_arrangement, check_ranks, check_states, fuse, plan_cost, weight_groups,
};
use glim_testkit::assets;

const ROWS: Options = Options {
    latents: Latents::Rows,
    token_embd: glim_model::shard::TokenEmbd::Replicated,
    allow_idle_ranks: false,
};

fn request(step: StepKind, rank: usize, world_size: usize) -> EmitRequest {
    let geometry = CacheGeometry {
        block_size: 64,
        max_blocks: 8,
    };
    EmitRequest {
        rank,
        world_size,
        ..EmitRequest::new(step, geometry)
    }
}

fn plans(inventory: &Inventory, step: StepKind) -> Vec<Plan> {
    let world_size = inventory.world_size();
    (0..world_size)
        .map(|rank| emit(inventory, &request(step, rank, world_size)).unwrap())
        .collect()
}

fn tiny() -> Inventory {
    Inventory::of(&Checkpoint::open(&assets::tiny_glm5()).unwrap())
}

fn odd() -> Inventory {
    Inventory::of(&Checkpoint::open(&assets::odd_glm52()).unwrap())
}

fn on_paper(config: &Config) -> Inventory {
    Inventory::on_paper(config, |_| GgmlType::BF16)
}

fn collectives(plan: &Plan, kind: &str) -> usize {
    plan.ops
        .iter()
        .filter(|node| node.op.kind() == kind)
        .count()
}

#[test]
fn every_rank_s_plan_passes_every_check() {
    let models = [
        (tiny(), vec![1, 2, 4, 8]),
        (odd(), vec![1, 2, 3, 6]),
        (on_paper(&Config::glm5()), vec![1, 2, 4, 8, 16]),
        (on_paper(&Config::glm52()), vec![8]),
    ];
    let steps = [
        StepKind::Decode { rows: 4 },
        StepKind::Prefill {
            tokens: 64,
            sequences: 2,
        },
    ];
    for (model, world_sizes) in models {
        for world_size in world_sizes {
            for options in [Options::default(), ROWS] {
                if options == ROWS && world_size > model.config().indexer.n_heads {
                    continue;
                }
                let inventory = model.clone().over(world_size, &options).unwrap();
                let states = states(inventory.config(), GgmlType::F32, GgmlType::F32);
                for step in steps {
                    let mut plans = plans(&inventory, step);
                    for plan in &mut plans {
                        check_states(plan, &states).unwrap();
                        fuse(plan, &[glim_plan::fuse::ADD_RMS_NORM]);
                        check_states(plan, &states).unwrap();
                        check_arrangement(plan, &arrange(plan)).unwrap();
                        weight_groups(std::slice::from_ref(plan)).unwrap();
                    }
                    check_ranks(&plans).unwrap();
                }
            }
        }
    }
}

#[test]
fn two_sums_a_layer_and_one_gather_of_logits() {
    for (inventory, layers) in [(on_paper(&Config::glm5()), 78), (odd(), 5)] {
        let whole = plans(&inventory, StepKind::Decode { rows: 1 });
        assert_eq!(
            collectives(&whole[0], "AllReduce") + collectives(&whole[0], "AllGather"),
            0
        );
        let inventory = inventory.over(2, &Options::default()).unwrap();
        let cut = plans(&inventory, StepKind::Decode { rows: 1 });
        assert_eq!(collectives(&cut[0], "AllReduce"), 2 * layers);
        assert_eq!(collectives(&cut[0], "AllGather"), 1);
    }
}

/// Where tokens alone are wanted, ranks gather candidates; where logits are, these.
#[test]
fn candidates_are_gathered_unless_logits_are_wanted() {
    let cut = odd().over(3, &Options::default()).unwrap();
    let wire = |logits| {
        let mut request = request(StepKind::Decode { rows: 1 }, 1, 3);
        (request.shortlist, request.logits) = (Some(64), logits);
        let plan = emit(&cut, &request).unwrap();
        check_states(&plan, &states(cut.config(), GgmlType::F32, GgmlType::F32)).unwrap();
        let gather = plan
            .ops
            .iter()
            .find(|node| node.op.kind() == "AllGather")
            .unwrap();
        (gather.label.clone(), collectives(&plan, "Shortlist"))
    };
    assert_eq!(wire(false), ("candidates_gather".to_owned(), 1));
    assert_eq!(wire(true), ("output_gather".to_owned(), 0));
}

/// Latents by rows: one gather of the small latents and one of the index queries, for each layer with an indexer.
#[test]
fn latents_by_rows_are_gathered_once_before_their_norms() {
    let cut = on_paper(&Config::glm5()).over(8, &ROWS).unwrap();
    let plan = &plans(&cut, StepKind::Decode { rows: 1 })[3];
    assert_eq!(collectives(plan, "AllGather"), 1 + 2 * 78);
    let gather = plan
        .ops
        .iter()
        .find(|node| node.label == "blk.5.attn_latent_gather")
        .unwrap();
    let Op::AllGather { gathers, .. } = &gather.op else {
        panic!("{gather:?}")
    };
    let names: Vec<&str> = gathers
        .iter()
        .map(|g| plan.buffer(g.out).name.as_str())
        .collect();
    let expected = [
        "attn_q_a",
        "attn_kv_a_mqa",
        "indexer.attn_k",
        "indexer.proj",
    ];
    assert_eq!(names, expected.map(|name| format!("blk.5.{name}.out")));
    assert!(gathers.iter().all(|g| g.lens.len() == 8));
}

/// What every rank reads for a token, by hand: a GLM-5 layer's replicated projections are a third of it at eight ranks.
#[test]
fn the_ranks_hold_what_is_cut_once_between_them() {
    for (inventory, world_size) in [(tiny(), 4), (odd(), 6), (on_paper(&Config::glm5()), 8)] {
        let step = StepKind::Decode { rows: 1 };
        let whole = &plans(&inventory, step)[0];
        for options in [Options::default(), ROWS] {
            let cut = plans(&inventory.clone().over(world_size, &options).unwrap(), step);
            for (_, weight) in whole.buffers_where(|k| *k == BufferKind::Weight) {
                let parts: Vec<_> = cut
                    .iter()
                    .map(|plan| plan.buffer(plan.find(&weight.name).unwrap()))
                    .collect();
                let bytes: usize = parts.iter().map(|part| part.bytes()).sum();
                match parts[0].placement {
                    Placement::Replicated => assert_eq!(bytes, world_size * weight.bytes()),
                    Placement::Sharded { .. } => assert_eq!(bytes, weight.bytes()),
                }
            }
        }
    }
}

#[test]
fn latents_by_rows_save_what_every_rank_would_read() {
    let load = Load {
        rows: 1,
        outputs: 1,
        sequences: 1,
        context: 1024,
    };
    let inventory = on_paper(&Config::glm5());
    let cost = |options: &Options| {
        let cut = inventory.clone().over(8, options).unwrap();
        plan_cost(&plans(&cut, StepKind::Decode { rows: 1 })[0], &load)
    };
    let (whole, rows) = (cost(&Options::default()), cost(&ROWS));
    // q_a, kv_a and the indexer's three matrices, 25.5 M parameters a layer, of which a rank still reads an eighth.
    let layer = (2048 + 576 + 128 + 32) * 6144 + 4096 * 2048;
    let saved = 78.0 * f64::from(layer) * 2.0 * 7.0 / 8.0;
    assert!(((whole.weight_bytes - rows.weight_bytes) / saved - 1.0).abs() < 0.001);
    assert!(rows.wire_bytes > whole.wire_bytes);
}

#[test]
fn what_cannot_be_cut_is_refused() {
    let refused = |inventory: Inventory, world_size| {
        inventory
            .over(world_size, &Options::default())
            .unwrap_err()
            .to_string()
    };
    assert!(refused(odd(), 4).contains("6 heads cannot be divided among 4 ranks"));
    // Ten index heads over sixteen ranks.
    let mut config = Config::glm5();
    config.indexer.n_heads = 10;
    let few = on_paper(&config).over(16, &ROWS).unwrap();
    let step = StepKind::Decode { rows: 1 };
    let error = emit(&few, &request(step, 0, 16)).unwrap_err();
    assert!(matches!(error, EmitError::IdleRank { .. }), "{error}");
    assert!(matches!(
        emit(&few, &request(step, 16, 16)),
        Err(EmitError::WorldSize { rank: 16, .. })
    ));
}
