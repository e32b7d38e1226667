//! Residence: what lies in each rank's memory is what the file says.
//!
//! Every weight that the steps read is compared with the rank's part of the file: by a hash that the device computes where the weight lies
//! ([`glim_plan::fingerprint`]), or, where there is none or it differs, byte by byte, read back un-repacked through the way on which nothing
//! but this check goes. So a byte that changed on its way to a device, or there, is found whatever it does to the numbers; level 6 would
//! not see it in an expert that its rows do not choose.

use std::time::{Duration, Instant};

use glim_plan::fingerprint::fingerprint;
use glim_plan::{BufferDecl, BufferKind, ReadTarget, WeightSource};

use super::{BadElement, Check, Level, Progress, Timer};
use crate::engine::Engine;
use crate::error::EngineError;

/// Checks each rank's weights against its part of the model, one of `sources` for each. The engine must be idle. `progress` counts bytes.
///
/// # Panics
/// If there are fewer sources than ranks.
pub fn residence(
    engine: &mut Engine,
    sources: &[&dyn WeightSource],
    progress: Progress<'_>,
) -> Vec<Check> {
    let kind = engine.decode_kind(1);
    let name = |rank: usize, n: usize| match n {
        1 => "resident".to_owned(),
        _ => format!("resident, rank {rank} of {n}"),
    };
    let plans: Vec<Vec<BufferDecl>> = match engine.step_of(kind) {
        Ok(step) => {
            let weights = |plan: &glim_plan::Plan| {
                let weights = plan.buffers_where(|kind| *kind == BufferKind::Weight);
                weights.map(|(_, decl)| decl.clone()).collect()
            };
            step.plans().map(weights).collect()
        }
        Err(error) => {
            let timer = Timer::start(Level::Residence, name(0, 1));
            return vec![timer.failed("", 0, error.to_string(), None)];
        }
    };
    let all: u64 = plans.iter().flatten().map(|decl| decl.bytes() as u64).sum();
    let mut done = 0;
    let ranks = plans.len();
    let check = |(rank, weights): (usize, Vec<BufferDecl>)| {
        let timer = Timer::start(Level::Residence, name(rank, ranks));
        let mut told = |bytes: u64| {
            done += bytes;
            progress(done, all);
        };
        match compare(engine, rank, &weights, sources[rank], &mut told) {
            Ok(found) => found.check(timer),
            Err(error) => timer.failed("", 0, error.to_string(), None),
        }
    };
    plans.into_iter().enumerate().map(check).collect()
}

/// What a rank's weights are like.
#[derive(Debug, Default)]
struct Found {
    weights: usize,
    bytes: u64,
    /// Names of those that differ.
    differ: Vec<String>,
    first_bad: Option<BadElement>,
    /// Of those that were read back.
    hash: blake3::Hasher,
    read_back: usize,
    /// Bytes that were hashed where they lie, and the time it took.
    hashed: u64,
    hashing: Duration,
    /// A weight whose hash differed, and whose bytes did not when they were read back.
    wavers: Option<String>,
}

impl Found {
    fn check(self, timer: Timer) -> Check {
        let covered = format!("{} weights, all bytes", self.weights);
        let Some(first) = self.differ.first() else {
            if let Some(name) = &self.wavers {
                let detail = format!(
                    "{name} was not what it is in the file when it was hashed in memory, and was when it was read back: what it is read as changes; test the device's memory"
                );
                return timer.failed(covered, self.bytes, detail, None);
            }
            return timer.passed(covered, self.bytes, self.passed());
        };
        let n = self.differ.len();
        let detail = format!(
            "{n} of {} weights are not in memory what they are in the file, first {first}: they changed on their way or there; load again, and test the device's memory if it comes back",
            self.weights
        );
        timer.failed(covered, self.bytes, detail, self.first_bad)
    }

    /// How it is known that all are what they are in the file.
    fn passed(&self) -> String {
        let hash = self.hash.finalize().to_hex();
        if self.read_back == self.weights {
            return format!("their bytes in memory hash to blake3 {hash}, as the file's");
        }
        let rate = self.hashed as f64 / 1e9 / self.hashing.as_secs_f64().max(1e-9);
        format!("hashed where they lie, at {rate:.1} GB/s: each is what it is in the file")
    }
}

fn compare(
    engine: &Engine,
    rank: usize,
    weights: &[BufferDecl],
    source: &dyn WeightSource,
    told: &mut dyn FnMut(u64),
) -> Result<Found, EngineError> {
    let mut found = Found::default();
    for decl in weights {
        let expected = source.weight(&decl.name)?;
        let bytes = expected.bytes.len() as u64;
        found.weights += 1;
        found.bytes += bytes;
        let start = Instant::now();
        let hash = engine.hash(rank, &decl.name)?;
        if hash.is_some() {
            found.hashing += start.elapsed();
            found.hashed += bytes;
        }
        if hash.is_none_or(|hash| hash != fingerprint(decl.dtype, &expected.bytes)) {
            let resident = engine.read(rank, ReadTarget::Weight(&decl.name))?;
            found.read_back += 1;
            found.hash.update(&resident);
            if resident != *expected.bytes {
                found.differ.push(decl.name.clone());
                let bad = first_bad(decl, &expected.bytes, &resident);
                found.first_bad = found.first_bad.take().or(Some(bad));
            } else if hash.is_some() {
                found.wavers.get_or_insert_with(|| decl.name.clone());
            }
        }
        told(bytes);
    }
    Ok(found)
}

/// The first byte that differs, as the first element of its block.
fn first_bad(decl: &BufferDecl, expected: &[u8], found: &[u8]) -> BadElement {
    let at = expected.iter().zip(found).position(|(a, b)| a != b);
    let at = at.unwrap_or(expected.len().min(found.len()));
    let block = at / decl.dtype.block_bytes();
    let element = block * decl.dtype.block_elems();
    let width = decl.shape.last().copied().unwrap_or(1).max(1);
    let byte = |bytes: &[u8]| match bytes.get(at) {
        Some(byte) => format!("byte {byte:#04x} at {at}"),
        None => format!("the end at {}", bytes.len()),
    };
    BadElement {
        tensor: decl.name.clone(),
        row: (element / width) as u64,
        col: (element % width) as u64,
        expected: byte(expected),
        found: byte(found),
    }
}
