//! Big-endian files are read as their little-endian twins are.
//!
//! The twins come from gguf-py (`golden/README.md`), and from [`turned_around`], which walks over a
//! file with a table of block layouts of its own.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::{fs, path::Path};

use common::Raw;
use glim_gguf::{Array, ByteOrder, Gguf, Strings, Value, Writer};
use glim_quant::{GgmlType, dequantize};

/// The fields of a block in order: how many of how many bytes. From the layouts in ggml's
/// `ggml-common.h`; where a struct declares bytes and the code reads them as one number, that
/// number.
fn fields(ty: GgmlType) -> Option<&'static [(usize, usize)]> {
    use GgmlType::*;
    Some(match ty {
        F32 | I32 => &[(1, 4)],
        F16 | BF16 | I16 => &[(1, 2)],
        F64 | I64 => &[(1, 8)],
        I8 => &[(1, 1)],
        Q4_0 | IQ4_NL => &[(1, 2), (16, 1)],          // d, qs
        Q4_1 => &[(1, 2), (1, 2), (16, 1)],           // d, m, qs
        Q5_0 => &[(1, 2), (1, 4), (16, 1)],           // d, qh, qs
        Q5_1 => &[(1, 2), (1, 2), (1, 4), (16, 1)],   // d, m, qh, qs
        Q8_0 => &[(1, 2), (32, 1)],                   // d, qs
        Q8_1 => &[(1, 2), (1, 2), (32, 1)],           // d, s, qs
        Q2_K => &[(16, 1), (64, 1), (1, 2), (1, 2)],  // scales, qs, d, dmin
        Q3_K => &[(32, 1), (64, 1), (12, 1), (1, 2)], // hmask, qs, scales, d
        Q4_K => &[(1, 2), (1, 2), (12, 1), (128, 1)], // d, dmin, scales, qs
        Q5_K => &[(1, 2), (1, 2), (12, 1), (32, 1), (128, 1)], // d, dmin, scales, qh, qs
        Q6_K => &[(128, 1), (64, 1), (16, 1), (1, 2)], // ql, qh, scales, d
        Q8_K => &[(1, 4), (256, 1), (16, 2)],         // d, qs, bsums
        IQ2_XXS => &[(1, 2), (16, 4)],                // d, eight pairs of words
        IQ2_XS => &[(1, 2), (32, 2), (8, 1)],         // d, qs, scales
        IQ2_S => &[(1, 2), (64, 1), (8, 1), (8, 1)],  // d, qs and signs, qh, scales
        IQ3_XXS => &[(1, 2), (64, 1), (8, 4)],        // d, qs, scales and signs
        IQ3_S => &[(1, 2), (64, 1), (8, 1), (32, 1), (4, 1)], // d, qs, qh, signs, scales
        IQ1_S => &[(1, 2), (32, 1), (8, 2)],          // d, qs, qh
        IQ1_M => &[(32, 1), (16, 1), (4, 2)],         // qs, qh, scales
        IQ4_XS => &[(1, 2), (1, 2), (4, 1), (128, 1)], // d, scales_h, scales_l, qs
        TQ1_0 => &[(48, 1), (4, 1), (1, 2)],          // qs, qh, d
        TQ2_0 => &[(64, 1), (1, 2)],                  // qs, d
        MXFP4 => &[(1, 1), (16, 1)],                  // e, qs
        NVFP4 => &[(4, 1), (32, 1)],                  // d, qs
        _ => return None,
    })
}

/// Swaps the fields of a file in place, front to back.
struct Walk(Vec<u8>, usize);

impl Walk {
    /// Swaps a number of `N` bytes, and returns what it was.
    fn number<const N: usize>(&mut self) -> u64 {
        let bytes = &mut self.0[self.1..][..N];
        let number = bytes
            .iter()
            .rev()
            .fold(0, |n, &byte| n << 8 | u64::from(byte));
        bytes.reverse();
        self.1 += N;
        number
    }

    fn string(&mut self) {
        let len = self.number::<8>();
        self.1 += len as usize;
    }

    fn value(&mut self, ty: u64) {
        match ty {
            0 | 1 | 7 => self.1 += 1,
            2 | 3 => drop(self.number::<2>()),
            4..=6 => drop(self.number::<4>()),
            8 => self.string(),
            9 => {
                let ty = self.number::<4>();
                for _ in 0..self.number::<8>() {
                    self.value(ty);
                }
            }
            _ => drop(self.number::<8>()),
        }
    }
}

/// A little-endian file, alignment 32, as a big-endian machine would have written it.
fn turned_around(file: &[u8]) -> Vec<u8> {
    let mut walk = Walk(file.to_vec(), 4);
    walk.number::<4>(); // version
    let (n_tensors, n_keys) = (walk.number::<8>(), walk.number::<8>());
    for _ in 0..n_keys {
        walk.string();
        let ty = walk.number::<4>();
        walk.value(ty);
    }
    let tensors: Vec<_> = (0..n_tensors)
        .map(|_| {
            walk.string();
            let n_dims = walk.number::<4>();
            let elements: u64 = (0..n_dims).map(|_| walk.number::<8>()).product();
            let ty = GgmlType::from_id(walk.number::<4>() as u32).unwrap();
            (elements as usize, ty, walk.number::<8>() as usize)
        })
        .collect();
    let data = walk.1.next_multiple_of(32);
    for (elements, ty, offset) in tensors {
        walk.1 = data + offset;
        for _ in 0..elements / ty.block_elems() {
            for &(count, bytes) in fields(ty).unwrap() {
                walk.0[walk.1..][..count * bytes]
                    .chunks_mut(bytes)
                    .for_each(<[u8]>::reverse);
                walk.1 += count * bytes;
            }
        }
    }
    walk.0
}

/// A value of every kind, and three blocks of every type that has [`fields`].
fn sample() -> Vec<u8> {
    let mut writer = Writer::new();
    writer.set("general.architecture", "glm-dsa");
    writer.set("a.u8", 0x12u8);
    writer.set("a.i8", -2i8);
    writer.set("a.u16", 0x1234u16);
    writer.set("a.i16", -2i16);
    writer.set("a.u32", 0x1234_5678u32);
    writer.set("a.i32", -2i32);
    writer.set("a.u64", 0x1234_5678_9abc_def0u64);
    writer.set("a.i64", -2i64);
    writer.set("a.f32", 0.1f32);
    writer.set("a.f64", 0.1f64);
    writer.set("a.bool", true);
    writer.set("a.u8s", vec![1u8, 2]);
    writer.set("a.u16s", vec![1u16, 2]);
    writer.set("a.i32s", vec![1i32, -2]);
    writer.set("a.f32s", vec![0.1f32, 0.2]);
    writer.set("a.i64s", vec![1i64, -2]);
    writer.set("a.f64s", vec![0.1f64, 0.2]);
    writer.set("a.bools", vec![true, false]);
    writer.set(
        "a.strings",
        Value::from(["a", "", "ß"].into_iter().collect::<Strings>()),
    );
    for &ty in GgmlType::ALL.iter().filter(|ty| fields(**ty).is_some()) {
        let bytes: Vec<u8> = (0..3 * ty.block_bytes())
            .map(|i| (i * 89 + ty.id() as usize) as u8)
            .collect();
        writer.tensor(ty.name(), &[3 * ty.block_elems() as u64], ty, bytes);
    }
    writer.to_bytes("sample").unwrap()
}

fn order(model: &Gguf) -> ByteOrder {
    model.parts()[0].byte_order
}

#[track_caller]
fn assert_twins(big: &Gguf, little: &Gguf) {
    assert_eq!(order(big), ByteOrder::Big);
    assert_eq!(order(little), ByteOrder::Little);
    assert_eq!(big.version(), little.version());
    assert!(big.metadata().iter().eq(little.metadata().iter()));
    assert_eq!(big.tensors(), little.tensors());
    for tensor in little.tensors() {
        assert_eq!(big.data(tensor), little.data(tensor), "{}", tensor.name);
    }
}

#[test]
fn every_type_with_a_decoder_has_its_fields_here() {
    for &ty in GgmlType::ALL {
        match fields(ty) {
            Some(fields) => {
                let bytes: usize = fields.iter().map(|(count, bytes)| count * bytes).sum();
                assert_eq!(bytes, ty.block_bytes(), "{ty}");
            }
            None => assert!(!ty.can_decode(), "{ty}"),
        }
    }
}

#[test]
fn a_file_that_was_turned_around_reads_as_before() {
    let little = sample();
    let big = turned_around(&little);
    assert_ne!(big, little);
    let big = Gguf::from_bytes("big", big).unwrap();
    assert_twins(&big, &Gguf::from_bytes("little", little).unwrap());
}

#[test]
fn asking_again_yields_the_same_bytes() {
    let model = Gguf::from_bytes("big", turned_around(&sample())).unwrap();
    for tensor in model.tensors() {
        let first = model.data(tensor);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| assert!(std::ptr::eq(model.data(tensor), first)));
            }
        });
    }
}

#[test]
fn parts_of_either_order_make_one_model() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::new();
    writer.set("general.architecture", "glm-dsa");
    writer.tensor("a", &[32], GgmlType::Q8_0, vec![1; 34]);
    writer.tensor("b", &[32], GgmlType::Q8_0, vec![2; 34]);
    let paths = writer.write_split(dir.path(), "m", 2).unwrap();
    let second = fs::read(&paths[1]).unwrap();
    fs::write(&paths[1], turned_around(&second)).unwrap();

    let model = Gguf::open(&paths[0]).unwrap();
    let orders: Vec<_> = model.parts().iter().map(|part| part.byte_order).collect();
    assert_eq!(orders, [ByteOrder::Little, ByteOrder::Big]);
    for (name, byte) in [("a", 1), ("b", 2)] {
        assert_eq!(model.data(model.tensor(name).unwrap()), [byte; 34]);
    }
}

fn golden(name: &str) -> Gguf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    Gguf::open(&path.join(name)).unwrap()
}

#[test]
fn blocks_turned_around_by_gguf_py_read_as_before() {
    let little = golden("little_endian_blocks.gguf");
    assert_eq!(little.tensors().len(), 9);
    assert_twins(&golden("big_endian_blocks.gguf"), &little);
}

#[test]
fn a_big_endian_file_by_gguf_py_reads_as_written() {
    let model = golden("big_endian.gguf");
    assert_eq!((order(&model), model.version()), (ByteOrder::Big, 3));

    let metadata = model.metadata();
    let expected = [
        ("general.architecture", Value::from("glm-dsa")),
        ("a.u8", Value::U8(0x12)),
        ("a.i8", Value::I8(-2)),
        ("a.u16", Value::U16(0x1234)),
        ("a.i16", Value::I16(-2)),
        ("a.u32", Value::U32(0x1234_5678)),
        ("a.i32", Value::I32(-2)),
        ("a.f32", Value::F32(0.1)),
        ("a.bool", Value::Bool(true)),
        ("a.string", Value::from("größe")),
        ("a.u64", Value::U64(0x1234_5678_9abc_def0)),
        ("a.i64", Value::I64(-2)),
        ("a.f64", Value::F64(0.1)),
        ("a.ints", Value::Array(Array::I32(vec![1, -2, 3]))),
        ("a.floats", Value::Array(Array::F32(vec![0.5, 0.1]))),
        ("a.bools", Value::Array(Array::Bool(vec![true, false]))),
        (
            "a.strings",
            Value::from(["a", "", "ß"].into_iter().collect::<Strings>()),
        ),
    ];
    assert_eq!(metadata.len(), expected.len());
    for (key, value) in expected {
        assert_eq!(metadata.get(key), Some(&value), "{key}");
    }

    let data = |name: &str| model.data(model.tensor(name).unwrap());
    assert_eq!(model.tensor("f32").unwrap().shape(), [3, 4]);
    let f32s: Vec<f32> = data("f32")
        .as_chunks()
        .0
        .iter()
        .map(|x| f32::from_le_bytes(*x))
        .collect();
    let f64s: Vec<f32> = data("f64")
        .as_chunks()
        .0
        .iter()
        .map(|x| f64::from_le_bytes(*x) as f32)
        .collect();
    assert_eq!(f32s.len(), 12);
    assert!(
        f32s.iter().all(|x| (1e-3..10.0).contains(&x.abs())),
        "{f32s:?}"
    );
    assert_eq!(f64s, f32s);
    let mut f16s = [0.0; 12];
    dequantize(GgmlType::F16, data("f16"), &mut f16s).unwrap();
    assert!(
        f16s.iter().zip(&f32s).all(|(a, b)| (a - b).abs() < 2e-3),
        "{f16s:?}"
    );

    assert_eq!(data("i8"), [-2i8, -1, 0, 1, 2].map(|x| x as u8));
    assert_eq!(
        *data("i16"),
        *[-2i16, -1, 0, 1, 2].map(i16::to_le_bytes).as_flattened()
    );
    assert_eq!(
        *data("i32"),
        *[-2i32, -1, 0, 1, 2].map(i32::to_le_bytes).as_flattened()
    );
    assert_eq!(
        *data("i64"),
        *[-2i64, -1, 0, 1, 2].map(i64::to_le_bytes).as_flattened()
    );
}

#[test]
fn types_of_unknown_layout_are_refused_in_big_endian_files_only() {
    let q1_0 = GgmlType::Q1_0;
    let little = Raw::new(1, 0).tensor("t", &[128], q1_0.id(), 0).data(18);
    let mut walk = Walk(little.clone(), 4);
    walk.number::<4>();
    walk.number::<8>();
    walk.number::<8>();
    walk.string();
    walk.number::<4>();
    walk.number::<8>();
    walk.number::<4>();
    assert!(Gguf::from_bytes("m.gguf", little).is_ok());
    assert_eq!(
        Gguf::from_bytes("m.gguf", walk.0).unwrap_err().to_string(),
        "m.gguf: tensor `t` has type Q1_0, which cannot be read from a big-endian file: convert the file to \
         little-endian with the tool that wrote it"
    );
}
