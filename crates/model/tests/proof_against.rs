//! Level 3 of the proof: a file beside what it was made of, and beside another publisher's.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::atomic::{AtomicU64, Ordering};

use glim_gguf::Metadata;
use glim_model::Checkpoint;
use glim_model::export::{self, ExportPlan, FileType, General};
use glim_model::proof::{self, BadElement, Check, Level, Outcome};
use glim_quant::{GgmlType, quantize, quantize_weighted};
use glim_testkit::assets;
use glim_testkit::encode::decode;
use glim_testkit::faults::GgufFile;
use glim_testkit::hf::TinyHf;
use glim_testkit::tiny::{Dims, Tiny, TinyFile};

fn odd_folder() -> Checkpoint {
    Checkpoint::open(&assets::odd_glm52()).unwrap()
}

/// odd-glm52 as a GGUF.
fn odd(file_type: FileType) -> GgufFile {
    let source = odd_folder();
    let plan = ExportPlan::new(&source, file_type, &General::default(), &Metadata::new()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("odd.gguf");
    export::write(&source, &plan, &path, &mut |_| {
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    GgufFile::read(&path)
}

fn open(file: &GgufFile) -> Checkpoint {
    Checkpoint::from_gguf(file.gguf()).unwrap()
}

fn prove(checkpoint: &Checkpoint, other: &Checkpoint) -> Vec<Check> {
    let done = AtomicU64::new(0);
    let checks = proof::against(checkpoint, other, &|bytes| {
        done.fetch_add(bytes, Ordering::Relaxed);
    });
    let total = proof::against_bytes(checkpoint, other);
    assert_eq!(done.into_inner(), total, "progress adds up");
    assert!(checks.iter().all(|check| check.level == Level::Checkpoint));
    checks
}

#[track_caller]
fn assert_passes(checks: &[Check]) {
    let failed: Vec<&Check> = (checks.iter())
        .filter(|check| check.outcome != Outcome::Passed)
        .collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

#[track_caller]
fn check<'a>(checks: &'a [Check], name: &str) -> &'a Check {
    let check = checks.iter().find(|check| check.name == name);
    check.unwrap_or_else(|| panic!("no check {name}: {checks:#?}"))
}

/// The first wrong element of the only check that failed.
#[track_caller]
fn failed_alone(checks: &[Check], name: &str) -> BadElement {
    let failed: Vec<&str> = (checks.iter())
        .filter(|check| check.outcome == Outcome::Failed)
        .map(|check| check.name.as_str())
        .collect();
    assert_eq!(failed, [name], "{checks:#?}");
    check(checks, name).first_bad.clone().unwrap()
}

/// Tensor, row and column.
fn place(bad: &BadElement) -> (&str, u64, u64) {
    (&bad.tensor, bad.row, bad.col)
}

#[test]
fn what_was_converted_is_identical_in_every_type() {
    let folder = odd_folder();
    for (file_type, names) in [
        (FileType::F32, vec!["f32"]),
        (FileType::F16, vec!["f32", "f16"]),
        (FileType::Bf16, vec!["f32", "bf16"]),
        (FileType::Q8_0, vec!["f32", "q8_0"]),
    ] {
        let checks = prove(&open(&odd(file_type)), &folder);
        assert_passes(&checks);
        let found: Vec<&str> = checks[2..]
            .iter()
            .map(|check| check.name.as_str())
            .collect();
        assert_eq!(found, names);
        for check in &checks[2..] {
            assert_eq!(check.detail, "all are identical", "{check:?}");
        }
    }
    assert_passes(&prove(&folder, &folder));
}

/// Each file of the fault list beside the sound folder: which check names it, and where it begins.
#[test]
fn every_fault_is_named_beside_the_original() {
    let folder = odd_folder();
    let (plain, q8_0) = (odd(FileType::Bf16), odd(FileType::Q8_0));
    let k_b = "blk.1.attn_k_b.weight";
    type Place = (&'static str, u64, u64);
    let cases: [(GgufFile, &str, Place); 8] = [
        // Rows of 32 are one block: byte 9 of block 5 is column 7.
        (
            q8_0.clone()
                .flipped_byte("blk.2.ffn_down_exps.weight", 34 * 5 + 9, 0xff),
            "q8_0",
            ("blk.2.ffn_down_exps.weight", 5, 7),
        ),
        // Element 0 of a head stays where it is.
        (plain.clone().untransposed_k_b(1), "bf16", (k_b, 0, 1)),
        // Its block has another scale, though.
        (q8_0.clone().untransposed_k_b(1), "q8_0", (k_b, 0, 0)),
        (plain.clone().swapped_kv(1), "bf16", (k_b, 0, 0)),
        (
            plain.clone().exchanged_experts(3, 2, 7),
            "bf16",
            // Expert 2, 32 rows each.
            ("blk.3.ffn_gate_exps.weight", 64, 0),
        ),
        // Rank 0's gate is where it was; what follows is its up.
        (
            plain.clone().interleaved_gate_up(0, 2),
            "bf16",
            ("blk.0.ffn_gate.weight", 80, 0),
        ),
        (
            plain.clone().shifted_norm("blk.4.attn_norm.weight", 1.0),
            "f32",
            ("blk.4.attn_norm.weight", 0, 0),
        ),
        (
            q8_0.clone().nan_scale("blk.2.ffn_up_exps.weight", 41),
            "q8_0",
            ("blk.2.ffn_up_exps.weight", 10, 32),
        ),
    ];
    for (file, name, expected) in cases {
        let checks = prove(&open(&file), &folder);
        assert_eq!(place(&failed_alone(&checks, name)), expected);
    }
    let copied = plain.copied_indexer(3, 1);
    let checks = prove(&open(&copied), &folder);
    let bad = check(&checks, "bf16").first_bad.clone().unwrap();
    assert!(bad.tensor.starts_with("blk.3.indexer."), "{bad}");
}

#[test]
fn a_rounded_router_bias_is_named_beside_an_original_in_f32() {
    let sound = GgufFile::of(&Tiny::new(5).build().gguf());
    let rounded = sound.clone().rounded_router_bias(2);
    let checks = prove(&open(&rounded), &open(&sound));
    let bad = failed_alone(&checks, "f32");
    assert_eq!(bad.tensor, "blk.2.exp_probs_b.bias");
    let number = |text: &str| text.parse::<f32>().unwrap();
    assert!(
        (number(&bad.expected) - number(&bad.found)).abs() < 0.02,
        "{bad}"
    );
}

#[test]
fn a_part_of_another_model_is_named() {
    let file = |seed| GgufFile::of(&Tiny::new(seed).build().gguf());
    let folder = tempfile::tempdir().unwrap();
    let parts = file(1).write_split_with_part_of(&file(2), 2, folder.path(), "m", 3);
    let mixed = Checkpoint::open(&parts[0]).unwrap();
    let checks = prove(&mixed, &open(&file(1)));
    let bad = check(&checks, "bf16").first_bad.clone().unwrap();
    let theirs = glim_gguf::Gguf::open(&parts[1]).unwrap();
    assert_eq!(theirs.parts().len(), 3);
    assert_eq!(theirs.tensor(&bad.tensor).unwrap().part, 1, "{bad}");
}

#[test]
fn other_hyper_parameters_and_shapes_are_named() {
    let folder = odd_folder();
    let file = odd(FileType::Bf16).set("glm-dsa.expert_weights_scale", 2.5f32);
    let bad = failed_alone(&prove(&open(&file), &folder), "hyper-parameters");
    assert_eq!(bad.tensor, "moe");
    assert!(bad.found.contains("routed_scaling_factor: 2.5"), "{bad}");

    let wider = Tiny::new(1)
        .dims(Dims {
            vocab_size: 260,
            ..Dims::default()
        })
        .build();
    let (wider, plain) = (
        GgufFile::of(&wider.gguf()),
        GgufFile::of(&Tiny::new(1).build().gguf()),
    );
    let checks = prove(&open(&wider), &open(&plain));
    let bad = check(&checks, "tensors").first_bad.clone().unwrap();
    assert_eq!(place(&bad), ("token_embd.weight", 0, 0));
    assert_eq!(
        (bad.expected.as_str(), bad.found.as_str()),
        ("shape [259, 96]", "shape [260, 96]")
    );
}

#[test]
fn a_stripped_mtp_block_is_no_fault() {
    let whole = Tiny::new(1).build();
    let (stripped, whole) = (
        common::open(&whole.clone().strip_mtp()),
        common::open(&whole),
    );
    for (file, other, remark) in [
        (&stripped, &whole, "the file has no MTP block"),
        (&whole, &stripped, "the MTP block is not compared"),
    ] {
        let checks = prove(file, other);
        assert_passes(&checks);
        let detail = &check(&checks, "tensors").detail;
        assert!(detail.contains(remark), "{detail}");
    }
}

#[test]
fn every_stored_form_is_compared_as_the_same_tensors() {
    let plain = Tiny::new(8).build();
    let forms = [
        plain.clone().fuse_gate_up(),
        plain.clone().legacy_kv_b(),
        plain.clone().flat_kv_b(),
    ];
    for form in forms {
        assert_passes(&prove(&common::open(&form), &common::open(&plain)));
        assert_passes(&prove(&common::open(&plain), &common::open(&form)));
    }
}

/// An FP8 folder counts as the numbers that it decodes to, at every level.
#[test]
fn an_fp8_folder_is_proved_as_what_it_decodes_to() {
    let model = TinyHf::from_gguf(&Tiny::new(31).build())
        .fp8("_proj.weight")
        .fp8("indexer.wq_b.weight");
    let folder = tempfile::tempdir().unwrap();
    model.write(folder.path(), 2);
    let fp8 = Checkpoint::open(folder.path()).unwrap();
    let plan = ExportPlan::new(&fp8, FileType::F32, &General::default(), &Metadata::new()).unwrap();
    let path = folder.path().join("decoded.gguf");
    export::write(&fp8, &plan, &path, &mut |_| {
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    let decoded = GgufFile::read(&path);

    assert_passes(&prove(&open(&decoded), &fp8));
    let mut checks = proof::file(&fp8, &|_| ()).checks;
    checks.extend(proof::layout(&fp8, &|_| ()));
    checks.extend(proof::shards(&fp8, &[1, 3], &|_| ()));
    assert_passes(&checks);
    let name = "blk.1.attn_output.weight";
    let faulty = decoded.change_values(name, |x| x[700] *= 1.0625);
    let bad = failed_alone(&prove(&open(&faulty), &fp8), "f32");
    assert_eq!(place(&bad), (name, 1, 28));
}

/// Every row whole super-blocks, but for those of single heads.
fn wide() -> TinyFile {
    let dims = Dims {
        n_heads: 4,
        hidden_size: 256,
        q_lora_rank: 256,
        kv_lora_rank: 256,
        v_head_dim: 64,
        intermediate_size: 512,
        moe_intermediate_size: 256,
        n_routed_experts: 3,
        ..Dims::default()
    };
    Tiny::new(3).dims(dims).matrices(GgmlType::F32).build()
}

/// The tensors of layer 1 that end with `ending` in type `ty`, with an importance matrix or without.
fn quantised(ty: GgmlType, weighted: bool, ending: &str) -> GgufFile {
    let mut file = GgufFile::of(&wide().gguf());
    let names: Vec<String> = (file.tensors().iter())
        .filter(|t| t.name.starts_with("blk.1.") && t.name.ends_with(ending))
        .map(|t| t.name.clone())
        .collect();
    for name in names {
        file = file.change(&name, |tensor| {
            let values = decode(tensor.ty, &tensor.bytes);
            let columns = *tensor.shape.last().unwrap();
            // Some columns matter a hundred times as much as others.
            let weights: Vec<f32> = (0..columns)
                .map(|c| 10f32.powi((c * 7 % 3) as i32))
                .collect();
            tensor.ty = ty;
            tensor.bytes = vec![0; ty.row_bytes(values.len()).unwrap()];
            match weighted {
                true => quantize_weighted(ty, &values, Some(&weights), &mut tensor.bytes).unwrap(),
                false => quantize(ty, &values, &mut tensor.bytes).unwrap(),
            }
        });
    }
    file
}

const EXPERTS: &str = "_exps.weight";

const ENCODED: [GgmlType; 14] = [
    GgmlType::Q4_0,
    GgmlType::Q4_1,
    GgmlType::Q5_0,
    GgmlType::Q5_1,
    GgmlType::Q8_0,
    GgmlType::Q2_K,
    GgmlType::Q3_K,
    GgmlType::Q4_K,
    GgmlType::Q5_K,
    GgmlType::Q6_K,
    GgmlType::IQ4_NL,
    GgmlType::IQ4_XS,
    GgmlType::MXFP4,
    GgmlType::NVFP4,
];

/// Places in a block that a bit is flipped in: its scales and its codes.
const PLACES: usize = 9;

/// Any part of a block, any bit of it: the block is named, whether or not its numbers are still plausible.
#[test]
fn a_flipped_bit_anywhere_in_a_block_is_named() {
    let original = common::open(&wide());
    let name = "blk.1.ffn_up_exps.weight";
    for ty in ENCODED {
        let file = quantised(ty, false, "ffn_up_exps.weight");
        assert_passes(&prove(&open(&file), &original));
        let (bytes, elems) = (ty.block_bytes(), ty.block_elems());
        // A block in the second expert.
        let block = 256 * 256 / elems + 11;
        for i in 0..PLACES {
            let byte = i * bytes / PLACES;
            let faulty = file
                .clone()
                .flipped_byte(name, block * bytes + byte, 1 << (byte % 8));
            let checks = prove(&open(&faulty), &original);
            let bad = failed_alone(&checks, &ty.name().to_ascii_lowercase());
            let element = bad.row as usize * 256 + bad.col as usize;
            assert_eq!(
                (bad.tensor.as_str(), element / elems),
                (name, block),
                "{ty}, byte {byte}: {bad}"
            );
            assert_ne!(bad.expected, bad.found);
        }
    }
}

/// With an importance matrix, blocks are others and still close enough; a file of other numbers is not.
#[test]
fn what_an_importance_matrix_made_is_within_the_bounds_and_a_fault_in_it_is_not() {
    let original = common::open(&wide());
    for ty in [
        GgmlType::Q2_K,
        GgmlType::Q3_K,
        GgmlType::Q4_K,
        GgmlType::Q5_K,
        GgmlType::Q6_K,
        GgmlType::IQ4_NL,
        GgmlType::IQ4_XS,
    ] {
        let name = ty.name().to_ascii_lowercase();
        let file = quantised(ty, true, EXPERTS);
        let checks = prove(&open(&file), &original);
        assert_passes(&checks);
        let detail = &check(&checks, &name).detail;
        assert!(
            detail.contains("the others within the type's bound"),
            "{detail}"
        );

        let tensor = "blk.1.ffn_gate_exps.weight";
        let faulty = file.clone().exchanged_experts(1, 0, 2);
        let bad = failed_alone(&prove(&open(&faulty), &original), &name);
        assert_eq!((bad.tensor.as_str(), bad.row), (tensor, 0));
        // The top bit of a code; the codes of no type lie at the very end and the very beginning of its blocks.
        let at = 300 * ty.block_bytes() + ty.block_bytes() / 2;
        let faulty = file.flipped_byte(tensor, at, 0x80);
        let bad = failed_alone(&prove(&open(&faulty), &original), &name);
        let element = bad.row as usize * 256 + bad.col as usize;
        assert_eq!(
            (bad.tensor.as_str(), element / ty.block_elems()),
            (tensor, 300),
            "{ty}: {bad}"
        );
    }
}

/// Without the original: two files of one model in two types agree within the sum of what each may be off.
#[test]
fn two_publishers_files_agree_within_both_bounds() {
    for (ours, theirs) in [
        (GgmlType::Q4_K, GgmlType::Q8_0),
        (GgmlType::Q6_K, GgmlType::Q4_K),
        (GgmlType::Q2_K, GgmlType::IQ4_XS),
        (GgmlType::Q5_0, GgmlType::MXFP4),
    ] {
        let (file, other) = (
            quantised(ours, true, EXPERTS),
            quantised(theirs, false, EXPERTS),
        );
        let checks = prove(&open(&file), &open(&other));
        assert_passes(&checks);
        let name = ours.name().to_ascii_lowercase();
        let faulty = file.exchanged_experts(1, 0, 2);
        let bad = failed_alone(&prove(&open(&faulty), &open(&other)), &name);
        assert_eq!(
            (bad.tensor.as_str(), bad.row),
            ("blk.1.ffn_gate_exps.weight", 0)
        );
    }
    // The same type and other bytes: an importance matrix on one side.
    let (file, other) = (
        quantised(GgmlType::Q4_K, true, EXPERTS),
        quantised(GgmlType::Q4_K, false, EXPERTS),
    );
    assert_passes(&prove(&open(&file), &open(&other)));
}
