//! Damaged headers end in an error or in a model whose tensors can be read, never in a panic.
#![allow(clippy::unwrap_used, reason = "tests")]

use glim_gguf::{Gguf, Strings, Value, Writer};
use glim_quant::GgmlType;

const FLIPS: usize = 6000;
const OVERWRITES: usize = 6000;

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

/// Opens the bytes; of a model that opens, reads everything that its header promises. True if it
/// opened.
fn survives(bytes: Vec<u8>) -> bool {
    let len = bytes.len();
    match Gguf::from_bytes("hostile.gguf", bytes) {
        Ok(model) => {
            let read: usize = model
                .tensors()
                .iter()
                .map(|tensor| model.data(tensor).len())
                .sum();
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
            assert!(message.starts_with("hostile.gguf: "), "{message}");
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
    let extremes: [u64; 8] = [
        0,
        1,
        u64::MAX,
        i64::MAX as u64,
        1 << 63,
        u32::MAX as u64,
        1 << 32,
        !31,
    ];
    for _ in 0..OVERWRITES {
        let mut damaged = bytes.clone();
        let at = random.below(header - 8);
        let width = if random.below(2) == 0 { 4 } else { 8 };
        damaged[at..at + width].copy_from_slice(&extremes[random.below(8)].to_le_bytes()[..width]);
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
