//! Synthetic models: what is written is what was planned, whoever writes it, and it loads.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use glim_gguf::{Gguf, Metadata};
use glim_model::Checkpoint;
use glim_model::catalogue::Role;
use glim_model::synth::{Changes, Data, Shape, SynthPlan, Target, TypeRule, write};

fn plan(name: &str) -> SynthPlan {
    let config = Shape::Tiny.config(Changes::default()).unwrap();
    let rule = TypeRule::from_name(name).unwrap();
    SynthPlan::new(&config, rule, "Tiny", &Metadata::new()).unwrap()
}

fn written(plan: &SynthPlan, threads: usize, path: &Path) -> Vec<u8> {
    let mut done = 0;
    let data = Data::Random { seed: 11, threads };
    write(plan, data, Target::File(path), &mut |n| done += n).unwrap();
    assert_eq!(done, plan.data_bytes());
    std::fs::read(path).unwrap()
}

#[test]
fn bytes_do_not_depend_on_the_number_of_threads() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    // Tensors of more than one chunk: f32, 4 MiB each for embedding and head.
    for name in ["f32", "q4_k_m"] {
        let plan = plan(name);
        let alone = written(&plan, 1, &path);
        assert!(alone == written(&plan, 3, &path), "{name}");
    }
}

#[test]
fn every_type_makes_a_checkpoint_that_loads() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    for name in TypeRule::names() {
        let plan = plan(&name);
        written(&plan, 2, &path);
        let checkpoint = Checkpoint::open(&path).unwrap();
        assert_eq!(
            *checkpoint.config(),
            Shape::Tiny.config(Changes::default()).unwrap()
        );
        assert_eq!(checkpoint.oddities(), [] as [String; 0], "{name}");
        let found = checkpoint.tensors().iter().chain(checkpoint.mtp_tensors());
        assert_eq!(found.count(), plan.tensors.len(), "{name}");
    }
}

#[test]
fn norms_are_1_and_router_biases_a_large_offset_with_a_small_spread() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    written(&plan("q8_0"), 1, &path);
    let gguf = Gguf::open(&path).unwrap();
    let values = |role: Role, layer| -> Vec<f32> {
        let tensor = gguf.tensor(&role.gguf_name(layer)).unwrap();
        let words = gguf.data(tensor).chunks_exact(4);
        words
            .map(|w| f32::from_le_bytes(w.try_into().unwrap()))
            .collect()
    };
    assert!(values(Role::OutputNorm, None).iter().all(|x| *x == 1.0));
    assert!(
        values(Role::IndexerKNormBias, Some(0))
            .iter()
            .all(|x| *x == 0.0)
    );
    let mut means = Vec::new();
    for layer in 1..6 {
        let bias = values(Role::ExpProbsB, Some(layer));
        let mean = bias.iter().sum::<f32>() / bias.len() as f32;
        // The sum of four uniform numbers ends at 3.5 deviations of 0.05.
        assert!(bias.iter().all(|x| (x - mean).abs() < 0.35), "{bias:?}");
        assert!((4.8..35.2).contains(&mean), "{mean}");
        means.push(mean);
    }
    means.dedup_by(|a, b| (*a - *b).abs() < 0.01);
    assert_eq!(means.len(), 5, "each layer has its own offset");
}

/// Full size, from the headers of a sparse file: what each of eight ranks would hold.
#[cfg(unix)]
#[test]
fn a_sparse_file_of_full_size_is_cut_for_eight_ranks() {
    use std::os::unix::fs::MetadataExt;

    use glim_model::shard::{HeadCounts, Options, Shards, Weight};

    let dir = tempfile::tempdir().unwrap();
    let probe = std::fs::File::create(dir.path().join("probe")).unwrap();
    let keeps_holes = probe.set_len(1 << 40).is_ok() && probe.metadata().unwrap().blocks() == 0;
    if !keeps_holes {
        println!("skipped: {} keeps no holes", dir.path().display());
        return;
    }
    let config = Shape::Glm52.config(Changes::default()).unwrap();
    let rule = TypeRule::from_name("q4_k_m").unwrap();
    let plan = SynthPlan::new(&config, rule, "GLM-5.2", &Metadata::new()).unwrap();
    let path = dir.path().join("glm-5.2.gguf");
    write(&plan, Data::Holes, Target::File(&path), &mut |_| ()).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let all = checkpoint.tensors().iter().chain(checkpoint.mtp_tensors());
    let weights: Vec<Weight> = all.map(Weight::from).collect();
    assert_eq!(weights.len(), plan.tensors.len());
    let heads = HeadCounts::from(&config);
    let shards = Shards::new(heads, weights, 8, &Options::default()).unwrap();
    shards.check().unwrap();
    let down = shards.weight("blk.3.ffn_down_exps.weight").unwrap();
    assert_eq!(down.shape(7).unwrap(), [256, 6144, 256]);
}
