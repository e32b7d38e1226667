//! Weights on a GPU: their way there, and back to the bytes of the file.
//!
//! A weight goes up in chunks, each rearranged ([`crate::layout`]) by a few threads into one of two pinned buffers; while one buffer is on
//! its way the other is filled. All weights of a load lie one behind the other in one allocation, made before the first one is read, so that a
//! model that does not fit is refused at once. [`CudaOptions::apart`](crate::CudaOptions::apart) gives each an
//! allocation of its own, so that a kernel which reads beyond a weight is found.
//!
//! What lies on the GPU is proven by its hash there ([`Weights::hash`]), which is compared with that of the file's bytes. [`Weights::read`]
//! gives these again, on a way on which nothing else goes, and tells where they differ.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use glim_plan::{BackendError, GgmlType, WeightGroup, WeightSource};

use crate::cache::Cache;
use crate::driver::{DeviceMemory, Event, Gpu, Pinned, Stream};
use crate::error::CudaError;
use crate::hash;
use crate::layout::{Piece, pieces, rearrange, restore};
use crate::random::Random;

/// Bytes of a pinned buffer, about: long enough that the bus is never idle between copies.
const CHUNK: usize = 32 << 20;
/// Bytes that a thread rearranges at a time.
const PART: usize = 4 << 20;
/// How often progress is logged.
const REPORT: Duration = Duration::from_secs(5);

/// A resident weight.
#[derive(Debug, Clone)]
pub(crate) struct WeightInfo {
    /// Block type, which says how the blocks lie.
    pub(crate) ty: GgmlType,
    /// Row-major, slowest first.
    pub(crate) shape: Vec<usize>,
    /// Where it begins, 256-byte aligned.
    pub(crate) address: u64,
}

/// What was loaded, and how fast.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Loaded {
    /// Weights.
    pub weights: usize,
    /// Their bytes on the GPU.
    pub bytes: u64,
    /// Time it took, reading included.
    pub time: Duration,
}

/// Weights begin at multiples of this, as allocations do.
const ALIGN: usize = 256;

/// Where a weight lies.
#[derive(Debug, Clone)]
struct Place {
    /// Shared by all weights that lie in it.
    memory: Arc<DeviceMemory>,
    at: usize,
    bytes: usize,
}

impl Place {
    /// An allocation for one weight.
    fn alone(gpu: &Gpu, name: &str, bytes: usize) -> Result<Self, CudaError> {
        let memory = DeviceMemory::new(gpu, bytes, &format!("weight {name}"))?;
        Ok(Self {
            memory: Arc::new(memory),
            at: 0,
            bytes,
        })
    }

    fn address(&self) -> u64 {
        self.memory.address() + self.at as u64
    }
}

/// All weights of a rank.
#[derive(Debug, Default)]
pub(crate) struct Weights {
    resident: HashMap<String, (WeightInfo, Place)>,
    loaded: Loaded,
}

impl Weights {
    /// Uploads the weights of all groups, or makes them on the GPU if they are random.
    pub(crate) fn load(
        &mut self,
        gpu: &Gpu,
        cache: &Cache,
        groups: &[WeightGroup],
        source: &dyn WeightSource,
    ) -> Result<(), BackendError> {
        let failed = |e: CudaError| BackendError::Device {
            device: format!("GPU {}", gpu.ordinal()),
            reason: e.to_string(),
        };
        let names: Vec<(&String, usize)> = groups
            .iter()
            .flat_map(|g| g.names.iter().zip(g.bytes.iter().copied()))
            .collect();
        // What is loaded again gives up its room first.
        for (name, _) in &names {
            self.resident.remove(*name);
        }
        let mut places = places(gpu, &names).map_err(failed)?;
        let mut upload = Upload::new(gpu).map_err(failed)?;
        let mut progress = Progress::new(gpu.ordinal(), &names);
        let mut random = Random::new(gpu, cache).map_err(failed)?;
        for (name, _) in &names {
            let mut place_of = |bytes: usize| match places.remove(*name) {
                Some(place) if place.bytes == bytes => Ok(place),
                // Not as planned: the plan that reads it will say so.
                _ => Place::alone(gpu, name, bytes).map_err(failed),
            };
            let (ty, shape, place) = match source.random(name)? {
                Some(blocks) => {
                    let bytes = expected_bytes(blocks.ty, &blocks.shape).unwrap_or(0);
                    check_length(name, blocks.ty, &blocks.shape, bytes)?;
                    let place = place_of(bytes)?;
                    let (address, count) = (place.address(), bytes / blocks.ty.block_bytes());
                    random.fill(address, count, &blocks).map_err(failed)?;
                    (blocks.ty, blocks.shape, place)
                }
                None => {
                    let data = source.weight(name)?;
                    check_length(name, data.ty, &data.shape, data.bytes.len())?;
                    let place = place_of(data.bytes.len())?;
                    let sent = upload.weight(&place, data.ty, &data.bytes);
                    sent.map_err(failed)?;
                    (data.ty, data.shape, place)
                }
            };
            progress.add(place.bytes);
            let address = place.address();
            let info = WeightInfo { ty, shape, address };
            self.resident.insert((*name).clone(), (info, place));
        }
        upload.finish().map_err(failed)?;
        random.finish().map_err(failed)?;
        self.loaded = progress.finish();
        Ok(())
    }

    /// Bytes of the GPU's memory that they take.
    pub(crate) fn bytes(&self) -> u64 {
        let memory = |(_, place): &(WeightInfo, Place)| {
            let memory = &place.memory;
            (memory.address(), memory.bytes() as u64)
        };
        let each: HashMap<u64, u64> = self.resident.values().map(memory).collect();
        each.values().sum()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&WeightInfo> {
        self.resident.get(name).map(|(info, _)| info)
    }

    /// The hash of a weight where it lies.
    pub(crate) fn hash(
        &self,
        gpu: &Gpu,
        cache: &Cache,
        name: &str,
    ) -> Option<Result<u64, CudaError>> {
        let (info, place) = self.resident.get(name)?;
        Some(hash::hash(gpu, cache, info.ty, info.address, place.bytes))
    }

    /// Where a weight lies: its memory, its place there, its bytes.
    pub(crate) fn place(&self, name: &str) -> Option<(&DeviceMemory, usize, usize)> {
        let (_, place) = self.resident.get(name)?;
        Some((&place.memory, place.at, place.bytes))
    }

    /// The bytes of the file.
    pub(crate) fn read(&self, name: &str) -> Option<Result<Vec<u8>, CudaError>> {
        let (info, place) = self.resident.get(name)?;
        let mut stored = vec![0; place.bytes];
        let mut end = 0;
        let read = download(info.ty, place, &mut |part| {
            stored[end..][..part.len()].copy_from_slice(part);
            end += part.len();
        });
        Some(read.map(|()| stored))
    }
}

/// Room for all these weights.
fn places(gpu: &Gpu, weights: &[(&String, usize)]) -> Result<HashMap<String, Place>, CudaError> {
    if gpu.is_apart() {
        let alone = weights
            .iter()
            .map(|(name, bytes)| Ok(((*name).clone(), Place::alone(gpu, name, *bytes)?)));
        return alone.collect();
    }
    let mut end = 0;
    let starts: Vec<usize> = weights
        .iter()
        .map(|(_, bytes)| {
            let at = usize::next_multiple_of(end, ALIGN);
            end = at + bytes;
            at
        })
        .collect();
    let memory = Arc::new(DeviceMemory::new(gpu, end, "weights")?);
    let place = |((name, bytes), at): (&(&String, usize), usize)| {
        let memory = Arc::clone(&memory);
        let bytes = *bytes;
        ((*name).clone(), Place { memory, at, bytes })
    };
    Ok(weights.iter().zip(starts).map(place).collect())
}

/// How far a load is, for the log.
struct Progress {
    gpu: usize,
    start: Instant,
    reported: Instant,
    weights: usize,
    bytes: u64,
    of_weights: usize,
    of_bytes: u64,
}

impl Progress {
    fn new(gpu: usize, weights: &[(&String, usize)]) -> Self {
        let now = Instant::now();
        Self {
            gpu,
            start: now,
            reported: now,
            weights: 0,
            bytes: 0,
            of_weights: weights.len(),
            of_bytes: weights.iter().map(|(_, bytes)| *bytes as u64).sum(),
        }
    }

    fn add(&mut self, bytes: usize) {
        self.weights += 1;
        self.bytes += bytes as u64;
        if self.reported.elapsed() < REPORT {
            return;
        }
        self.reported = Instant::now();
        let seconds = self.start.elapsed().as_secs_f64();
        let (done, all) = (self.bytes as f64, self.of_bytes as f64);
        tracing::info!(
            gpu = self.gpu,
            weights = self.weights,
            of = self.of_weights,
            gb = done / 1e9,
            of_gb = all / 1e9,
            gb_per_s = done / 1e9 / seconds,
            eta_s = seconds * (all / done - 1.0).max(0.0),
            "loading weights"
        );
    }

    fn finish(self) -> Loaded {
        let time = self.start.elapsed();
        tracing::info!(
            gpu = self.gpu,
            weights = self.weights,
            gb = self.bytes as f64 / 1e9,
            gb_per_s = self.bytes as f64 / 1e9 / time.as_secs_f64(),
            seconds = time.as_secs_f64(),
            "weights are resident"
        );
        Loaded {
            weights: self.weights,
            bytes: self.bytes,
            time,
        }
    }
}

/// Refuses bytes that are not as many as the shape takes.
fn check_length(
    name: &str,
    ty: GgmlType,
    shape: &[usize],
    bytes: usize,
) -> Result<(), BackendError> {
    let expected = expected_bytes(ty, shape);
    if expected == Some(bytes) {
        return Ok(());
    }
    let expected = expected.map_or("whole blocks".into(), |n| n.to_string());
    Err(BackendError::Source {
        weight: name.into(),
        reason: format!("{bytes} bytes for {shape:?} of {ty}, expected {expected}"),
    })
}

/// Bytes of whole blocks, or `None` if a row is none.
fn expected_bytes(ty: GgmlType, shape: &[usize]) -> Option<usize> {
    let (cols, rows) = shape.split_last()?;
    let rows = rows
        .iter()
        .try_fold(1usize, |n, axis| n.checked_mul(*axis))?;
    ty.row_bytes(*cols)?.checked_mul(rows)
}

/// Two pinned buffers in turns, as large as the weights so far needed them.
struct Upload {
    gpu: Gpu,
    stream: Stream,
    buffers: Vec<(Pinned, Event)>,
    next: usize,
    threads: usize,
}

impl Upload {
    fn new(gpu: &Gpu) -> Result<Self, CudaError> {
        let buffer = |_| Ok((Pinned::new(gpu, 0)?, Event::new(gpu)?));
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        Ok(Self {
            gpu: gpu.clone(),
            stream: Stream::new(gpu)?,
            buffers: (0..2).map(buffer).collect::<Result<_, CudaError>>()?,
            next: 0,
            threads: threads.min(CHUNK / PART),
        })
    }

    /// Puts a weight on its way. The bytes may be dropped afterwards.
    fn weight(&mut self, to: &Place, ty: GgmlType, stored: &[u8]) -> Result<(), CudaError> {
        let blocks = stored.len() / ty.block_bytes();
        let in_part = PART / ty.block_bytes();
        let in_chunk = (CHUNK / PART) * in_part;
        for first in (0..blocks).step_by(in_chunk) {
            let count = in_chunk.min(blocks - first);
            let (buffer, sent) = &mut self.buffers[self.next];
            self.next = (self.next + 1) % 2;
            sent.wait()?;
            let size = count * ty.block_bytes();
            if buffer.bytes().len() < size {
                *buffer = Pinned::new(&self.gpu, size.next_power_of_two().min(CHUNK))?;
            }
            let bytes = first * ty.block_bytes()..(first + count) * ty.block_bytes();
            let parts = rearrange_parts(ty, &stored[bytes], in_part, buffer, self.threads);
            for (at, part_first, part_count) in parts {
                for Piece {
                    at: to_at,
                    from,
                    len,
                } in pieces(ty, blocks, first + part_first, part_count)
                {
                    let to_at = to.at + to_at;
                    let memory = &to.memory;
                    memory.write_async(to_at, buffer, at + from, len, &self.stream)?;
                }
            }
            sent.record(&self.stream)?;
        }
        Ok(())
    }

    /// Waits until all is there.
    fn finish(&self) -> Result<(), CudaError> {
        self.stream.synchronise()
    }
}

impl Drop for Upload {
    /// The buffers are let go of below; nothing may be copied from them any more then.
    fn drop(&mut self) {
        // If it fails, nothing is copied any more either.
        let _ = self.stream.synchronise();
    }
}

/// Rearranges a chunk of blocks part by part into the buffer: for each part, its place there, its first block and its number of blocks.
fn rearrange_parts(
    ty: GgmlType,
    stored: &[u8],
    in_part: usize,
    buffer: &mut Pinned,
    threads: usize,
) -> Vec<(usize, usize, usize)> {
    let (size, bytes) = (ty.block_bytes(), stored.len());
    let to = &mut buffer.bytes_mut()[..bytes];
    let work: Vec<(&[u8], &mut [u8])> = stored
        .chunks(in_part * size)
        .zip(to.chunks_mut(in_part * size))
        .collect();
    let parts = work.len();
    let mut shares: Vec<Vec<(&[u8], &mut [u8])>> =
        (0..threads.min(parts)).map(|_| Vec::new()).collect();
    let n = shares.len().max(1);
    for (i, part) in work.into_iter().enumerate() {
        shares[i % n].push(part);
    }
    let run = |share: Vec<(&[u8], &mut [u8])>| {
        for (from, to) in share {
            rearrange(ty, from, to);
        }
    };
    std::thread::scope(|scope| {
        let own = shares.pop();
        for share in shares {
            scope.spawn(move || run(share));
        }
        own.map(run)
    });
    (0..parts)
        .map(|i| {
            let first = i * in_part;
            (first * size, first, in_part.min(bytes / size - first))
        })
        .collect()
}

/// Reads a weight back in the order of the file, a part at a time.
fn download(ty: GgmlType, place: &Place, give: &mut dyn FnMut(&[u8])) -> Result<(), CudaError> {
    let size = ty.block_bytes();
    let blocks = place.bytes / size;
    let in_chunk = CHUNK / size;
    let mut chunk = vec![0; in_chunk.min(blocks) * size];
    let mut stored = chunk.clone();
    for first in (0..blocks).step_by(in_chunk.max(1)) {
        let count = in_chunk.min(blocks - first);
        for Piece { at, from, len } in pieces(ty, blocks, first, count) {
            place
                .memory
                .read(place.at + at, &mut chunk[from..][..len])?;
        }
        restore(ty, &chunk[..count * size], &mut stored[..count * size]);
        give(&stored[..count * size]);
    }
    Ok(())
}
