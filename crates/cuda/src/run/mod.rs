//! Running prepared steps: put into the stream, launched one by one or as a graph, results and faults read back.
//!
//! The life of a step: `prepare` checks its plan and makes its [`Program`] ([`Prepared`]); `seal` makes the memory that steps share
//! ([`Memory`]), fills in the addresses and captures the graph ([`Made`]); then it runs, and nothing is allocated any more. A step that
//! was prepared after the last `seal` is sealed by its first run.
//!
//! Order of a run in the stream: a kernel brings the input block from pinned memory, the step's kernels run, one takes fault and results to
//! pinned memory ([`transfer`]), an event is recorded. Slots of pinned memory take turns, so that a step can be put behind one that still runs.

mod faults;
mod memory;
mod places;
mod poison;
mod transfer;

use std::sync::Arc;

use glim_plan::{
    Arrangement, BackendError, BufferKind, LiveBounds, LiveStep, Plan, ResultLayout, StepId,
    StepInputs, StepResults,
};

use self::faults::Fault;
pub(crate) use self::memory::Memory;
use self::memory::Needs;
use self::places::{Places, Ready};
use self::transfer::Transfer;
use crate::backend::CudaBackend;
use crate::code::Code;
use crate::driver::{Gpu, Graph, Stream};
use crate::error::CudaError;
use crate::kernels::Kernel;
use crate::program::{Program, Work};

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
    results: Arc<ResultLayout>,
    /// By result: where it lies in the arena, and where it goes in a slot; in bytes, with its length.
    copies: Vec<[usize; 3]>,
    made: Option<Made>,
}

/// What a step runs with: its own kernels, or another form of them.
#[derive(Debug)]
pub(crate) struct Made {
    /// Its launches with all arguments, by operation.
    launches: Vec<Vec<Ready>>,
    /// The same captured, where steps are replayed.
    graph: Option<Graph>,
}

impl Made {
    /// Makes it of a form of each kernel, which is loaded in `code`.
    pub(crate) fn new(
        prepared: &Prepared,
        runner: &Runner,
        code: &Code,
        form: impl Fn(&Kernel) -> Kernel,
        is_captured: bool,
    ) -> Result<Self, CudaError> {
        let memory = runner.memory()?;
        let launches = Places { prepared, memory }.program(code, form)?;
        let graph = is_captured.then(|| capture(&launches, &runner.stream));
        let graph = graph.transpose()?;
        // Now, and not at its first launch, when another rank's kernel may wait for it.
        if let Some(graph) = &graph {
            graph.upload(&runner.stream)?;
        }
        Ok(Self { launches, graph })
    }

    /// Puts it into the stream as it is. The step's inputs are there already.
    pub(crate) fn launch(&self, stream: &Stream) -> Result<(), CudaError> {
        match &self.graph {
            Some(graph) => graph.launch(stream),
            None => {
                let mut launches = self.launches.iter().flatten();
                launches.try_for_each(|r| r.put(false, stream))
            }
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
        let results = ResultLayout::of(&plan);
        let ids = plan.buffers_where(|kind| *kind == BufferKind::Result);
        let copies = ids.zip(results.iter()).filter_map(|((id, _), (_, words))| {
            let from = arrangement.offsets[id.index()]?;
            Some([from, faults::BYTES + words.start * 4, words.len() * 4])
        });
        Self {
            copies: copies.collect(),
            results: Arc::new(results),
            inputs: StepInputs::new(&plan),
            plan,
            arrangement,
            bound,
            program,
            made: None,
        }
    }

    /// Bytes that it needs of what steps share.
    fn needs(&self) -> Needs {
        Needs {
            arena: self.arrangement.arena_bytes,
            scratch: self.program.scratch,
            inputs: self.inputs.words().len() * 4,
            results: self.results.words() * 4,
        }
    }

    /// The grid of each launch, by operation; `None` for what a library launches.
    pub(crate) fn grids(&self) -> Vec<Vec<Option<[u32; 3]>>> {
        let grid = |work: &Work| work.kernel().map(|launch| launch.grid);
        let ops = self.program.ops.iter();
        ops.map(|op| op.work.iter().map(grid).collect()).collect()
    }

    /// Nodes of its graph, once there is one.
    pub(crate) fn nodes(&self) -> Option<usize> {
        self.made.as_ref()?.graph.as_ref().map(Graph::nodes)
    }

    /// What a step needs beside its own kernels.
    pub(crate) fn common_kernels() -> [(Kernel, u32); 1] {
        [(Transfer::kernel(), 0)]
    }

    /// A form of each kernel, with the shared memory that its launch has.
    pub(crate) fn kernels(&self, form: impl Fn(&Kernel) -> Kernel) -> Vec<(Kernel, u32)> {
        let work = self.program.ops.iter().flat_map(|op| &op.work);
        let launches = work.filter_map(Work::kernel);
        launches.map(|l| (form(&l.kernel), l.shared)).collect()
    }
}

/// The stream that steps run in, and the memory that they share.
#[derive(Debug)]
pub(crate) struct Runner {
    stream: Stream,
    memory: Option<Memory>,
    transfer: Option<Transfer>,
    /// Of the next step that is put into the stream.
    ticket: u64,
}

impl Runner {
    pub(crate) fn new(stream: Stream) -> Self {
        Self {
            stream,
            memory: None,
            transfer: None,
            ticket: 0,
        }
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The memory of steps; an error if no step was sealed.
    pub(crate) fn memory(&self) -> Result<&Memory, CudaError> {
        self.memory.as_ref().ok_or(CudaError::Unsealed)
    }

    /// What takes steps in and out.
    fn ways(&mut self) -> Result<(&mut Memory, &Transfer, &Stream), CudaError> {
        let memory = self.memory.as_mut().ok_or(CudaError::Unsealed)?;
        let transfer = self.transfer.as_ref().ok_or(CudaError::Unsealed)?;
        Ok((memory, transfer, &self.stream))
    }

    /// Makes the memory fit; whether addresses have changed.
    fn fit(&mut self, gpu: &Gpu, needs: Needs) -> Result<bool, CudaError> {
        let old = self.memory.take();
        let before = old.as_ref().map(Memory::addresses);
        let memory = Memory::fitting(old, gpu, needs, &self.stream)?;
        let moved = before != Some(memory.addresses());
        self.memory = Some(memory);
        Ok(moved)
    }

    /// No ticket is worth anything any more: its step is gone.
    pub(crate) fn forget_tickets(&mut self) {
        if let Some(memory) = &mut self.memory {
            memory.forget_tickets();
        }
    }

    /// Copies a step's inputs to the GPU, from the slot of its ticket.
    fn send(&mut self, prepared: &Prepared, ticket: u64) -> Result<(), CudaError> {
        let (memory, transfer, stream) = self.ways()?;
        let bytes: &[u8] = bytemuck::cast_slice(prepared.inputs.words());
        memory.send(ticket, bytes, transfer, stream)
    }

    /// Copies fault and results to the slot of a ticket.
    pub(crate) fn fetch(
        &mut self,
        prepared: &Prepared,
        ticket: u64,
        step: StepId,
    ) -> Result<(), CudaError> {
        let (memory, transfer, stream) = self.ways()?;
        memory.fetch(ticket, step, &prepared.copies, transfer, stream)
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

/// A step with all that it runs with.
struct Running<'a> {
    backend: &'a CudaBackend,
    prepared: &'a Prepared,
    made: &'a Made,
    memory: &'a Memory,
    stream: &'a Stream,
}

impl CudaBackend {
    /// Makes what prepared steps lack: memory, addresses, graphs. All ranks make theirs together, while none has a kernel that waits: the
    /// driver may have to wait until the GPU is idle, and another rank's kernel there would wait for this one. They have prepared the
    /// same steps, so that all lack something or none does.
    pub(crate) fn make_ready(&mut self) -> Result<(), BackendError> {
        if self.steps.iter().all(|step| step.made.is_some()) {
            return Ok(());
        }
        let idle = self.runner.stream.synchronise();
        idle.map_err(|e| self.failed(e))?;
        self.assemble()?;
        let made = self.make();
        made.map_err(|e| self.failed(e))?;
        self.assemble()
    }

    /// Waits until the hosts of all ranks are here.
    pub(crate) fn assemble(&self) -> Result<(), BackendError> {
        let met = self.options.ranks.0.assemble();
        // In the plan that was prepared last.
        met.map_err(|failure| match self.steps.last() {
            Some(step) => failure.in_plan(&step.plan),
            None => self.failed(CudaError::Unsealed),
        })
    }

    fn make(&mut self) -> Result<(), CudaError> {
        let needs = self.steps.iter().map(Prepared::needs);
        let needs = needs.fold(Needs::default(), Needs::max);
        if self.runner.fit(&self.gpu, needs)? {
            for step in &mut self.steps {
                step.made = None;
            }
        }
        self.runner.transfer = Some(Transfer::new(self.code())?);
        for index in 0..self.steps.len() {
            if self.steps[index].made.is_some() {
                continue;
            }
            let made = Made::new(
                &self.steps[index],
                &self.runner,
                self.code(),
                Kernel::clone,
                self.captures(),
            )?;
            self.steps[index].made = Some(made);
        }
        self.runner.stream.synchronise()
    }

    /// Whether steps run as captured graphs.
    pub(crate) fn captures(&self) -> bool {
        self.options.graphs && !self.options.poison && !self.options.sync_launches
    }

    /// Forgets all steps, before what they point to goes.
    pub(crate) fn forget_steps(&mut self) -> Result<(), BackendError> {
        let idle = self.runner.stream.synchronise();
        self.steps.clear();
        self.runner.forget_tickets();
        idle.map_err(|e| self.failed(e))
    }

    /// Puts a step into the stream; its ticket.
    pub(crate) fn enqueue(
        &mut self,
        step: StepId,
        inputs: &StepInputs,
    ) -> Result<u64, BackendError> {
        let (index, ticket) = self.begin(step, inputs)?;
        self.running(index)?.launch()?;
        let fetched = self.runner.fetch(&self.steps[index], ticket, step);
        fetched.map_err(|e| self.failed(e))?;
        Ok(ticket)
    }

    /// Checks a step's inputs and puts their copy into the stream; the step's index, and its ticket.
    pub(crate) fn begin(
        &mut self,
        step: StepId,
        inputs: &StepInputs,
    ) -> Result<(usize, u64), BackendError> {
        let index = self.index_of(step)?;
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
        if self.steps[index].made.is_none() {
            self.make_ready()?;
        }
        let ticket = self.runner.ticket;
        self.runner.ticket += 1;
        let sent = self.runner.send(&self.steps[index], ticket);
        sent.map_err(|e| self.failed(e))?;
        Ok((index, ticket))
    }

    /// Where a step lies that was prepared.
    fn index_of(&self, step: StepId) -> Result<usize, BackendError> {
        let index = step.0 as usize;
        match index < self.steps.len() {
            true => Ok(index),
            false => Err(BackendError::Missing {
                plan: "of this call".into(),
                what: "step",
                name: index.to_string(),
                action: "prepared",
            }),
        }
    }

    fn running(&self, index: usize) -> Result<Running<'_>, BackendError> {
        let prepared = &self.steps[index];
        let made = prepared.made.as_ref().ok_or(CudaError::Unsealed);
        let (made, memory) = made
            .and_then(|made| Ok((made, self.runner.memory()?)))
            .map_err(|e| self.failed(e))?;
        Ok(Running {
            backend: self,
            prepared,
            made,
            memory,
            stream: &self.runner.stream,
        })
    }

    /// Waits for a step, and gives its results.
    pub(crate) fn collect(&mut self, ticket: u64) -> Result<StepResults, BackendError> {
        let memory = self.runner.memory().map_err(|e| self.failed(e))?;
        let held = memory.held(ticket);
        let held = held.and_then(|(slot, step)| Some((slot, self.steps.get(step.0 as usize)?)));
        let Some((slot, prepared)) = held else {
            return Err(BackendError::Missing {
                plan: "of this call".into(),
                what: "ticket",
                name: ticket.to_string(),
                action: "handed out, or is of a step that others have overtaken, and its results were not waited for",
            });
        };
        slot.wait().map_err(|error| BackendError::Device {
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
        let (fault, results) = slot.read(prepared.results.words());
        if let Some(fault) = fault {
            let cleared = memory.clear_fault(&self.runner.stream);
            cleared.map_err(|e| self.failed(e))?;
            return Err(self.fault(&prepared.plan, fault));
        }
        Ok(StepResults::packed(&prepared.results, results))
    }
}

impl Running<'_> {
    /// Puts its launches into the stream.
    fn launch(&self) -> Result<(), BackendError> {
        if self.made.graph.is_none() {
            return self.eager();
        }
        let launched = self.made.launch(self.stream);
        launched.map_err(|e| self.backend.failed(e))
    }

    /// Launches the step's kernels one by one.
    fn eager(&self) -> Result<(), BackendError> {
        let Self {
            backend, prepared, ..
        } = self;
        let options = &backend.options;
        for (i, (node, launches)) in prepared
            .plan
            .ops
            .iter()
            .zip(&self.made.launches)
            .enumerate()
        {
            let during = |error: CudaError| BackendError::Operation {
                device: backend.name(),
                plan: prepared.plan.name.clone(),
                op: node.label.clone(),
                reason: error.to_string(),
            };
            options.ranks.0.begin(i);
            let parts = node.op.parts();
            if options.poison {
                self.fill_outputs(parts).map_err(during)?;
            }
            for r in launches {
                r.put(false, self.stream).map_err(during)?;
            }
            if options.poison || options.sync_launches {
                self.stream.synchronise().map_err(during)?;
                if let Some(fault) = self.take_fault().map_err(during)? {
                    return Err(backend.fault(&prepared.plan, fault));
                }
            }
            if options.poison {
                self.check_outputs(i, parts)?;
            }
        }
        Ok(())
    }

    /// What the kernels so far have raised; they have ended. It is cleared.
    fn take_fault(&self) -> Result<Option<Fault>, CudaError> {
        let fault = self.memory.read_fault()?;
        if fault.is_some() {
            self.memory.clear_fault(self.stream)?;
        }
        Ok(fault)
    }
}
