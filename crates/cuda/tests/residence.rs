//! What lies on the GPU is known by a hash that is computed there: that of the file's bytes, in whatever layout, and another one as soon as
//! a byte differs.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::borrow::Cow;

use glim_cuda::{CudaBackend, DeviceFault};
use glim_plan::fingerprint::fingerprint;
use glim_plan::{
    Backend, BackendError, GgmlType, ReadTarget, WeightData, WeightGroup, WeightSource,
};

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

/// A backend with all of them, of each of which the byte at this place has flipped.
fn loaded(flipped: Option<fn(usize) -> usize>) -> CudaBackend {
    let group = |ty: GgmlType| WeightGroup {
        names: vec![ty.name().into()],
        bytes: vec![bytes(ty).len()],
    };
    let groups: Vec<WeightGroup> = types().map(group).collect();
    let mut backend = CudaBackend::new(common::options()).unwrap();
    for ty in types() {
        if let Some(at) = flipped {
            backend.inject(DeviceFault::FlippedBits {
                weight: ty.name().into(),
                at: at(bytes(ty).len()),
                mask: 0x10,
            });
        }
    }
    backend.load(&groups, &Source).unwrap();
    backend
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn the_hash_of_each_type_is_that_of_the_files_bytes() {
    let backend = loaded(None);
    for ty in types() {
        let expected = fingerprint(ty, &bytes(ty));
        assert_eq!(backend.hash(ty.name()).unwrap(), Some(expected), "{ty}");
    }
    let unknown = backend.hash("no such weight");
    assert!(matches!(unknown, Err(BackendError::Missing { .. })));
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn a_byte_that_differs_changes_the_hash_of_its_weight() {
    // The first byte, one in the middle, the last.
    let places: [fn(usize) -> usize; 3] = [|_| 0, |bytes| bytes / 2, |bytes| bytes - 1];
    for place in places {
        let backend = loaded(Some(place));
        for ty in types() {
            let (hash, good) = (backend.hash(ty.name()).unwrap(), bytes(ty));
            assert_ne!(hash, Some(fingerprint(ty, &good)), "{ty}");
            // It is that of what can be read back.
            let read = backend.read(ReadTarget::Weight(ty.name())).unwrap();
            assert_eq!(hash, Some(fingerprint(ty, &read)), "{ty}");
        }
    }
}
