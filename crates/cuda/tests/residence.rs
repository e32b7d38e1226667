//! What lies on the GPU is known by a hash that is computed there: that of the file's bytes, in whatever layout, and another one as soon as
//! a byte differs.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::borrow::Cow;

use glim_cuda::{CudaBackend, CudaOptions, Faults};
use glim_plan::fingerprint::fingerprint;
use glim_plan::{Backend, BackendError, GgmlType, WeightData, WeightGroup, WeightSource};

/// Rows, and blocks of a row: an odd number of blocks, so that planes end anywhere.
const ROWS: usize = 3;
const BLOCKS: usize = 41;

fn types() -> impl Iterator<Item = GgmlType> {
    GgmlType::ALL.iter().copied().filter(|ty| ty.can_decode())
}

/// For each type a weight of that name, of arbitrary bytes.
struct Source;

fn bytes(ty: GgmlType) -> Vec<u8> {
    let byte = |i: usize| (i * 37 % 251) as u8;
    (0..ROWS * BLOCKS * ty.block_bytes()).map(byte).collect()
}

impl WeightSource for Source {
    fn weight(&self, name: &str) -> Result<WeightData<'_>, BackendError> {
        let ty = types().find(|ty| ty.name() == name).unwrap();
        Ok(WeightData {
            ty,
            shape: vec![ROWS, BLOCKS * ty.block_elems()],
            bytes: Cow::Owned(bytes(ty)),
        })
    }
}

fn loaded(faults: Faults) -> CudaBackend {
    let group = |ty: GgmlType| WeightGroup {
        names: vec![ty.name().into()],
        bytes: vec![bytes(ty).len()],
    };
    let groups: Vec<WeightGroup> = types().map(group).collect();
    let options = CudaOptions {
        faults,
        ..common::options()
    };
    let mut backend = CudaBackend::new(options).unwrap();
    backend.load(&groups, &Source).unwrap();
    backend
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn the_hash_of_each_type_is_that_of_the_files_bytes() {
    let backend = loaded(Faults::default());
    for ty in types() {
        let expected = fingerprint(ty, &bytes(ty));
        assert_eq!(backend.hash(ty.name()).unwrap(), Some(expected), "{ty}");
    }
    assert!(matches!(
        backend.hash("no such weight"),
        Err(BackendError::Missing { .. })
    ));
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn a_byte_that_differs_changes_the_hash_of_its_weight() {
    // The first byte, the last, and one in the middle.
    for place in 0..3 {
        let at = |ty: GgmlType| (bytes(ty).len() - 1) * place / 2;
        let flipped = types().map(|ty| (ty.name().to_owned(), at(ty))).collect();
        let backend = loaded(Faults {
            flipped,
            ..Faults::default()
        });
        for ty in types() {
            let mut other = bytes(ty);
            other[at(ty)] ^= 0xff;
            let (found, good) = (
                backend.hash(ty.name()).unwrap(),
                fingerprint(ty, &bytes(ty)),
            );
            assert_ne!(found, Some(good), "{ty}");
            assert_eq!(found, Some(fingerprint(ty, &other)), "{ty}");
        }
    }
}
