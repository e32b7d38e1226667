//! Damaged files end in an error or in a model whose tensors can be read, never in a panic.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use glim_gguf::{Gguf, GgufError, Strings, Value, Writer};
use glim_quant::{GgmlType, dequantize};

const FLIPS: usize = 6000;
const OVERWRITES: usize = 6000;
/// Damaged files on disk, of each file that is damaged.
const FILES: usize = 500;
/// Longest that one of them may take. They have a few kB: more is a loop over a count that is not
/// true.
const TIME_LIMIT: Duration = Duration::from_secs(1);

/// Numbers that counts, lengths and offsets should not have.
const EXTREMES: [u64; 8] = [
    0,
    1,
    u64::MAX,
    i64::MAX as u64,
    1 << 63,
    u32::MAX as u64,
    1 << 32,
    !31,
];

/// A file with a value of every kind and tensors of several types, and the length of its header.
fn sample() -> (Vec<u8>, usize) {
    let mut writer = Writer::new();
    writer.set("general.architecture", "glm-dsa");
    writer.set("general.alignment", 32u32);
    writer.set("a.u8", 1u8);
    writer.set("a.i64", -5i64);
    writer.set("a.f64", 0.5f64);
    writer.set("a.bool", true);
    writer.set("a.bools", vec![true, false, true]);
    writer.set("a.u16s", vec![1u16, 2, 3]);
    writer.set("a.f32s", vec![0.25f32; 5]);
    writer.set(
        "a.tokens",
        Value::from(["é", "", "token", "漢字"].into_iter().collect::<Strings>()),
    );
    writer.tensor("token_embd.weight", &[64, 3], GgmlType::Q8_0, vec![1; 204]);
    writer.tensor("blk.0.attn_norm.weight", &[5], GgmlType::F32, vec![2; 20]);
    writer.tensor(
        "blk.0.ffn_up_exps.weight",
        &[256, 2, 2],
        GgmlType::Q4_K,
        vec![3; 576],
    );
    let bytes = writer.to_bytes("sample").unwrap();
    let header = Gguf::from_bytes("sample", bytes.clone()).unwrap().parts()[0].data_offset as usize;
    (bytes, header)
}

/// splitmix64: small, seeded, the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % bound as u64) as usize
    }
}

/// Opens the bytes. True if they are a model.
fn survives(bytes: Vec<u8>) -> bool {
    let len = bytes.len();
    reads_or_refuses(Gguf::from_bytes("hostile.gguf", bytes), len, "hostile.gguf")
}

/// Of a model that opened, reads everything that its header promises and decodes what can be
/// decoded; of an error, checks the message. `len` is the length of the file `name`. True if it
/// opened.
fn reads_or_refuses(opened: Result<Gguf, GgufError>, len: usize, name: &str) -> bool {
    match opened {
        Ok(model) => {
            let mut read = 0;
            for tensor in model.tensors() {
                let data = model.data(tensor);
                read += data.len();
                if tensor.ty.can_decode() {
                    let mut values = vec![0.0; tensor.elements() as usize];
                    dequantize(tensor.ty, data, &mut values).unwrap();
                }
            }
            assert!(
                read <= len,
                "tensors do not share bytes, so they are no more than the file"
            );
            for (_, value) in model.metadata().iter() {
                assert!(!value.to_string().is_empty());
            }
            true
        }
        Err(error) => {
            let message = error.to_string();
            assert!(message.starts_with(&format!("{name}: ")), "{message}");
            assert!(!error.is_missing(), "{message}");
            false
        }
    }
}

#[test]
fn flipped_bits_never_panic() {
    let (bytes, header) = sample();
    let mut random = Random(1);
    let mut opened = 0;
    for _ in 0..FLIPS {
        let mut damaged = bytes.clone();
        for _ in 0..=random.below(3) {
            damaged[random.below(header)] ^= 1 << random.below(8);
        }
        opened += usize::from(survives(damaged));
    }
    assert!(
        (1..FLIPS).contains(&opened),
        "some damage is harmless, some is not: {opened} of {FLIPS} opened"
    );
}

#[test]
fn extreme_numbers_anywhere_never_panic() {
    let (bytes, header) = sample();
    let mut random = Random(2);
    for _ in 0..OVERWRITES {
        let mut damaged = bytes.clone();
        let at = random.below(header - 8);
        let width = if random.below(2) == 0 { 4 } else { 8 };
        damaged[at..at + width].copy_from_slice(&EXTREMES[random.below(8)].to_le_bytes()[..width]);
        survives(damaged);
    }
}

#[test]
fn every_truncation_is_refused() {
    let (bytes, _) = sample();
    let end_of_data = bytes.len() - bytes.len() % 32;
    for len in 0..bytes.len() {
        let whole = len > end_of_data - 32 && Gguf::from_bytes("m", bytes[..len].to_vec()).is_ok();
        assert!(
            whole || !survives(bytes[..len].to_vec()),
            "{len} of {} bytes opened",
            bytes.len()
        );
    }
}

/// Damages a file in one of the ways in which files are damaged: bits flip, the end is missing, a
/// count is absurd, a stretch is lost, doubled or filled with other bytes.
fn damage(bytes: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(bytes.len() - 8);
    let len = 1 + random.below((bytes.len() - at).min(64));
    match random.below(6) {
        0 => {
            for _ in 0..=random.below(4) {
                let at = random.below(bytes.len());
                bytes[at] ^= 1 << random.below(8);
            }
        }
        1 => bytes.truncate(random.below(bytes.len())),
        2 => {
            let width = [4, 8][random.below(2)];
            let extreme = EXTREMES[random.below(8)].to_le_bytes();
            bytes[at..at + width].copy_from_slice(&extreme[..width]);
        }
        3 => drop(bytes.drain(at..at + len)),
        4 => {
            let doubled = bytes[at..at + len].to_vec();
            drop(bytes.splice(at..at, doubled));
        }
        _ => bytes[at..at + len].fill_with(|| random.below(256) as u8),
    }
}

#[test]
fn damaged_files_are_opened_or_refused_and_quickly() {
    let golden = |name: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
        fs::read(path.join(name)).unwrap()
    };
    let originals = [
        ("ours", sample().0),
        ("little-endian", golden("little_endian_blocks.gguf")),
        ("big-endian", golden("big_endian_blocks.gguf")),
        ("big-endian numbers", golden("big_endian.gguf")),
    ];
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hostile.gguf");
    let name = path.to_str().unwrap();
    for (what, original) in originals {
        let mut random = Random(3);
        let mut opened = 0;
        for n in 0..FILES {
            let mut bytes = original.clone();
            damage(&mut bytes, &mut random);
            fs::write(&path, &bytes).unwrap();
            let start = Instant::now();
            opened += usize::from(reads_or_refuses(Gguf::open(&path), bytes.len(), name));
            let took = start.elapsed();
            assert!(took < TIME_LIMIT, "{what}, damaged file {n}: {took:?}");
        }
        assert!(
            (1..FILES).contains(&opened),
            "some damage is harmless, some is not: {what}, {opened} of {FILES} opened"
        );
    }
}
