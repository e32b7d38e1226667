//! The memory that all steps share: as much as the largest of them needs, made before the first one runs.

use glim_plan::StepId;
use glim_plan::backend::MAX_IN_FLIGHT;

use super::faults::{self, Fault};
use super::transfer::{Piece, Transfer};
use crate::driver::{DeviceMemory, Event, Gpu, Pinned, Stream};
use crate::error::CudaError;

/// Steps that can be in the stream at a time: those that were handed over, and one that is run behind them.
const SLOTS: usize = MAX_IN_FLIGHT + 1;

/// Bytes of each piece.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Needs {
    pub(super) arena: usize,
    pub(super) scratch: usize,
    pub(super) inputs: usize,
    pub(super) results: usize,
}

impl Needs {
    /// What serves both.
    pub(super) fn max(self, other: Self) -> Self {
        Self {
            arena: self.arena.max(other.arena),
            scratch: self.scratch.max(other.scratch),
            inputs: self.inputs.max(other.inputs),
            results: self.results.max(other.results),
        }
    }
}

/// Memory of steps: on the GPU, and pinned for the ways there and back.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) arena: DeviceMemory,
    pub(crate) scratch: DeviceMemory,
    pub(crate) inputs: DeviceMemory,
    pub(crate) fault: DeviceMemory,
    slots: Vec<Slot>,
}

/// Pinned memory of a step on its way.
#[derive(Debug)]
pub(super) struct Slot {
    inputs: Pinned,
    /// Faults, then the results in the order of the plan.
    results: Pinned,
    done: Event,
    /// Whose it is.
    holds: Option<(u64, StepId)>,
}

impl Slot {
    /// Waits until the step is done.
    pub(super) fn wait(&self) -> Result<(), CudaError> {
        self.done.wait()
    }

    /// The first fault, and so many words of results.
    pub(super) fn read(&self, words: usize) -> (Option<Fault>, Vec<u32>) {
        let (faults, results) = self.results.bytes().split_at(faults::BYTES);
        let words = results.chunks_exact(4).take(words);
        let words = words.map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]));
        (Fault::first(faults), words.collect())
    }
}

impl Memory {
    /// Memory that is large enough, made of what there is as far as that is. Nothing of it is in use.
    pub(super) fn fitting(
        old: Option<Self>,
        gpu: &Gpu,
        needs: Needs,
        stream: &Stream,
    ) -> Result<Self, CudaError> {
        let (pieces, slots) = match old {
            Some(old) => {
                let pieces = [old.arena, old.scratch, old.inputs, old.fault];
                (pieces.map(Some), old.slots)
            }
            None => ([const { None }; 4], Vec::new()),
        };
        let [arena, scratch, inputs, fault] = pieces;
        // What nobody has written is NaN, not whatever was there.
        let nan = f32::NAN.to_bits();
        let memory = Self {
            arena: at_least(arena, gpu, needs.arena, "the arena", |m| {
                m.fill(nan, stream)
            })?,
            scratch: at_least(scratch, gpu, needs.scratch, "scratch", |_| Ok(()))?,
            inputs: at_least(inputs, gpu, needs.inputs, "inputs", |_| Ok(()))?,
            fault: at_least(fault, gpu, faults::BYTES, "faults", |m| {
                // All of it is copied back after each step, notes that nobody wrote too.
                m.fill(0, stream)?;
                faults::clear(m, stream)
            })?,
            slots: slots_for(slots, gpu, needs)?,
        };
        stream.synchronise()?;
        Ok(memory)
    }

    /// Where its pieces on the GPU lie.
    pub(super) fn addresses(&self) -> [u64; 4] {
        [&self.arena, &self.scratch, &self.inputs, &self.fault].map(DeviceMemory::address)
    }

    /// Bytes of the arena, and of all else on the GPU.
    pub(crate) fn device_bytes(&self) -> (u64, u64) {
        let rest = [&self.scratch, &self.inputs, &self.fault];
        let rest = rest.iter().map(|m| m.bytes() as u64).sum();
        (self.arena.bytes() as u64, rest)
    }

    pub(super) fn forget_tickets(&mut self) {
        for slot in &mut self.slots {
            slot.holds = None;
        }
    }

    /// The slot of a step whose results have not been overtaken.
    pub(super) fn held(&self, ticket: u64) -> Option<(&Slot, StepId)> {
        let slot = &self.slots[index_of(ticket)];
        let (holder, step) = slot.holds?;
        (holder == ticket).then_some((slot, step))
    }

    /// Puts the copy of a step's inputs into the stream.
    pub(super) fn send(
        &mut self,
        ticket: u64,
        bytes: &[u8],
        transfer: &Transfer,
        stream: &Stream,
    ) -> Result<(), CudaError> {
        let slot = &mut self.slots[index_of(ticket)];
        slot.holds = None;
        slot.inputs.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        let piece = Piece {
            from: slot.inputs.address(),
            to: self.inputs.address(),
            bytes: bytes.len(),
        };
        transfer.put(&[piece], stream)
    }

    /// Puts the copies of fault and results into the stream; for each result its place in the arena, its place in the slot, its bytes.
    pub(super) fn fetch(
        &mut self,
        ticket: u64,
        step: StepId,
        results: &[[usize; 3]],
        transfer: &Transfer,
        stream: &Stream,
    ) -> Result<(), CudaError> {
        let slot = &mut self.slots[index_of(ticket)];
        let (arena, to) = (self.arena.address(), slot.results.address());
        let fault = Piece {
            from: self.fault.address(),
            to,
            bytes: faults::BYTES,
        };
        let results = results.iter().map(|[from, at, bytes]| Piece {
            from: arena + *from as u64,
            to: to + *at as u64,
            bytes: *bytes,
        });
        let pieces: Vec<Piece> = std::iter::once(fault).chain(results).collect();
        transfer.put(&pieces, stream)?;
        slot.done.record(stream)?;
        slot.holds = Some((ticket, step));
        Ok(())
    }

    /// What kernels have raised that have ended; others of another rank may run.
    pub(super) fn read_fault(&self) -> Result<Option<Fault>, CudaError> {
        let mut bytes = [0u8; faults::BYTES];
        self.fault.read(0, &mut bytes)?;
        Ok(Fault::first(&bytes))
    }

    /// Clears it in the stream, and not for the whole GPU: a kernel of another rank on it may wait for this one.
    pub(super) fn clear_fault(&self, stream: &Stream) -> Result<(), CudaError> {
        faults::clear(&self.fault, stream)
    }
}

fn index_of(ticket: u64) -> usize {
    (ticket % SLOTS as u64) as usize
}

/// The old piece if it is large enough, or a new one in its place.
fn at_least(
    old: Option<DeviceMemory>,
    gpu: &Gpu,
    bytes: usize,
    what: &str,
    fill: impl FnOnce(&DeviceMemory) -> Result<(), CudaError>,
) -> Result<DeviceMemory, CudaError> {
    if let Some(old) = old
        && old.bytes() >= bytes
    {
        return Ok(old);
    }
    let new = DeviceMemory::new(gpu, bytes, what)?;
    fill(&new)?;
    Ok(new)
}

/// Slots that are large enough. What old ones hold and nobody has fetched yet stays.
fn slots_for(old: Vec<Slot>, gpu: &Gpu, needs: Needs) -> Result<Vec<Slot>, CudaError> {
    let results = faults::BYTES + needs.results;
    if old.is_empty() {
        let new = |_| {
            Ok(Slot {
                inputs: Pinned::new(gpu, needs.inputs)?,
                results: Pinned::new(gpu, results)?,
                done: Event::new(gpu)?,
                holds: None,
            })
        };
        return (0..SLOTS).map(new).collect();
    }
    let larger = |pinned: Pinned, bytes: usize| {
        let old = pinned.bytes();
        if old.len() >= bytes {
            return Ok(pinned);
        }
        let mut new = Pinned::new(gpu, bytes)?;
        new.bytes_mut()[..old.len()].copy_from_slice(old);
        Ok(new)
    };
    let grown = old.into_iter().map(|slot| {
        Ok(Slot {
            inputs: larger(slot.inputs, needs.inputs)?,
            results: larger(slot.results, results)?,
            ..slot
        })
    });
    grown.collect()
}
