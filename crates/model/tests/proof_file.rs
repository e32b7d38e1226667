//! Level 1 of the proof: what the bytes of a file alone show.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::atomic::{AtomicU64, Ordering};

use glim_gguf::Metadata;
use glim_model::Checkpoint;
use glim_model::export::{self, ExportPlan, FileType, General};
use glim_model::proof::{self, BadElement, Check, FileProof, Level, Outcome};
use glim_quant::GgmlType;
use glim_testkit::assets;
use glim_testkit::faults::GgufFile;
use glim_testkit::tiny::Tiny;

/// odd-glm52 as a GGUF.
fn odd(file_type: FileType) -> GgufFile {
    let source = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let plan = ExportPlan::new(&source, file_type, &General::default(), &Metadata::new()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("odd.gguf");
    export::write(&source, &plan, &path, &mut |_| {
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    GgufFile::read(&path)
}

fn prove(checkpoint: &Checkpoint) -> FileProof {
    let done = AtomicU64::new(0);
    let proof = proof::file(checkpoint, &|bytes| {
        done.fetch_add(bytes, Ordering::Relaxed);
    });
    assert_eq!(
        done.into_inner(),
        proof::file_bytes(checkpoint),
        "progress adds up"
    );
    proof
}

fn prove_file(file: &GgufFile) -> FileProof {
    prove(&Checkpoint::from_gguf(file.gguf()).unwrap())
}

fn check<'a>(proof: &'a FileProof, name: &str) -> &'a Check {
    let check = proof.checks.iter().find(|check| check.name == name);
    check.unwrap_or_else(|| panic!("no check {name}"))
}

/// That this check failed, and no other; returns the first wrong element.
#[track_caller]
fn failed_alone<'a>(proof: &'a FileProof, name: &str) -> &'a BadElement {
    let failed: Vec<&str> = (proof.checks.iter())
        .filter(|check| check.outcome == Outcome::Failed)
        .map(|check| check.name.as_str())
        .collect();
    assert_eq!(failed, [name]);
    check(proof, name).first_bad.as_ref().unwrap()
}

#[track_caller]
fn assert_passes(proof: &FileProof) {
    for check in &proof.checks {
        assert_eq!(
            (check.level, check.outcome),
            (Level::File, Outcome::Passed),
            "{check:?}"
        );
    }
}

#[test]
fn sound_models_pass_in_every_form() {
    let odd_folder = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let built_in = Checkpoint::open(&assets::tiny_glm5()).unwrap();
    for checkpoint in [&odd_folder, &built_in] {
        assert_passes(&prove(checkpoint));
    }
    for file_type in [FileType::F32, FileType::F16, FileType::Bf16, FileType::Q8_0] {
        assert_passes(&prove_file(&odd(file_type)));
    }
    let names: Vec<String> = (prove(&built_in).checks.iter())
        .map(|check| check.name.clone())
        .collect();
    assert_eq!(
        names,
        ["container", "values", "vectors", "copies", "digest"]
    );
    let values = check(&prove(&built_in), "values").clone();
    assert_eq!(values.covered, "163 tensors, 21.4 MB");
    assert_eq!(values.bytes, proof::file_bytes(&built_in));
}

#[test]
fn nan_in_a_scale_is_named_with_its_block() {
    let name = "blk.2.ffn_up_exps.weight";
    let faulty = odd(FileType::Q8_0).nan_scale(name, 41);
    let proof = prove_file(&faulty);
    // Rows of 128 elements are four blocks: block 41 is columns 32.. of row 10.
    assert_eq!(
        *failed_alone(&proof, "values"),
        BadElement {
            tensor: name.to_owned(),
            row: 10,
            col: 32,
            expected: "a finite scale of at most 32".to_owned(),
            found: "scale NaN".to_owned(),
        }
    );
    let plain = odd(FileType::Bf16).nan_scale(name, 41);
    let proof = prove_file(&plain);
    let bad = failed_alone(&proof, "values");
    assert_eq!(
        (bad.row, bad.col, bad.found.as_str()),
        (0, 41, "element NaN")
    );
}

/// Whatever thread sees it first, the first in file order is named.
#[test]
fn the_first_of_several_is_named_and_the_others_are_counted() {
    let (first, second) = ("blk.1.attn_output.weight", "token_embd.weight");
    let faulty = odd(FileType::Q8_0)
        .nan_scale(first, 7)
        .nan_scale(first, 3)
        .nan_scale(second, 0);
    let place = |name: &str| {
        faulty
            .tensors()
            .iter()
            .position(|t| t.name == name)
            .unwrap()
    };
    let expected = if place(first) < place(second) {
        (first, 96)
    } else {
        (second, 0)
    };
    for _ in 0..5 {
        let proof = prove_file(&faulty);
        let bad = failed_alone(&proof, "values");
        assert_eq!((bad.tensor.as_str(), bad.col), expected);
        let detail = &check(&proof, "values").detail;
        assert!(detail.contains("; so do 1 other tensor"), "{detail}");
    }
}

/// A flipped byte of a code is a valid block: this level sees it in the digest only. In the upper byte of a scale it makes a number that
/// no weight is.
#[test]
fn a_flipped_byte_is_seen_where_it_makes_an_impossible_scale_and_else_changes_the_digest() {
    let sound = odd(FileType::Q8_0);
    let name = "blk.2.ffn_down_exps.weight";
    let digest = prove_file(&sound).digest;
    let in_code = prove_file(&sound.clone().flipped_byte(name, 34 * 5 + 9, 0xff));
    assert_passes(&in_code);
    assert_ne!(in_code.digest, digest);
    let in_scale = prove_file(&sound.flipped_byte(name, 34 * 5 + 1, 0xff));
    let bad = failed_alone(&in_scale, "values");
    // Rows of 32 elements are one block.
    assert_eq!((bad.tensor.as_str(), bad.row, bad.col), (name, 5, 0));
}

#[test]
fn a_copied_indexer_is_named_with_its_original() {
    let file = GgufFile::read(&assets::tiny_glm5()).copied_indexer(3, 2);
    let proof = prove_file(&file);
    let bad = failed_alone(&proof, "copies");
    let name = bad.tensor.replace("blk.3.", "blk.2.");
    assert!(bad.tensor.starts_with("blk.3.indexer."), "{bad}");
    assert_eq!(bad.found, format!("the bytes of {name}"));
    let detail = &check(&proof, "copies").detail;
    assert!(detail.contains("and so for 4 more"), "{detail}");
}

/// Which layers share an indexer is the metadata's to say. Without a word of it, copies are believed in the published schedule only.
#[test]
fn copies_of_shared_indexers_are_believed_if_declared_or_published() {
    let copied = Tiny::new(4).build().copy_indexers();
    let undeclared = GgufFile::of(&copied.gguf());
    let proof = prove_file(&undeclared);
    let bad = failed_alone(&proof, "copies");
    assert!(bad.tensor.starts_with("blk.2.indexer."), "{bad}");

    let declared = GgufFile::of(&copied.with_indexer_types().gguf());
    let proof = prove_file(&declared);
    assert_passes(&proof);
    let detail = &check(&proof, "copies").detail;
    assert!(
        detail.contains("5 tensors of shared indexers are copies, as the metadata declares"),
        "{detail}"
    );

    // GLM-5.2's schedule: 0, 1, 2, 6.
    let full = [true, true, true, false, false, false, true, false];
    let dims = glim_testkit::tiny::Dims {
        full: full.to_vec(),
        ..Default::default()
    };
    let published = Tiny::new(4).dims(dims).build().copy_indexers();
    let proof = prove_file(&GgufFile::of(&published.gguf()));
    assert_passes(&proof);
    let detail = &check(&proof, "copies").detail;
    assert!(
        detail.contains("20 tensors of shared indexers are copies, as in the published GLM-5.2"),
        "{detail}"
    );
}

#[test]
fn any_layer_that_is_written_twice_is_named() {
    let file = odd(FileType::Bf16);
    let original = file.tensor("blk.3.attn_q_a.weight").bytes.clone();
    let proof = prove_file(&file.change("blk.4.attn_q_a.weight", |t| t.bytes = original));
    let bad = failed_alone(&proof, "copies");
    assert_eq!(bad.tensor, "blk.4.attn_q_a.weight");
    assert_eq!(bad.found, "the bytes of blk.3.attn_q_a.weight");
}

#[test]
fn norms_of_ones_and_biases_of_zeros_are_no_copies() {
    let mut file = odd(FileType::Bf16);
    for layer in 0..5 {
        file = file.change_values(&format!("blk.{layer}.attn_norm.weight"), |x| x.fill(1.0));
    }
    assert_passes(&prove_file(&file));
}

/// Not failed, since only the original can say: but remarked on.
#[test]
fn a_shifted_norm_and_a_rounded_bias_are_remarked_on() {
    let sound = GgufFile::read(&assets::tiny_glm5());
    let detail = |file: &GgufFile| check(&prove_file(file), "vectors").detail.clone();
    assert!(!detail(&sound).contains("remark"), "{}", detail(&sound));
    let name = "blk.3.ffn_norm.weight";
    let shifted = sound.clone().shifted_norm(name, 1.0);
    assert_passes(&prove_file(&shifted));
    assert!(
        detail(&shifted).contains(&format!("remark: the mean of `{name}`")),
        "{}",
        detail(&shifted)
    );
    let rounded = sound.rounded_router_bias(2);
    assert_passes(&prove_file(&rounded));
    let remark = "remark: `blk.2.exp_probs_b.bias` is F32 and looks rounded to BF16";
    assert!(detail(&rounded).contains(remark), "{}", detail(&rounded));
}

/// What this level cannot see: bytes that are plausible, in the wrong place. The digest is another one, if it was written down.
#[test]
fn plausible_bytes_in_the_wrong_place_change_the_digest_only() {
    let sound = odd(FileType::F32);
    let digest = prove_file(&sound).digest;
    let faults = [
        sound.clone().untransposed_k_b(1),
        sound.clone().swapped_kv(2),
        sound.clone().exchanged_experts(3, 0, 7),
        sound.clone().interleaved_gate_up(0, 2),
    ];
    for faulty in faults {
        let proof = prove_file(&faulty);
        assert_passes(&proof);
        assert_ne!(proof.digest, digest);
    }
}

#[test]
fn the_digest_is_of_the_model_and_not_of_its_packing() {
    let folder = tempfile::tempdir().unwrap();
    let tiny = Tiny::new(6).matrices(GgmlType::Q8_0).build();
    let file = GgufFile::of(&tiny.gguf());
    let digest = prove_file(&file).digest;
    assert_eq!(digest.to_string().len(), 64);

    let parts = file.write_split(folder.path(), "m", 3);
    assert_eq!(prove(&Checkpoint::open(&parts[1]).unwrap()).digest, digest);
    let reordered = GgufFile::of(&tiny.clone().reverse_order().gguf());
    assert_eq!(prove_file(&reordered).digest, digest);
    let packed = [
        file.clone().set("general.alignment", 256u32),
        file.clone().set("general.name", "another title"),
        file.clone().set("glm-dsa.block_count", 5u64),
    ];
    for same in packed {
        assert_eq!(prove_file(&same).digest, digest);
    }
    let others = [
        file.clone().set("glm-dsa.expert_weights_scale", 2.25f32),
        file.clone().set("tokenizer.chat_template", "{{ x }}"),
        file.clone().flipped_byte("output.weight", 0, 1),
        GgufFile::of(&tiny.flat_kv_b().gguf()),
    ];
    for other in others {
        assert_ne!(prove_file(&other).digest, digest);
    }
}

#[test]
fn rows_of_zeros_are_counted_and_do_not_fail() {
    let faulty =
        odd(FileType::Q8_0).change_values("token_embd.weight", |x| x[128 * 5..128 * 9].fill(0.0));
    let proof = prove_file(&faulty);
    assert_passes(&proof);
    let detail = &check(&proof, "values").detail;
    let expected = "4 rows of nothing but zeros, the first is row 5 of `token_embd.weight`";
    assert!(detail.contains(expected), "{detail}");
}

#[test]
fn a_file_that_does_not_open_is_a_failed_check() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.gguf");
    let file = GgufFile::of(&Tiny::new(2).build().gguf());
    std::fs::write(&path, file.bytes_without_end(4096)).unwrap();
    let check = proof::of_open_error(&Checkpoint::open(&path).unwrap_err());
    assert_eq!((check.level, check.outcome), (Level::File, Outcome::Failed));
    assert!(
        check.detail.contains("an incomplete download?"),
        "{}",
        check.detail
    );

    let missing = Tiny::new(2).build().drop_tensor("blk.1.attn_q_b.weight");
    let error = Checkpoint::from_gguf(missing.gguf()).unwrap_err();
    let check = proof::of_open_error(&error);
    assert!(
        check
            .detail
            .contains("tensor `blk.1.attn_q_b.weight` is missing"),
        "{}",
        check.detail
    );
}

/// A part of a model of other sizes does not open; one of a model of the same sizes does, and is sound in itself.
#[test]
fn a_part_of_another_model_is_refused_where_its_header_tells() {
    let file = |seed| GgufFile::of(&Tiny::new(seed).build().gguf());
    let smaller = GgufFile::of(&Tiny::new(2).build().strip_mtp().gguf());
    let folder = tempfile::tempdir().unwrap();
    let parts = file(1).write_split_with_part_of(&smaller, 2, folder.path(), "m", 3);
    let check = proof::of_open_error(&Checkpoint::open(&parts[0]).unwrap_err());
    assert!(
        check.detail.contains("split.tensors.count"),
        "{}",
        check.detail
    );

    let folder = tempfile::tempdir().unwrap();
    let parts = file(1).write_split_with_part_of(&file(2), 2, folder.path(), "m", 3);
    let mixed = prove(&Checkpoint::open(&parts[0]).unwrap());
    assert_passes(&mixed);
    assert_ne!(mixed.digest, prove_file(&file(1)).digest);
}

/// Holes are zeros that nobody reads: the digest is that of a file in which they are written.
#[test]
fn holes_are_counted_and_hashed_as_zeros() {
    use std::io::{Seek, Write};
    let folder = tempfile::tempdir().unwrap();
    let tiny = Tiny::new(3).matrices(GgmlType::Q8_0).build();
    let file = GgufFile::of(&tiny.gguf());
    // Large enough to be a hole in whole pages.
    let name = "blk.1.ffn_up_exps.weight";
    let zeroed = file.change(name, |tensor| tensor.bytes.fill(0));
    let (written, sparse) = (
        folder.path().join("written.gguf"),
        folder.path().join("sparse.gguf"),
    );
    zeroed.write(&written);
    let checkpoint = Checkpoint::open(&written).unwrap();
    let glim_model::checkpoint::Source::Gguf(gguf) = checkpoint.source() else {
        panic!("a GGUF")
    };
    let info = gguf.tensor(name).unwrap();
    let bytes = std::fs::read(&written).unwrap();
    let (start, end) = (info.offset as usize, (info.offset + info.bytes) as usize);
    let mut file = std::fs::File::create(&sparse).unwrap();
    file.write_all(&bytes[..start]).unwrap();
    file.seek(std::io::SeekFrom::Start(end as u64)).unwrap();
    file.write_all(&bytes[end..]).unwrap();
    drop(file);

    let sparse = prove(&Checkpoint::open(&sparse).unwrap());
    let written = prove(&checkpoint);
    assert_passes(&sparse);
    assert_eq!(sparse.digest, written.digest);
    let detail = &check(&sparse, "values").detail;
    if !detail.contains("holes: ") {
        println!("skipped: this file system has no holes");
    }
    let detail = &check(&written, "values").detail;
    assert!(detail.contains("rows of nothing but zeros"), "{detail}");
}
