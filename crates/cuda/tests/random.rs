//! Random weights made on the device are, byte for byte, those that their source makes on the host.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use glim_cuda::{CudaBackend, CudaOptions};
use glim_model::synth::{Blocks, Stream};
use glim_plan::{
    Backend, BackendError, GgmlType, RandomBlocks, ReadTarget, StateDecl, StateKind, WeightData,
    WeightGroup, WeightSource,
};

/// Weights by name: type, deviation, and rows of so many blocks.
struct Random {
    ty: GgmlType,
    sigma: f32,
    rows: usize,
    blocks: usize,
}

impl Random {
    fn shape(&self) -> Vec<usize> {
        vec![self.rows, self.blocks * self.ty.block_elems()]
    }

    fn maker(&self) -> Blocks {
        Blocks::new(self.ty, self.sigma).unwrap()
    }

    fn stream(name: &str) -> Stream {
        Stream::new(3, name)
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        let mut bytes = vec![0; self.rows * self.blocks * self.ty.block_bytes()];
        self.maker().fill(Self::stream(name), 0, &mut bytes);
        bytes
    }
}

struct Source(Vec<(String, Random)>);

impl Source {
    fn get(&self, name: &str) -> &Random {
        &self.0.iter().find(|(own, _)| own == name).unwrap().1
    }
}

impl WeightSource for Source {
    fn weight(&self, name: &str) -> Result<WeightData<'_>, BackendError> {
        panic!("the bytes of {name} were asked for");
    }

    fn random(&self, name: &str) -> Result<Option<RandomBlocks>, BackendError> {
        let random = self.get(name);
        Ok(Some(RandomBlocks {
            ty: random.ty,
            shape: random.shape(),
            key: Random::stream(name).key(),
            scale: random.maker().scale(),
        }))
    }
}

/// For measuring: a context that nobody has computed.
#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn caches_begin_as_random_numbers_if_that_is_asked_for() {
    let state = StateDecl {
        name: "latent".into(),
        kind: StateKind::Paged {
            bytes_per_token: 40,
        },
        dtype: GgmlType::F32,
        shape: vec![10],
    };
    for random_caches in [false, true] {
        let options = CudaOptions {
            random_caches,
            ..common::options()
        };
        let mut backend = CudaBackend::new(options).unwrap();
        backend
            .alloc_state(std::slice::from_ref(&state), 16, 3, 1)
            .unwrap();
        let bytes = backend.read(ReadTarget::State("latent")).unwrap();
        let numbers = bytes.chunks_exact(4);
        let numbers: Vec<f32> = numbers
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
        assert_eq!(numbers.len(), 16 * 3 * 10);
        let square = numbers.iter().map(|x| x * x).sum::<f32>() / numbers.len() as f32;
        match random_caches {
            false => assert_eq!(square, 0.0),
            true => assert!((0.5..2.0).contains(&square), "{square}"),
        }
    }
}

#[test]
#[ignore = "needs a GPU, or the emulator: cargo xtask emulate"]
fn every_type_is_made_as_on_the_host() {
    let mut weights = Vec::new();
    for ty in GgmlType::ALL.iter().copied().filter(|ty| ty.can_decode()) {
        // An embedding's deviation, and that of a wide matrix: subnormal scales in f16.
        for (i, inputs) in [1.0f32, 6144.0].into_iter().enumerate() {
            let random = Random {
                ty,
                sigma: 1.0 / inputs.sqrt(),
                rows: 3,
                blocks: 5 + 60 * i,
            };
            weights.push((format!("{ty}.{i}"), random));
        }
    }
    // More blocks than a grid of the emulator has threads.
    let random = Random {
        ty: GgmlType::Q4_0,
        sigma: 0.02,
        rows: 100,
        blocks: 200,
    };
    weights.push(("large".into(), random));
    let source = Source(weights);
    let group = |(name, random): &(String, Random)| WeightGroup {
        names: vec![name.clone()],
        bytes: vec![random.rows * random.blocks * random.ty.block_bytes()],
    };
    let groups: Vec<WeightGroup> = source.0.iter().map(group).collect();
    let mut backend = CudaBackend::new(common::options()).unwrap();
    backend.load(&groups, &source).unwrap();
    for (name, random) in &source.0 {
        let found = backend.read(ReadTarget::Weight(name)).unwrap();
        let expected = random.bytes(name);
        assert_eq!(found.len(), expected.len(), "{name}");
        let differs = found.iter().zip(&expected).position(|(a, b)| a != b);
        let block = |at| (at / random.ty.block_bytes(), at % random.ty.block_bytes());
        assert_eq!(differs.map(block), None, "{name}: block and byte of it");
    }
}
