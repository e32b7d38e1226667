//! Plans of real and small models: they pass every check, and they cost what the architecture costs.
#![allow(clippy::unwrap_used, reason = "tests")]

use glim_model::catalogue::Role;
use glim_model::{
    Checkpoint, Config, EmitError, EmitRequest, Inventory, OutputRows, emit, names, states,
};
use glim_plan::{
    BufferKind, CacheGeometry, CheckError, GgmlType, Load, Op, Plan, StepKind, arrange,
    check_arrangement, check_states, fuse, plan_cost, weight_groups,
};
use glim_testkit::assets;

const DECODE: StepKind = StepKind::Decode { rows: 1 };

fn geometry(context: usize) -> CacheGeometry {
    CacheGeometry {
        block_size: 64,
        max_blocks: context.div_ceil(64),
    }
}

fn plan(inventory: &Inventory, step: StepKind, context: usize) -> Plan {
    emit(inventory, &EmitRequest::new(step, geometry(context))).unwrap()
}

fn on_paper(config: &Config) -> Inventory {
    Inventory::on_paper(config, |_| GgmlType::BF16)
}

#[test]
fn every_plan_of_every_model_passes_every_check() {
    let tiny = Inventory::of(&Checkpoint::open(&assets::tiny_glm5()).unwrap());
    let odd = Inventory::of(&Checkpoint::open(&assets::odd_glm52()).unwrap());
    let steps = [
        DECODE,
        StepKind::Decode { rows: 8 },
        StepKind::Prefill {
            tokens: 16,
            sequences: 1,
        },
        StepKind::Prefill {
            tokens: 256,
            sequences: 4,
        },
    ];
    for inventory in [
        tiny,
        odd,
        on_paper(&Config::glm5()),
        on_paper(&Config::glm52()),
    ] {
        let states = states(inventory.config(), GgmlType::F32, GgmlType::F32);
        let mut plans = Vec::new();
        for step in steps {
            for outputs in [OutputRows::Last, OutputRows::All] {
                let mut request = EmitRequest::new(step, geometry(1024));
                request.outputs = outputs;
                request.logits = true;
                let mut plan = emit(&inventory, &request).unwrap();
                check_states(&plan, &states).unwrap();
                fuse(&mut plan, &[glim_plan::fuse::ADD_RMS_NORM]);
                check_states(&plan, &states).unwrap();
                check_arrangement(&plan, &arrange(&plan)).unwrap();
                plans.push(plan);
            }
        }
        let groups = weight_groups(&plans).unwrap();
        let grouped: usize = groups.iter().map(|g| g.names.len()).sum();
        let weights = plans[0].buffers_where(|k| *k == BufferKind::Weight).count();
        assert_eq!(grouped, weights, "each weight is in one group");
    }
}

/// What the mission calls a phantom output, in the real plan: nobody reads what attention wrote.
#[test]
fn an_attention_output_that_nobody_reads_is_refused() {
    let odd = Inventory::of(&Checkpoint::open(&assets::odd_glm52()).unwrap());
    let mut broken = plan(&odd, DECODE, 256);
    let node = broken
        .ops
        .iter_mut()
        .find(|n| n.label == "blk.2.attn_v_b")
        .unwrap();
    let Op::HeadProject { x, .. } = &mut node.op else {
        panic!("{node:?}")
    };
    let (attended, other) = (x.buffer, broken.find("blk.2.attn_k_b.out").unwrap());
    let node = broken
        .ops
        .iter_mut()
        .find(|n| n.label == "blk.2.attn_v_b")
        .unwrap();
    let Op::HeadProject { x, .. } = &mut node.op else {
        panic!("{node:?}")
    };
    x.buffer = other;
    match glim_plan::check(&broken).unwrap_err() {
        CheckError::PhantomOutput { op, buffer, .. } => {
            assert_eq!(op, "blk.2.attn");
            assert_eq!(buffer, broken.buffer(attended).name);
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_plan_that_forgets_index_keys_is_refused() {
    let odd = Inventory::of(&Checkpoint::open(&assets::odd_glm52()).unwrap());
    let mut broken = plan(&odd, DECODE, 256);
    broken
        .ops
        .retain(|node| node.label != "blk.3.indexer.cache");
    let states = states(odd.config(), GgmlType::F32, GgmlType::F32);
    let message = check_states(&broken, &states).unwrap_err().to_string();
    assert!(message.contains("index_key.3"), "{message}");
}

#[test]
fn shared_layers_read_the_last_full_layers_choice() {
    let odd = Inventory::of(&Checkpoint::open(&assets::odd_glm52()).unwrap());
    let plan = plan(&odd, DECODE, 256);
    let read_by = |layer: usize| {
        let node = plan
            .ops
            .iter()
            .find(|n| n.label == format!("blk.{layer}.attn"))
            .unwrap();
        let Op::MlaAttend {
            topk: Some(topk), ..
        } = node.op
        else {
            panic!("{node:?}")
        };
        plan.buffer(topk).name.clone()
    };
    // FFSFS: layers 2 and 4 share.
    let expected = [0, 1, 1, 3, 3].map(names::index_topk);
    assert_eq!([0, 1, 2, 3, 4].map(read_by), expected);
    let keys: Vec<_> = plan.states().into_iter().map(|s| s.name).collect();
    assert!(keys.contains(&"index_key.3".to_owned()) && !keys.contains(&"index_key.2".to_owned()));
}

fn load(context: usize) -> Load {
    Load {
        rows: 1,
        outputs: 1,
        sequences: 1,
        context,
    }
}

fn close(found: f64, expected: f64, tolerance: f64) {
    assert!(
        (found / expected - 1.0).abs() < tolerance,
        "{found:e}, expected {expected:e}"
    );
}

/// Bytes read for one decoded token of GLM-5, and arithmetic by context: figures worked out by hand from the published sizes.
#[test]
fn glm5_costs_what_was_worked_out_by_hand() {
    let glm5 = on_paper(&Config::glm5());
    let decode = plan(&glm5, DECODE, 131_072);
    // All in BF16: 81.7 GB.
    close(plan_cost(&decode, &load(1024)).weight_bytes, 81.7e9, 0.002);
    // 93, 125 and 188 GFLOP at 1k, 32k and 128k.
    for (context, gflop) in [(1024, 93.0), (32_768, 125.0), (131_072, 188.0)] {
        close(plan_cost(&decode, &load(context)).flops, gflop * 1e9, 0.01);
    }
    // Caches read at 128k in BF16: 184 MB of latents for 2048 positions, 2.6 GB of index keys.
    let mut request = EmitRequest::new(DECODE, geometry(131_072));
    (request.latent_type, request.index_key_type) = (GgmlType::BF16, GgmlType::BF16);
    let cost = plan_cost(&emit(&glm5, &request).unwrap(), &load(131_072));
    close(cost.state_bytes, 184e6 + 2.617e9, 0.01);

    // GLM-5.2 has 21 indexers: 92, 108 and 125 GFLOP.
    let glm52 = on_paper(&Config::glm52());
    let decode = plan(&glm52, DECODE, 131_072);
    for (context, gflop) in [(1024, 92.0), (32_768, 108.0), (131_072, 125.0)] {
        close(plan_cost(&decode, &load(context)).flops, gflop * 1e9, 0.01);
    }
}

/// Experts in Q4_K, Q4_K and Q5_K, the router in F32, all else in Q8_0: 33.3 GB.
#[test]
fn a_mixed_file_costs_by_the_type_of_each_tensor() {
    let mixed = Inventory::on_paper(&Config::glm5(), |spec| match spec.role {
        Role::FfnGateExps | Role::FfnUpExps => GgmlType::Q4_K,
        Role::FfnDownExps => GgmlType::Q5_K,
        Role::FfnGateInp => GgmlType::F32,
        _ if spec.shape.len() == 1 => GgmlType::F32,
        _ => GgmlType::Q8_0,
    });
    let cost = plan_cost(&plan(&mixed, DECODE, 4096), &load(1024));
    close(cost.weight_bytes, 33.3e9, 0.005);
}

#[test]
fn requests_that_mean_nothing_are_refused() {
    let odd = Inventory::of(&Checkpoint::open(&assets::odd_glm52()).unwrap());
    let base = EmitRequest::new(DECODE, geometry(256));
    let refused = |change: fn(&mut EmitRequest)| {
        let mut request = base.clone();
        change(&mut request);
        emit(&odd, &request).unwrap_err()
    };
    assert_eq!(refused(|r| r.sample = false), EmitError::NoResult);
    assert_eq!(
        refused(|r| r.world_size = 2),
        EmitError::WorldSize {
            rank: 0,
            world_size: 2,
            found: 1,
        }
    );
}

/// The print of a plan is part of its contract: people review it.
#[test]
fn the_decode_plan_of_the_odd_model_reads_like_this() {
    let odd = Inventory::of(&Checkpoint::open(&assets::odd_glm52()).unwrap());
    insta::assert_snapshot!(plan(&odd, DECODE, 256).to_string());
}
