//! Faults on the device, and the level of the proof that names each: residence for a byte of a weight that flips in memory, function for the
//! first operation that it makes wrong, and for one whose kernel leaves out a tile.

use glim_cuda::{CudaBackend, DeviceFault};
use glim_engine::Engine;
use glim_engine::proof::{self, Arithmetic, Check, Outcome, Probe};
use glim_gguf::Gguf;
use glim_model::Checkpoint;
use glim_plan::GgmlType;
use glim_testkit::{assets, device};
use glim_text::{Special, TextModel, TokenId};

use super::gpu::{self, options};

/// A context beyond what the indexer keeps, on a GPU.
fn context() -> usize {
    device::sized(512, 24)
}

fn engine(checkpoint: &Checkpoint, fault: Option<DeviceFault>) -> Engine {
    let mut backend = CudaBackend::new(options()).unwrap();
    fault.into_iter().for_each(|fault| backend.inject(fault));
    gpu::engine_on(checkpoint, Box::new(backend), gpu::context(context()))
}

fn residence(checkpoint: &Checkpoint, fault: Option<DeviceFault>) -> Check {
    let mut engine = engine(checkpoint, fault);
    let mut checks = proof::residence(&mut engine, &[checkpoint], &mut |_, _| {});
    assert_eq!(checks.len(), 1);
    checks.remove(0)
}

/// Level 6 of a prefill step and of a decode step.
fn function(checkpoint: &Checkpoint, fault: Option<DeviceFault>) -> Vec<Check> {
    let ids = ids();
    let probe = Probe {
        arithmetic: Arithmetic::EightBit,
        threads: 2,
        ids: &ids,
    };
    let mut engine = engine(checkpoint, fault);
    let checks = proof::function(&mut engine, &[checkpoint], &probe, &mut |_, _| {});
    for check in &checks {
        println!("{} {:?}: {}", check.name, check.outcome, check.detail);
    }
    assert_eq!(checks.len(), 2);
    checks
}

fn ids() -> Vec<TokenId> {
    let text = TextModel::from_gguf(&Gguf::open(&assets::tiny_glm5()).unwrap()).unwrap();
    let held_out = std::fs::read_to_string(assets::heldout_text()).unwrap();
    let excerpt: String = held_out.chars().skip(9000).take(3000).collect();
    text.tokenizer.encode(&excerpt, Special::Text).unwrap()
}

/// Rows, columns and blocks of a weight of Q8_0, whose integers lie on the GPU before its scales: 32 bytes a block, then 2.
fn blocks(checkpoint: &Checkpoint, weight: &str) -> (usize, usize, usize) {
    let tensor = checkpoint.tensor(weight).unwrap();
    assert_eq!(tensor.ty, GgmlType::Q8_0);
    let columns = *tensor.shape.last().unwrap();
    let rows = tensor.shape.iter().product::<usize>() / columns;
    (rows, columns, rows * columns / 32)
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn residence_names_the_weight_and_the_place_of_a_flipped_bit() {
    let checkpoint = Checkpoint::open(&assets::tiny_glm5()).unwrap();
    let sound = residence(&checkpoint, None);
    assert_eq!(sound.outcome, Outcome::Passed, "{}", sound.detail);
    // An expert, which few rows or none choose.
    let weight = "blk.3.ffn_up_exps.weight";
    let (rows, columns, blocks) = blocks(&checkpoint, weight);
    let (row, block) = (rows - 7, 3);
    let at = 32 * (row * columns / 32 + block) + 5;
    assert!(at < 32 * blocks);
    let flipped = residence(
        &checkpoint,
        Some(DeviceFault::FlippedBits {
            weight: weight.into(),
            at,
            mask: 1,
        }),
    );
    assert_eq!(flipped.outcome, Outcome::Failed);
    assert!(flipped.detail.contains(weight), "{}", flipped.detail);
    assert!(flipped.detail.contains("1 of "), "{}", flipped.detail);
    let bad = flipped.first_bad.unwrap();
    let place = (bad.tensor.as_str(), bad.row, bad.col);
    assert_eq!(place, (weight, row as u64, 32 * block as u64));
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn function_names_the_first_operation_that_is_wrong() {
    let checkpoint = Checkpoint::open(&assets::tiny_glm5()).unwrap();
    for check in function(&checkpoint, None) {
        assert_eq!(check.outcome, Outcome::Passed, "{}", check.detail);
    }
    let weight = "blk.2.attn_output.weight";
    let (rows, columns, blocks) = blocks(&checkpoint, weight);
    let block = (rows / 2) * columns / 32 + 1;
    let faults = [
        // The highest bit of the exponent of a block's scale.
        DeviceFault::FlippedBits {
            weight: weight.into(),
            at: 32 * blocks + 2 * block + 1,
            mask: 0x40,
        },
        DeviceFault::SkippedTile {
            op: "blk.2.attn_output".into(),
        },
    ];
    for fault in faults {
        println!("{fault:?}");
        for check in function(&checkpoint, Some(fault)) {
            assert_eq!(check.outcome, Outcome::Failed, "{}", check.name);
            let named = check.detail.starts_with("blk.2.attn_output (Linear)");
            assert!(named, "{}: {}", check.name, check.detail);
        }
    }
}
