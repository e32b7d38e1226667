//! Running prepared steps: arguments filled in, launched one by one or as a graph, results and faults read back.
//!
//! Order of one step in the stream: the input block is copied from pinned memory, the kernels run, fault and results are copied to
//! pinned memory, an event is recorded. Two slots of pinned memory take turns, so that a step can be put behind one that still runs.

use std::collections::HashMap;
use std::sync::Arc;

use glim_plan::backend::MAX_IN_FLIGHT;
use glim_plan::{
    Arrangement, BackendError, BufferDecl, BufferId, BufferKind, InputKind, LiveBounds, LiveStep,
    Op, Plan, StepId, StepInputs, StepResults,
};

use crate::backend::{CudaBackend, result_bytes, rows_param};
use crate::code::Code;
use crate::driver::{
    Config, DeviceMemory, Event, Function, Gpu, Graph, Param, Pinned, Stream, launch,
};
use crate::error::CudaError;
use crate::kernels::Kernel;
use crate::program::{Arg, Launch, Library, LibraryCall, Program, Work, poison_check, poison_word};

/// Bytes of `Fault`.
const FAULT_BYTES: usize = 16;

/// Steps that can be in the stream at a time: those that were handed over, and one that is run behind them.
const SLOTS: usize = MAX_IN_FLIGHT + 1;

/// Codes of `Fault`, as in `kernels/include/common.cuh`.
mod fault {
    pub(super) const TOKEN: i32 = 1;
    pub(super) const POSITION: i32 = 2;
    pub(super) const EXPERT: i32 = 3;
    pub(super) const DEADLINE: i32 = 4;
    pub(super) const POISON: i32 = 5;
}

/// A prepared plan.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) plan: Plan,
    pub(crate) arrangement: Arrangement,
    /// By buffer: address of a weight, state or carry.
    bound: Vec<u64>,
    program: Program,
    /// The inputs' layout, and the last inputs.
    inputs: StepInputs,
    /// The program with addresses, once all memory is there; by operation.
    ready: Option<Vec<Vec<Ready>>>,
    graph: Option<Graph>,
}

/// Work with all its arguments.
#[derive(Debug)]
enum Ready {
    Kernel {
        function: Function,
        config: Config,
        params: Vec<Param>,
    },
    Library {
        call: Arc<dyn LibraryCall>,
        addresses: Vec<u64>,
    },
}

impl Ready {
    /// Puts it into the stream. `may_overlap`: a kernel may begin before its predecessor has ended, if it is made for that.
    fn put(&self, may_overlap: bool, stream: &Stream) -> Result<(), CudaError> {
        match self {
            Self::Kernel {
                function,
                config,
                params,
            } => {
                let config = Config {
                    dependent: config.dependent && may_overlap,
                    ..*config
                };
                launch(function, config, params, stream)
            }
            Self::Library { call, addresses } => call.enqueue(addresses, stream),
        }
    }
}

impl Prepared {
    pub(crate) fn new(
        plan: Plan,
        arrangement: Arrangement,
        bound: Vec<u64>,
        program: Program,
    ) -> Self {
        Self {
            inputs: StepInputs::new(&plan),
            plan,
            arrangement,
            bound,
            program,
            ready: None,
            graph: None,
        }
    }

    /// The grid of each launch, by operation.
    pub(crate) fn grids(&self) -> Vec<Vec<[u32; 3]>> {
        let ops = self.program.ops.iter();
        ops.map(|op| {
            op.work
                .iter()
                .filter_map(Work::kernel)
                .map(|l| l.grid)
                .collect()
        })
        .collect()
    }

    /// Nodes of its graph, once there is one.
    pub(crate) fn nodes(&self) -> Option<usize> {
        self.graph.as_ref().map(Graph::nodes)
    }

    /// A form of each kernel, with the shared memory that its launch has.
    pub(crate) fn kernels(&self, form: impl Fn(&Kernel) -> Kernel) -> Vec<(Kernel, u32)> {
        let work = self.program.ops.iter().flat_map(|op| &op.work);
        let launches = work.filter_map(Work::kernel);
        launches.map(|l| (form(&l.kernel), l.shared)).collect()
    }
}

/// Pinned memory of a step on its way.
#[derive(Debug)]
struct Slot {
    inputs: Pinned,
    /// Fault, then the results in the order of the plan.
    results: Pinned,
    done: Event,
    step: StepId,
}

/// Memory that all steps share, and the stream that they run in.
#[derive(Debug)]
pub(crate) struct Runner {
    stream: Stream,
    /// What the prepared plans need: arena, scratch, inputs, results, in bytes.
    needed: [usize; 4],
    memory: Option<Shared>,
    next: usize,
}

#[derive(Debug)]
struct Shared {
    arena: DeviceMemory,
    scratch: DeviceMemory,
    inputs: DeviceMemory,
    fault: DeviceMemory,
    slots: Vec<Slot>,
}

impl Runner {
    pub(crate) fn new(stream: Stream) -> Self {
        Self {
            stream,
            needed: [0; 4],
            memory: None,
            next: 0,
        }
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Enters what another plan needs. Memory that is too small for it is made again before the next run.
    pub(crate) fn reserve(&mut self, arena: usize, scratch: usize, inputs: usize, results: usize) {
        for (needed, new) in self
            .needed
            .iter_mut()
            .zip([arena, scratch, inputs, results])
        {
            if *needed < new {
                *needed = new;
                self.memory = None;
            }
        }
    }

    /// Has all memory made again, and with it all that holds its addresses.
    pub(crate) fn forget(&mut self) {
        self.memory = None;
    }

    pub(crate) fn read_arena(&self, offset: usize, bytes: usize) -> Result<Vec<u8>, CudaError> {
        let mut out = vec![0; bytes];
        if let Some(memory) = &self.memory {
            self.stream.synchronise()?;
            memory.arena.read(offset, &mut out)?;
        }
        Ok(out)
    }

    fn allocate(&mut self, gpu: &Gpu) -> Result<(), CudaError> {
        let [arena, scratch, inputs, results] = self.needed;
        let slot = |_| {
            Ok(Slot {
                inputs: Pinned::new(gpu, inputs)?,
                results: Pinned::new(gpu, FAULT_BYTES + results)?,
                done: Event::new(gpu)?,
                step: StepId(0),
            })
        };
        let memory = Shared {
            arena: DeviceMemory::new(gpu, arena, "the arena")?,
            scratch: DeviceMemory::new(gpu, scratch, "scratch")?,
            inputs: DeviceMemory::new(gpu, inputs, "inputs")?,
            fault: DeviceMemory::new(gpu, FAULT_BYTES, "the fault word")?,
            slots: (0..SLOTS).map(slot).collect::<Result<_, CudaError>>()?,
        };
        // What nobody has written is NaN, not whatever was there.
        memory.arena.fill(f32::NAN.to_bits(), &self.stream)?;
        memory.fault.fill(0, &self.stream)?;
        self.stream.synchronise()?;
        self.memory = Some(memory);
        Ok(())
    }
}

/// Where a step's buffers lie.
struct Places<'a> {
    prepared: &'a Prepared,
    memory: &'a Shared,
}

impl Places<'_> {
    fn buffer(&self, id: BufferId) -> u64 {
        if let BufferKind::Input(kind) = self.prepared.plan.buffer(id).kind {
            return self.input(kind).map_or(0, |(at, _)| at);
        }
        match self.prepared.arrangement.offsets[id.index()] {
            Some(offset) => self.memory.arena.address() + offset as u64,
            None => self.prepared.bound[id.index()],
        }
    }

    /// Address and words of an input, if the plan has it.
    fn input(&self, kind: InputKind) -> Option<(u64, usize)> {
        let range = self.prepared.inputs.range(kind)?;
        let at = self.memory.inputs.address() + range.start as u64 * 4;
        Some((at, range.len()))
    }

    fn param(&self, arg: Arg, op: usize) -> Param {
        match arg {
            Arg::Buffer(id) => Param::u64(self.buffer(id)),
            Arg::BufferAt(id, bytes) => Param::u64(self.buffer(id) + bytes as u64),
            Arg::Rows(id) => {
                let plan = &self.prepared.plan;
                let buffer = plan.buffer(id);
                let capacity = buffer.shape.first().copied().unwrap_or(1);
                let words = rows_param(plan, buffer.rows, capacity, |kind| self.input(kind));
                Param::structure(&words)
            }
            Arg::Scratch(offset) => Param::u64(self.memory.scratch.address() + offset as u64),
            Arg::Kept(offset) => {
                let at = self.prepared.program.kept + offset;
                Param::u64(self.memory.scratch.address() + at as u64)
            }
            Arg::Fault => Param::u64(self.memory.fault.address()),
            Arg::OpIndex => Param::u32(op as u32),
            Arg::Struct(index) => Param::structure(&self.fields(index)),
            Arg::Null => Param::u64(0),
            Arg::U64(at) => Param::u64(at),
            Arg::I32(v) => Param::u32(v as u32),
            Arg::U32(v) => Param::u32(v),
            Arg::F32(v) => Param::u32(v.to_bits()),
        }
    }
}

impl Places<'_> {
    /// A launch with its addresses.
    fn ready(
        &self,
        code: &Code,
        kernel: &Kernel,
        l: &Launch,
        op: usize,
    ) -> Result<Ready, CudaError> {
        Ok(Ready::Kernel {
            function: code.function(kernel)?.clone(),
            config: Config {
                grid: l.grid,
                threads: l.threads,
                shared: l.shared,
                dependent: l.dependent,
            },
            params: l.args.iter().map(|arg| self.param(*arg, op)).collect(),
        })
    }

    /// The words of a struct by value: fields of eight bytes, and pairs of fields of four.
    fn fields(&self, index: usize) -> Vec<u64> {
        let mut words = Vec::new();
        let mut half = None;
        for field in &self.prepared.program.structures[index] {
            let value = self.param(*field, 0).scalar();
            match (field.is_wide(), half.take()) {
                (true, None) => words.push(value),
                (false, None) => half = Some(value),
                (false, Some(low)) => words.push(low | value << 32),
                // C pads here.
                (true, Some(low)) => words.extend([low, value]),
            }
        }
        words.extend(half);
        words
    }

    /// All launches of the step, by operation; `variant` says which form of each kernel.
    fn program(
        &self,
        code: &Code,
        variant: impl Fn(&Kernel) -> Kernel,
    ) -> Result<Vec<Vec<Ready>>, CudaError> {
        let ops = self.prepared.program.ops.iter().enumerate();
        let ready = ops.map(|(i, op)| {
            let work = op.work.iter();
            work.map(|work| match work {
                Work::Kernel(l) => self.ready(code, &variant(&l.kernel), l, i),
                Work::Library(Library { call, addresses }) => Ok(Ready::Library {
                    call: Arc::clone(call),
                    addresses: addresses
                        .iter()
                        .map(|arg| self.param(*arg, i).scalar())
                        .collect(),
                }),
            })
            .collect()
        });
        ready.collect()
    }
}

/// Captures launches as a graph.
fn capture(ready: &[Vec<Ready>], stream: &Stream) -> Result<Graph, CudaError> {
    let mut first = true;
    Graph::capture(stream, || {
        for r in ready.iter().flatten() {
            // The first kernel has no kernel before it in the graph.
            r.put(!std::mem::take(&mut first), stream)?;
        }
        Ok(())
    })
}

/// Runs a step with another form of its kernels, between two events; its inputs are in the stream already.
pub(crate) fn launch_step(
    prepared: &Prepared,
    runner: &Runner,
    code: &Code,
    form: impl Fn(&Kernel) -> Kernel,
    graph: bool,
    [begin, end]: [&Event; 2],
) -> Result<(), CudaError> {
    let Some(memory) = &runner.memory else {
        return Ok(());
    };
    let ready = Places { prepared, memory }.program(code, form)?;
    let stream = &runner.stream;
    if graph {
        let graph = capture(&ready, stream)?;
        begin.record(stream)?;
        graph.launch(stream)?;
        end.record(stream)?;
        // It must not go before it has run.
        return stream.synchronise();
    }
    begin.record(stream)?;
    for r in ready.iter().flatten() {
        r.put(false, stream)?;
    }
    end.record(stream)
}

impl CudaBackend {
    /// Makes what a step lacks: memory, addresses, its graph. All ranks make theirs together, while none has a kernel that waits: the
    /// driver may have to wait until the GPU is idle, and another rank's kernel there would wait for this one.
    fn make_ready(&mut self, step: usize) -> Result<(), BackendError> {
        let prepared = &self.steps[step];
        let has_form = prepared.graph.is_some() || !self.captures();
        if self.runner.memory.is_some() && prepared.ready.is_some() && has_form {
            return Ok(());
        }
        let idle = self.runner.stream.synchronise();
        idle.map_err(|e| self.failed(e))?;
        self.assemble(step)?;
        let made = self.make(step);
        made.map_err(|e| self.failed(e))?;
        self.assemble(step)
    }

    fn assemble(&self, step: usize) -> Result<(), BackendError> {
        let met = self.options.ranks.0.assemble();
        met.map_err(|failure| failure.in_plan(&self.steps[step].plan))
    }

    fn make(&mut self, step: usize) -> Result<(), CudaError> {
        if self.runner.memory.is_none() {
            self.runner.allocate(&self.gpu)?;
            for prepared in &mut self.steps {
                prepared.ready = None;
                prepared.graph = None;
            }
        }
        let Some(memory) = &self.runner.memory else {
            return Ok(());
        };
        if self.steps[step].ready.is_none() {
            let prepared = &self.steps[step];
            let places = Places { prepared, memory };
            let ready = places.program(self.code(), |kernel| kernel.clone())?;
            self.steps[step].ready = Some(ready);
        }
        if self.captures() && self.steps[step].graph.is_none() {
            let ready = self.steps[step].ready.as_deref().unwrap_or_default();
            let graph = capture(ready, &self.runner.stream)?;
            self.steps[step].graph = Some(graph);
        }
        Ok(())
    }

    /// Whether steps run as captured graphs.
    fn captures(&self) -> bool {
        self.options.graphs && !self.options.poison && !self.options.sync_launches
    }

    /// Puts a step into the stream; the number of its slot.
    pub(crate) fn enqueue(
        &mut self,
        step: StepId,
        inputs: &StepInputs,
    ) -> Result<u64, BackendError> {
        let (index, slot) = self.begin(step, inputs)?;
        if self.captures() {
            self.replay(index).map_err(|e| self.failed(e))?;
        } else {
            self.eager(index)?;
        }
        let copied = self.copy_results(index, slot);
        copied.map_err(|e| self.failed(e))?;
        Ok(slot as u64)
    }

    /// Checks a step's inputs and puts their copy into the stream; the step's index, and the slot that it has.
    pub(crate) fn begin(
        &mut self,
        step: StepId,
        inputs: &StepInputs,
    ) -> Result<(usize, usize), BackendError> {
        let index = step.0 as usize;
        if index >= self.steps.len() {
            return Err(BackendError::Missing {
                plan: "of this call".into(),
                what: "step",
                name: index.to_string(),
                action: "prepared",
            });
        }
        let ranks = &self.options.ranks.0;
        if let Some(failure) = ranks.failure() {
            return Err(failure.in_plan(&self.steps[index].plan));
        }
        ranks.begin(0);
        self.steps[index].inputs.copy_from(inputs)?;
        let bounds = LiveBounds {
            blocks: self.blocks,
            sequence_slots: self.sequence_slots,
        };
        LiveStep::read(&self.steps[index].plan, &self.steps[index].inputs, bounds)?;
        self.make_ready(index)?;
        let slot = self.runner.next;
        self.runner.next = (slot + 1) % SLOTS;
        let copied = self.copy_inputs(index, slot);
        copied.map_err(|e| self.failed(e))?;
        Ok((index, slot))
    }

    fn copy_inputs(&mut self, index: usize, slot: usize) -> Result<(), CudaError> {
        let prepared = &self.steps[index];
        let Some(memory) = &mut self.runner.memory else {
            return Ok(());
        };
        let bytes: &[u8] = bytemuck::cast_slice(prepared.inputs.words());
        let pinned = &mut memory.slots[slot].inputs;
        pinned.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        let pinned = &memory.slots[slot].inputs;
        let stream = &self.runner.stream;
        memory.inputs.write_async(0, pinned, 0, bytes.len(), stream)
    }

    fn copy_results(&mut self, index: usize, slot: usize) -> Result<(), CudaError> {
        let prepared = &self.steps[index];
        let Some(memory) = &mut self.runner.memory else {
            return Ok(());
        };
        let (stream, slot) = (&self.runner.stream, &mut memory.slots[slot]);
        slot.step = StepId(index as u32);
        let fault = &memory.fault;
        fault.read_async(0, &mut slot.results, 0, FAULT_BYTES, stream)?;
        for (offset, at, bytes, _) in results(prepared) {
            let results = &mut slot.results;
            memory
                .arena
                .read_async(offset, results, at, bytes, stream)?;
        }
        slot.done.record(stream)
    }

    /// Replays the step's graph.
    fn replay(&mut self, index: usize) -> Result<(), CudaError> {
        match &self.steps[index].graph {
            Some(graph) => graph.launch(&self.runner.stream),
            None => Ok(()),
        }
    }

    /// Launches the step's kernels one by one.
    fn eager(&mut self, index: usize) -> Result<(), BackendError> {
        let prepared = &self.steps[index];
        let ready = prepared.ready.as_deref().unwrap_or_default();
        for (i, (node, launches)) in prepared.plan.ops.iter().zip(ready).enumerate() {
            let during = |error: CudaError| BackendError::Device {
                device: self.name(),
                reason: format!(
                    "in {} ({}) of plan {}: {error}",
                    node.label,
                    node.op.kind(),
                    prepared.plan.name
                ),
            };
            self.options.ranks.0.begin(i);
            let parts = node.op.parts();
            if self.options.poison {
                self.fill_outputs(prepared, parts).map_err(during)?;
            }
            for r in launches {
                r.put(false, &self.runner.stream).map_err(during)?;
            }
            if self.options.poison || self.options.sync_launches {
                self.runner.stream.synchronise().map_err(during)?;
                self.check_fault(prepared)?;
            }
            if self.options.poison {
                self.check_outputs(prepared, i, parts)?;
            }
        }
        Ok(())
    }

    fn fill_outputs(&self, prepared: &Prepared, parts: &[Op]) -> Result<(), CudaError> {
        let Some(memory) = &self.runner.memory else {
            return Ok(());
        };
        for id in parts.iter().flat_map(|part| part.access().writes) {
            let buffer = prepared.plan.buffer(id);
            if let Some(offset) = prepared.arrangement.offsets[id.index()] {
                let words = buffer.elements();
                let (word, stream) = (poison_word(buffer), &self.runner.stream);
                memory.arena.fill_words(offset, words, word, stream)?;
            }
        }
        Ok(())
    }

    /// Looks for poison in what an operation has written, in the order in which the reference does.
    fn check_outputs(
        &self,
        prepared: &Prepared,
        index: usize,
        parts: &[Op],
    ) -> Result<(), BackendError> {
        let Some(memory) = &self.runner.memory else {
            return Ok(());
        };
        let (plan, label) = (&prepared.plan, &prepared.plan.ops[index].label);
        for part in parts {
            let access = part.access();
            for id in access.writes.iter().chain(&access.updates) {
                let buffer = plan.buffer(*id);
                if buffer.kind == BufferKind::Carry {
                    continue;
                }
                let places = Places { prepared, memory };
                let checked = poison_check(plan, part, *id)
                    .map_err(|reason| CudaError::Kernel {
                        kernel: "poison_check".into(),
                        reason,
                    })
                    .and_then(|l| {
                        let r = places.ready(self.code(), &l.kernel, &l, index)?;
                        r.put(true, &self.runner.stream)?;
                        self.read_fault()
                    });
                let [code, _, row, element] = checked.map_err(|e| self.failed(e))?;
                if code == fault::POISON {
                    self.clear_fault()?;
                    return Err(BackendError::Poison {
                        plan: plan.name.clone(),
                        op: label.clone(),
                        buffer: buffer.name.clone(),
                        row: row as usize,
                        element: element as usize,
                    });
                }
            }
        }
        Ok(())
    }

    fn read_fault(&self) -> Result<[i32; 4], CudaError> {
        let mut bytes = [0u8; FAULT_BYTES];
        self.runner.stream.synchronise()?;
        if let Some(memory) = &self.runner.memory {
            // Nothing of this rank runs any more; another one on this GPU may.
            memory.fault.read(0, &mut bytes)?;
        }
        Ok(words(&bytes))
    }

    fn clear_fault(&self) -> Result<(), BackendError> {
        let Some(memory) = &self.runner.memory else {
            return Ok(());
        };
        // In the stream, and not for the whole GPU: a kernel of another rank on it may wait for this one.
        let cleared = memory.fault.fill(0, &self.runner.stream);
        cleared.map_err(|e| self.failed(e))
    }

    fn check_fault(&self, prepared: &Prepared) -> Result<(), BackendError> {
        let fault = self.read_fault().map_err(|e| self.failed(e))?;
        if fault[0] == 0 {
            return Ok(());
        }
        self.clear_fault()?;
        Err(self.fault(prepared, fault))
    }

    /// A step's fault as an error.
    fn fault(&self, prepared: &Prepared, [code, op, value, bound]: [i32; 4]) -> BackendError {
        let plan = &prepared.plan;
        let node = plan.ops.get(op as usize);
        let label = node.map_or_else(|| format!("operation {op}"), |node| node.label.clone());
        let what = match code {
            fault::TOKEN => "token",
            fault::POSITION => "chosen position",
            fault::EXPERT => "expert",
            fault::DEADLINE => {
                if let Some(failure) = self.options.ranks.0.failure() {
                    return failure.in_plan(plan);
                }
                return BackendError::Device {
                    device: self.name(),
                    reason: format!(
                        "rank {bound} waited in {label} of plan {} for rank {value}, which did not come in time",
                        plan.name
                    ),
                };
            }
            other => {
                return BackendError::Device {
                    device: self.name(),
                    reason: format!("{label} of plan {} raised fault {other}", plan.name),
                };
            }
        };
        BackendError::OutOfRange {
            plan: plan.name.clone(),
            op: label,
            what: what.into(),
            found: i64::from(value),
            bound: usize::try_from(bound).unwrap_or(0),
        }
    }

    /// Waits for a step, and gives its results.
    pub(crate) fn collect(&mut self, slot: u64) -> Result<StepResults, BackendError> {
        let Some(memory) = &self.runner.memory else {
            return Ok(StepResults::default());
        };
        let index = usize::try_from(slot).unwrap_or(usize::MAX);
        let Some(slot) = memory.slots.get(index) else {
            return Err(BackendError::Missing {
                plan: "of this call".into(),
                what: "ticket",
                name: slot.to_string(),
                action: "handed out",
            });
        };
        let prepared = &self.steps[slot.step.0 as usize];
        slot.done.wait().map_err(|error| BackendError::Device {
            device: self.name(),
            reason: format!(
                "plan {} failed; `--sync-launches` finds the operation: {error}",
                prepared.plan.name
            ),
        })?;
        // Also without a fault of its own: what a rank got from one that had given up is worth nothing.
        if let Some(failure) = self.options.ranks.0.failure() {
            return Err(failure.in_plan(&prepared.plan));
        }
        let bytes = slot.results.bytes();
        let fault = words(&bytes[..FAULT_BYTES]);
        if fault[0] != 0 {
            self.clear_fault()?;
            return Err(self.fault(prepared, fault));
        }
        let results = results(prepared).map(|(_, at, bytes_of, b)| {
            let bytes = &bytes[at..at + bytes_of];
            let words = bytes.chunks_exact(4);
            let words = words.map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]));
            (b.name.clone(), words.collect())
        });
        Ok(StepResults::new(results.collect::<HashMap<_, Vec<u32>>>()))
    }
}

/// The results of a step: where each lies in the arena, where it goes in a slot, its bytes, its buffer.
fn results(prepared: &Prepared) -> impl Iterator<Item = (usize, usize, usize, &BufferDecl)> {
    debug_assert!(result_bytes(&prepared.plan) < usize::MAX - FAULT_BYTES);
    let buffers = prepared
        .plan
        .buffers_where(|kind| *kind == BufferKind::Result);
    let mut at = FAULT_BYTES;
    buffers.filter_map(move |(id, b)| {
        let bytes = b.elements() * 4;
        let offset = prepared.arrangement.offsets[id.index()]?;
        let place = (offset, at, bytes, b);
        at += bytes;
        Some(place)
    })
}

fn words(bytes: &[u8]) -> [i32; 4] {
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(4)) {
        *word = i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    words
}
