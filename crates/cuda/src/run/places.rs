//! Where a step's buffers lie, and its launches with all their arguments.

use std::sync::Arc;

use glim_plan::{BufferId, BufferKind, InputKind};

use super::Prepared;
use super::memory::Memory;
use crate::backend::rows_param;
use crate::code::Code;
use crate::driver::{Config, Function, Param, Stream, launch};
use crate::error::CudaError;
use crate::kernels::Kernel;
use crate::program::{Arg, Launch, Library, LibraryCall, Work};

/// Work with all its arguments.
#[derive(Debug)]
pub(super) enum Ready {
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
    pub(super) fn put(&self, may_overlap: bool, stream: &Stream) -> Result<(), CudaError> {
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

/// Where a step's buffers lie.
pub(super) struct Places<'a> {
    pub(super) prepared: &'a Prepared,
    pub(super) memory: &'a Memory,
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
    pub(super) fn ready(
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
    pub(super) fn program(
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
