//! Files that something damaged: a thousand of them through the binary, each under a limit of 512 MB of address space.

use std::process::Command;
use std::time::{Duration, Instant};

use glim_testkit::tiny::Tiny;

const FILES: u64 = 1_000;
/// KiB of address space: a count that is believed before it is checked ends here.
const ADDRESS_SPACE_KIB: u64 = 512 * 1024;
/// Far above what reading a header takes, far below what an absurd count would.
const PATIENCE: Duration = Duration::from_secs(10);

/// A generator of its own: the damage must be the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

/// One kind of damage: flipped bits, a cut, an absurd number, a hole, an overwritten stretch.
fn damage(sound: &[u8], seed: u64) -> Vec<u8> {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut bytes = sound.to_vec();
    // Most of the structure is at the front.
    let header = bytes.len().min(6_000);
    match seed % 5 {
        0 => {
            (0..=random.below(4)).for_each(|_| bytes[random.below(header)] ^= 1 << random.below(8))
        }
        1 => bytes.truncate(random.below(bytes.len())),
        2 => {
            let at = random.below(header - 8);
            let absurd = [u64::MAX, 1 << 62, 1 << 40, 1 << 31, 0][random.below(5)];
            bytes[at..at + 8].copy_from_slice(&absurd.to_le_bytes());
        }
        3 => {
            let at = random.below(header);
            bytes.drain(at..(at + 1 + random.below(64)).min(header));
        }
        _ => {
            let at = random.below(header - 64);
            (at..at + 64).for_each(|i| bytes[i] = random.below(256) as u8);
        }
    }
    bytes
}

#[test]
#[cfg(unix)]
fn damaged_files_load_or_end_in_65() {
    let dir = tempfile::tempdir().unwrap();
    let sound = Tiny::new(3).build().bytes();
    let path = dir.path().join("damaged.gguf");
    let mut loaded = 0;
    for seed in 0..FILES {
        std::fs::write(&path, damage(&sound, seed)).unwrap();
        let start = Instant::now();
        let script = format!("ulimit -v {ADDRESS_SPACE_KIB}; exec \"$0\" inspect \"$1\"");
        let glim = assert_cmd::cargo::cargo_bin!("glim");
        let out = Command::new("sh")
            .arg("-c")
            .arg(&script)
            .arg(glim)
            .arg(&path)
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&out.stderr);
        assert!(start.elapsed() < PATIENCE, "seed {seed}: {stderr}");
        match out.status.code() {
            Some(0) => loaded += 1,
            Some(65) => assert!(stderr.contains("glim: "), "seed {seed}: {stderr}"),
            code => panic!("seed {seed}: {code:?}, {stderr}"),
        }
        assert!(!stderr.contains("panicked"), "seed {seed}: {stderr}");
    }
    // Some damage hits names of no meaning or data; most does not.
    assert!(loaded < FILES * 4 / 5, "{loaded} of {FILES} loaded");
}
