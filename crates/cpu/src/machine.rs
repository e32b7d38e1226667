//! What this machine can do at most, measured: the figures that a step is held against.

use std::hint::black_box;
use std::time::{Duration, Instant};

use glim_plan::CollectiveId;

use crate::collective::RankGroup;
use crate::pool::Pool;

/// Bytes that [`read_bandwidth`] reads in one pass: far more than any cache holds.
const BUFFER_BYTES: usize = 1 << 30;
/// Bytes that [`quick_read_bandwidth`] reads: more than most caches hold.
const QUICK_BYTES: usize = 1 << 27;
/// Exchanges of [`exchange_seconds`].
const EXCHANGES: u32 = 200;
/// Passes; the fastest counts, since whatever else the machine does only slows one down.
const PASSES: usize = 5;
/// Multiply-adds of one thread in one pass of [`peak_flops`].
const FMAS: u64 = 1 << 28;

/// Bytes a second that all threads of the pool together read from memory.
pub fn read_bandwidth(pool: &mut Pool) -> f64 {
    bandwidth(pool, BUFFER_BYTES, PASSES)
}

/// The same from a smaller buffer, in a tenth of a second: good enough to choose by.
pub fn quick_read_bandwidth(pool: &mut Pool) -> f64 {
    bandwidth(pool, QUICK_BYTES, 2)
}

fn bandwidth(pool: &mut Pool, bytes: usize, passes: usize) -> f64 {
    let words: Vec<u64> = (0..bytes as u64 / 8).collect();
    let pass = |pool: &mut Pool| {
        let start = Instant::now();
        pool.ranges(words.len(), words.len() / 64, |_, range| {
            let mut sums = [0u64; 16];
            for chunk in words[range].chunks_exact(16) {
                sums.iter_mut()
                    .zip(chunk)
                    .for_each(|(s, w)| *s = s.wrapping_add(*w));
            }
            black_box(sums);
        });
        bytes as f64 / start.elapsed().as_secs_f64()
    };
    (0..passes).map(|_| pass(pool)).fold(0.0, f64::max)
}

/// Seconds that a small exchange between `world_size` ranks takes, on threads of this process.
pub fn exchange_seconds(world_size: usize) -> f64 {
    let group = RankGroup::new(world_size, Duration::from_secs(10));
    let start = Instant::now();
    std::thread::scope(|scope| {
        for rank in 0..world_size {
            let own = group.rank(rank);
            scope.spawn(move || {
                for id in 0..EXCHANGES {
                    let seen = own.exchange(CollectiveId(id), &[id], &mut |_, words| {
                        black_box(words);
                    });
                    // A machine so busy that ten seconds do not do is told by the figure.
                    if seen.is_err() {
                        break;
                    }
                }
            });
        }
    });
    start.elapsed().as_secs_f64() / f64::from(EXCHANGES)
}

/// F32 operations a second (a multiply-add is two) that all threads together do in registers.
pub fn peak_flops(pool: &mut Pool) -> f64 {
    let threads = pool.threads() as f64;
    let pass = |pool: &mut Pool| {
        let start = Instant::now();
        pool.run(|thread| {
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                // SAFETY: the instructions were found just now.
                return unsafe { multiply_add_avx2(thread as f32) };
            }
            multiply_add(thread as f32);
        });
        2.0 * FMAS as f64 * threads / start.elapsed().as_secs_f64()
    };
    (0..PASSES).map(|_| pass(pool)).fold(0.0, f64::max)
}

/// Independent chains, enough to hide the latency of one multiply-add on any processor of today.
const LANES: usize = 96;

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn multiply_add_avx2(seed: f32) {
    chains(seed, |a, factor| a.mul_add(factor, 1.0));
}

fn multiply_add(seed: f32) {
    chains(seed, |a, factor| a * factor + 1.0);
}

#[inline(always)]
fn chains(seed: f32, step: impl Fn(f32, f32) -> f32) {
    let mut acc = [seed; LANES];
    let factor = black_box(0.999_9f32);
    for _ in 0..FMAS / LANES as u64 {
        acc.iter_mut().for_each(|a| *a = step(*a, factor));
    }
    black_box(acc);
}
