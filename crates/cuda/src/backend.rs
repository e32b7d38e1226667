//! The [`Backend`] contract on one GPU: it owns the rank's memory there, and its prepared steps.

use std::collections::HashMap;

use glim_plan::{
    Allocated, Backend, BackendError, Caps, GgmlType, InputKind, Plan, Profile, RandomBlocks,
    ReadTarget, Resident, Rows, StateDecl, StateKind, StepId, StepInputs, StepResults, Ticket,
    WeightGroup, WeightSource, arrange, bind, check, check_arrangement,
};

use crate::cache::Cache;
use crate::code::Code;
use crate::collective::Place;
use crate::driver::{DeviceMemory, Gpu, Held, Stream};
use crate::error::CudaError;
use crate::faults::DeviceFault;
use crate::program::{PATTERNS, Program, Target, Work, poison_check};
use crate::random::Random;
use crate::run::{Memory, Prepared, Runner};
use crate::weights::Weights;

/// How products are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Math {
    /// Activations stay f32.
    Exact,
    /// Activations are rounded to 8 bits where a weight is quantised.
    Fast,
}

/// How the backend runs.
#[derive(Debug, Clone)]
pub struct CudaOptions {
    /// Ordinal of the GPU.
    pub gpu: usize,
    /// Arithmetic.
    pub math: Math,
    /// Capture each step once and replay it; otherwise its kernels are launched one by one.
    pub graphs: bool,
    /// Fill every output with NaN before its operation, and look for NaN afterwards. Launches one by one.
    pub poison: bool,
    /// Wait after every operation, so that a failure names the one that failed. Launches one by one.
    pub sync_launches: bool,
    /// Make each buffer an allocation of its own, new and exactly as long as needed, and free it at once: so that what watches allocations
    /// (compute-sanitizer, the emulator) sees what leaves them.
    pub apart: bool,
    /// This rank's place among those of the model.
    pub ranks: Place,
    /// Where compiled kernels are kept.
    pub cache: Cache,
    /// Caches begin as random numbers and not as zeros: for measuring steps on a context that nobody has computed.
    pub random_caches: bool,
}

impl Default for CudaOptions {
    fn default() -> Self {
        Self {
            gpu: 0,
            math: Math::Fast,
            graphs: true,
            poison: false,
            sync_launches: false,
            apart: false,
            ranks: Place::alone(),
            cache: Cache::default(),
            random_caches: false,
        }
    }
}

/// All states, one behind the other in one allocation.
#[derive(Debug)]
struct States {
    memory: DeviceMemory,
    /// Declaration, offset and bytes of each.
    places: HashMap<String, (StateDecl, usize, usize)>,
}

/// One rank on one GPU.
pub struct CudaBackend {
    pub(crate) options: CudaOptions,
    pub(crate) gpu: Gpu,
    pub(crate) weights: Weights,
    states: Option<States>,
    carries: HashMap<String, DeviceMemory>,
    pub(crate) block_size: usize,
    pub(crate) blocks: usize,
    pub(crate) sequence_slots: usize,
    code: Code,
    /// The kernels once more, with time stamps; made when they are first asked for.
    pub(crate) stamped: Option<Code>,
    pub(crate) steps: Vec<Prepared>,
    pub(crate) runner: Runner,
    /// Those that tests have asked for.
    pub(crate) faults: Vec<DeviceFault>,
}

impl CudaBackend {
    /// A backend without weights.
    ///
    /// # Errors
    /// If the GPU cannot be opened; the driver must be there ([`crate::probe()`] says whether).
    pub fn new(options: CudaOptions) -> Result<Self, CudaError> {
        crate::driver::start(options.gpu)?;
        let gpu = Gpu::open(options.gpu)?;
        let gpu = if options.apart { gpu.apart() } else { gpu };
        let stream = Stream::new(&gpu)?;
        Ok(Self {
            code: Code::new(&gpu, options.cache.clone()),
            stamped: None,
            runner: Runner::new(stream),
            gpu,
            options,
            weights: Weights::default(),
            states: None,
            carries: HashMap::new(),
            block_size: 0,
            blocks: 0,
            sequence_slots: 0,
            steps: Vec::new(),
            faults: Vec::new(),
        })
    }

    /// What it has asked its GPU for, and what it holds there. What its ranks meet in is the group's.
    pub fn held(&self) -> Held {
        self.gpu.held()
    }

    /// What people call it.
    pub(crate) fn name(&self) -> String {
        let facts = self.gpu.facts();
        let math = match self.options.math {
            Math::Exact => "exact",
            Math::Fast => "fast",
        };
        format!("cuda:{} ({}, {math} math)", facts.ordinal, facts.name)
    }

    pub(crate) fn failed(&self, error: CudaError) -> BackendError {
        BackendError::Device {
            device: self.name(),
            reason: error.to_string(),
        }
    }

    fn unsupported(&self, plan: &Plan, reason: String) -> BackendError {
        BackendError::Unsupported {
            backend: self.name(),
            plan: plan.name.clone(),
            reason,
        }
    }

    /// Kernels that are not of the plan's own operations: those that look for poison.
    fn poison_launches(&self, plan: &Plan) -> Result<Vec<crate::program::Launch>, String> {
        if !self.options.poison {
            return Ok(Vec::new());
        }
        let node = plan.ops.first();
        let part = node.and_then(|node| node.op.parts().first());
        let write = part.and_then(|op| Some((op, *op.access().writes.first()?)));
        write
            .map(|(op, id)| poison_check(plan, op, id))
            .into_iter()
            .collect()
    }
}

impl Resident for CudaBackend {
    /// Its address.
    type Place = u64;

    fn name(&self) -> String {
        self.name()
    }

    fn rank(&self) -> (usize, usize) {
        (self.options.ranks.rank(), self.options.ranks.world_size())
    }

    fn block_size(&self) -> usize {
        self.block_size
    }

    fn sequence_slots(&self) -> usize {
        self.sequence_slots
    }

    fn weight(&self, name: &str) -> Option<(GgmlType, &[usize], u64)> {
        let weight = self.weights.get(name)?;
        Some((weight.ty, &weight.shape, weight.address))
    }

    fn state(&self, name: &str) -> Option<(&StateDecl, u64)> {
        let states = self.states.as_ref()?;
        let (decl, offset, _) = states.places.get(name)?;
        Some((decl, states.memory.address() + *offset as u64))
    }

    fn carry(&mut self, name: &str) -> Result<u64, BackendError> {
        if let Some(memory) = self.carries.get(name) {
            return Ok(memory.address());
        }
        let (bytes, what) = (self.sequence_slots * 4, format!("carry {name}"));
        let memory = DeviceMemory::new(&self.gpu, bytes, &what)
            .and_then(|m| m.write(0, &vec![0; m.bytes()]).map(|()| m))
            .map_err(|e| self.failed(e))?;
        let address = memory.address();
        self.carries.insert(name.to_owned(), memory);
        Ok(address)
    }
}

impl Backend for CudaBackend {
    fn caps(&self) -> Caps {
        Caps {
            name: self.name(),
            patterns: PATTERNS.to_vec(),
            weight_types: GgmlType::ALL
                .iter()
                .copied()
                .filter(|ty| ty.can_decode())
                .collect(),
            launch_ahead: !self.options.poison && !self.options.sync_launches,
        }
    }

    fn load(
        &mut self,
        groups: &[WeightGroup],
        source: &dyn WeightSource,
    ) -> Result<(), BackendError> {
        // Steps that were prepared before hold addresses of weights.
        self.forget_steps()?;
        let cache = &self.options.cache;
        self.weights.load(&self.gpu, cache, groups, source)?;
        self.spoil_weights().map_err(|e| self.failed(e))
    }

    fn alloc_state(
        &mut self,
        decls: &[StateDecl],
        block_size: usize,
        blocks: usize,
        sequence_slots: usize,
    ) -> Result<(), BackendError> {
        // What there was before is gone, and with it the steps that pointed to it.
        self.forget_steps()?;
        self.states = None;
        self.carries.clear();
        (self.block_size, self.blocks, self.sequence_slots) = (block_size, blocks, sequence_slots);
        let (mut places, mut end) = (HashMap::new(), 0usize);
        for decl in decls {
            let rows = match decl.kind {
                StateKind::Paged { .. } => block_size * blocks,
                StateKind::Slot { .. } => sequence_slots,
            };
            let bytes = rows * decl.shape.iter().product::<usize>() * size_of::<f32>();
            places.insert(decl.name.clone(), (decl.clone(), end, bytes));
            end += bytes.next_multiple_of(STATE_ALIGN);
        }
        let fill = if self.options.poison { f32::NAN } else { 0.0 };
        let memory = DeviceMemory::new(&self.gpu, end, "caches")
            .and_then(|memory| {
                memory.fill(fill.to_bits(), self.runner.stream())?;
                self.runner.stream().synchronise()?;
                if self.options.random_caches && !self.options.poison {
                    random_numbers(&self.gpu, &self.options.cache, &memory)?;
                }
                Ok(memory)
            })
            .map_err(|e| self.failed(e))?;
        self.states = Some(States { memory, places });
        Ok(())
    }

    fn prepare(&mut self, plan: &Plan) -> Result<StepId, BackendError> {
        check(plan)?;
        let bound = bind(plan, self)?.into_iter();
        let bound = bound.map(|address| address.unwrap_or(0)).collect();
        let arrangement = arrange(plan);
        check_arrangement(plan, &arrangement)?;
        let target = Target {
            gpu: self.gpu.facts(),
            math: self.options.math,
            weights: &self.weights,
            ranks: &*self.options.ranks.0,
            poison: self.options.poison,
        };
        let program = Program::new(plan, target);
        let mut program = program.map_err(|reason| self.unsupported(plan, reason))?;
        self.spoil_program(
            &mut program,
            plan.ops.iter().map(|node| node.label.as_str()),
        );
        let extra = self.poison_launches(plan);
        let extra = extra.map_err(|reason| self.unsupported(plan, reason))?;
        let work = program.ops.iter().flat_map(|op| &op.work);
        let launches = work.filter_map(Work::kernel).chain(&extra);
        let common = Prepared::common_kernels();
        let common = common.iter().map(|(kernel, shared)| (kernel, *shared));
        let kernels = launches.map(|launch| (&launch.kernel, launch.shared));
        let kernels = kernels.chain(common);
        let loaded = self.code.load(kernels);
        loaded.map_err(|e| self.failed(e))?;
        let met = self.options.ranks.0.connect(self.runner.stream());
        met.map_err(|e| self.failed(e))?;

        let id = StepId(self.steps.len() as u32);
        self.steps
            .push(Prepared::new(plan.clone(), arrangement, bound, program));
        Ok(id)
    }

    fn seal(&mut self) -> Result<(), BackendError> {
        self.make_ready()
    }

    fn allocated(&self) -> Option<Allocated> {
        let carries: usize = self.carries.values().map(DeviceMemory::bytes).sum();
        let states = self.states.as_ref().map_or(0, |s| s.memory.bytes());
        // Nothing of steps before they are sealed.
        let memory = self.runner.memory().map(Memory::device_bytes);
        let (arena, rest) = memory.unwrap_or_default();
        Some(Allocated {
            weights: self.weights.bytes(),
            states: (states + carries) as u64,
            arena,
            working: rest + self.options.ranks.0.bytes() as u64,
            pinned: self.gpu.held().pinned_bytes,
        })
    }

    fn run(&mut self, step: StepId, inputs: &StepInputs) -> Result<StepResults, BackendError> {
        let slot = self.enqueue(step, inputs)?;
        self.collect(slot)
    }

    fn submit(&mut self, step: StepId, inputs: &StepInputs) -> Result<Ticket, BackendError> {
        self.enqueue(step, inputs).map(Ticket::Running)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<StepResults, BackendError> {
        match ticket {
            Ticket::Running(slot) => self.collect(slot),
            Ticket::Done(results) => Ok(results),
        }
    }

    fn profile(
        &mut self,
        step: StepId,
        inputs: &StepInputs,
        repeats: usize,
    ) -> Result<Vec<Profile>, BackendError> {
        self.profile_step(step, inputs, repeats)
    }

    fn nodes(&self, step: StepId) -> Option<usize> {
        self.steps.get(step.0 as usize)?.nodes()
    }

    fn hash(&self, weight: &str) -> Result<Option<u64>, BackendError> {
        let hash = self.weights.hash(&self.gpu, &self.options.cache, weight);
        let hash = hash.ok_or_else(|| BackendError::Missing {
            plan: "of this call".into(),
            what: "weight",
            name: weight.into(),
            action: "loaded",
        })?;
        hash.map(Some).map_err(|e| self.failed(e))
    }

    fn read(&self, target: ReadTarget<'_>) -> Result<Vec<u8>, BackendError> {
        let missing = |what, name: &str| BackendError::Missing {
            plan: "of this call".into(),
            what,
            name: name.into(),
            action: "loaded",
        };
        let bytes = match target {
            ReadTarget::Weight(name) => {
                let bytes = self.weights.read(name);
                bytes.ok_or_else(|| missing("weight", name))?
            }
            ReadTarget::State(name) => {
                let states = self.states.as_ref();
                let place = states.and_then(|s| Some((s, s.places.get(name)?)));
                let (states, (_, offset, bytes)) = place.ok_or_else(|| missing("state", name))?;
                let mut out = vec![0; *bytes];
                self.runner
                    .stream()
                    .synchronise()
                    .map_err(|e| self.failed(e))?;
                states.memory.read(*offset, &mut out).map(|()| out)
            }
            ReadTarget::Carry(name) => {
                let memory = self.carries.get(name);
                let memory = memory.ok_or_else(|| missing("carry", name))?;
                let mut out = vec![0; memory.bytes()];
                let stream = self.runner.stream();
                stream
                    .synchronise()
                    .and_then(|()| memory.read(0, &mut out))
                    .map(|()| out)
            }
            ReadTarget::Buffer(step, id) => {
                let prepared = self.steps.get(step.0 as usize);
                let prepared = prepared.ok_or_else(|| missing("step", &step.0.to_string()))?;
                let buffer = prepared.plan.buffer(id);
                let offset = prepared.arrangement.offsets[id.index()];
                let offset = offset.ok_or_else(|| missing("arena buffer", &buffer.name))?;
                let mut out = vec![0; buffer.elements() * 4];
                let memory = self.runner.memory();
                memory.and_then(|m| {
                    self.runner.stream().synchronise()?;
                    m.arena.read(offset, &mut out)?;
                    Ok(out)
                })
            }
        };
        bytes.map_err(|e| self.failed(e))
    }
}

impl Drop for CudaBackend {
    /// Memory is let go of below, and no kernel may use it any more then.
    fn drop(&mut self) {
        // If it fails, kernels do not run any more either.
        let _ = self.runner.stream().synchronise();
    }
}

impl CudaBackend {
    /// The kernels of the prepared plans, loaded.
    pub(crate) fn code(&self) -> &Code {
        &self.code
    }
}

/// Fills memory with numbers of mean 0 and deviation 1.
fn random_numbers(gpu: &Gpu, cache: &Cache, memory: &DeviceMemory) -> Result<(), CudaError> {
    let count = memory.bytes() / size_of::<f32>();
    let numbers = RandomBlocks {
        ty: GgmlType::F32,
        shape: vec![count],
        key: 0,
        scale: 1.0,
    };
    let mut random = Random::new(gpu, cache)?;
    random.fill(memory.address(), count, &numbers)?;
    random.finish()
}

/// States begin at multiples of this, so that their rows can be read 16 bytes at a time.
const STATE_ALIGN: usize = 256;

/// The words of `Rows` for a buffer: pointers to the live rows' numbers among the inputs, and the capacity.
pub(crate) fn rows_param(
    plan: &Plan,
    rows: Rows,
    capacity: usize,
    input: impl Fn(InputKind) -> Option<(u64, usize)>,
) -> [u64; 3] {
    let (live, output_rows) = match rows {
        // The last word of `cu_seqlens`.
        Rows::Tokens => (
            input(InputKind::CuSeqlens).map(|(at, words)| at + (words as u64 - 1) * 4),
            None,
        ),
        Rows::Outputs => (None, input(InputKind::OutputRows).map(|(at, _)| at)),
        Rows::Whole => (None, None),
    };
    debug_assert!(capacity <= i32::MAX as usize, "{}", plan.name);
    [live.unwrap_or(0), output_rows.unwrap_or(0), capacity as u64]
}
