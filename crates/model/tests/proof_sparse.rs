//! The proof of a model of full size whose data is holes: everything but its weights is real, and nothing of them is read.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::atomic::{AtomicU64, Ordering};

use glim_gguf::Metadata;
use glim_model::checkpoint::Source;
use glim_model::proof::{self, Check, Outcome};
use glim_model::synth::{self, Data, Published, SynthPlan, Target, TypeRule};
use glim_model::{Checkpoint, Config};

/// What tensors beside holes may have in common pages with what is written, and pieces that touch such a page.
const MAX_READ: u64 = 256 << 20;

#[test]
fn a_full_size_model_of_holes_passes_without_being_read() {
    let folder = tempfile::tempdir().unwrap();
    let types = TypeRule::Published(Published::UdQ2KXl);
    let plan = SynthPlan::new(&Config::glm52(), types, "paper", &Metadata::new()).unwrap();
    let target = Target::Split {
        dir: folder.path(),
        stem: "glm-5.2",
        parts: 10,
    };
    synth::write(&plan, Data::Holes, target, &mut |_| ()).unwrap();
    let checkpoint = Checkpoint::open(&folder.path().join("glm-5.2-00001-of-00010.gguf")).unwrap();
    let Source::Gguf(gguf) = checkpoint.source() else {
        panic!("a GGUF")
    };
    let experts = gguf.tensor("blk.9.ffn_up_exps.weight").unwrap();
    let there: usize = gguf
        .extents(experts)
        .iter()
        .map(ExactSizeIterator::len)
        .sum();
    if there as u64 == experts.bytes {
        println!("skipped: this system cannot tell holes from data");
        return;
    }

    let done = AtomicU64::new(0);
    let progress = |bytes: u64| {
        done.fetch_add(bytes, Ordering::Relaxed);
    };
    let mut checks = proof::file(&checkpoint, &progress).checks;
    checks.extend(proof::layout(&checkpoint, &progress));
    checks.extend(proof::shards(&checkpoint, &[2, 8], &progress));
    let total = proof::file_bytes(&checkpoint)
        + proof::layout_bytes(&checkpoint)
        + proof::shards_bytes(&checkpoint, 2);
    assert_eq!(done.into_inner(), total, "holes count as progress");
    assert!(proof::file_bytes(&checkpoint) > 200e9 as u64);

    let failed: Vec<&Check> = (checks.iter())
        .filter(|check| check.outcome != Outcome::Passed)
        .collect();
    assert!(failed.is_empty(), "{failed:#?}");
    let read: u64 = checks.iter().map(|check| check.bytes).sum();
    assert!(read < MAX_READ, "{read} bytes were read");
    let ranks = checks.last().unwrap();
    assert_eq!(ranks.name, "tp 8");
    assert!(
        ranks.detail.contains("of holes by their shapes alone"),
        "{}",
        ranks.detail
    );
}
