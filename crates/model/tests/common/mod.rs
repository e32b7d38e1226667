//! What the tests of the checkpoint share.
#![allow(clippy::unwrap_used, dead_code, reason = "tests; each uses its part")]

use glim_model::{Checkpoint, ModelError, TensorDesc};
use glim_quant::GgmlType;
use glim_testkit::tiny::TinyFile;

/// Opens a file in memory that must be sound.
#[track_caller]
pub(crate) fn open(file: &TinyFile) -> Checkpoint {
    Checkpoint::from_gguf(file.gguf()).unwrap_or_else(|error| panic!("{error}"))
}

/// Opens a file in memory that must be refused.
#[track_caller]
pub(crate) fn refusal(file: &TinyFile) -> String {
    match Checkpoint::from_gguf(file.gguf()) {
        Ok(_) => panic!("accepted"),
        Err(error) => check_refusal(error),
    }
}

/// Bad data is not a missing file.
#[track_caller]
pub(crate) fn check_refusal(error: ModelError) -> String {
    assert!(!error.is_missing(), "{error}");
    error.to_string()
}

/// All of trunk and MTP block.
pub(crate) fn all(checkpoint: &Checkpoint) -> Vec<&TensorDesc> {
    checkpoint
        .tensors()
        .iter()
        .chain(checkpoint.mtp_tensors())
        .collect()
}

/// Both hold the same logical tensors: names, types, shapes and bytes.
#[track_caller]
pub(crate) fn assert_same_tensors(found: &Checkpoint, expected: &Checkpoint) {
    let names = |checkpoint| {
        all(checkpoint)
            .iter()
            .map(|desc| desc.name.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(found), names(expected));
    for (x, y) in all(found).into_iter().zip(all(expected)) {
        assert_eq!(
            (x.role, x.layer, x.ty, &x.shape),
            (y.role, y.layer, y.ty, &y.shape),
            "{}",
            x.name
        );
        let bytes = found.data(x).unwrap();
        assert_eq!(bytes.len(), x.byte_len(), "{}", x.name);
        assert!(
            bytes == expected.data(y).unwrap(),
            "the bytes of {} differ",
            x.name
        );
    }
}

/// The values of a tensor.
#[track_caller]
pub(crate) fn values(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    let desc = checkpoint
        .tensor(name)
        .unwrap_or_else(|| panic!("no tensor {name}"));
    glim_testkit::encode::decode(desc.ty, &checkpoint.data(desc).unwrap())
}

/// The type of a tensor.
#[track_caller]
pub(crate) fn type_of(checkpoint: &Checkpoint, name: &str) -> GgmlType {
    checkpoint
        .tensor(name)
        .unwrap_or_else(|| panic!("no tensor {name}"))
        .ty
}
