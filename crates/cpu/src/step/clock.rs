//! The clock of a run that is watched.
//!
//! An operation is over when its last section is: the threads of the pool meet at the end of each, so the thread that drives the
//! step can take the time for all of them.

use std::time::Instant;

use glim_plan::{OpTime, Profile};

/// Stamps of one run so far.
pub(crate) struct Clock {
    zero: Instant,
    begun_ns: u64,
    ops: Vec<OpTime>,
}

impl Clock {
    /// A run of `ops` operations that begins now.
    pub(crate) fn start(ops: usize) -> Self {
        Self {
            ops: Vec::with_capacity(ops),
            begun_ns: 0,
            zero: Instant::now(),
        }
    }

    fn now(&self) -> u64 {
        self.zero.elapsed().as_nanos() as u64
    }

    pub(super) fn begin(&mut self) {
        self.begun_ns = self.now();
    }

    pub(super) fn end(&mut self) {
        let (start_ns, end_ns) = (self.begun_ns, self.now());
        self.ops.push(OpTime { start_ns, end_ns });
    }

    /// The run ends now.
    pub(crate) fn stop(self) -> Profile {
        Profile {
            step_ns: self.now(),
            ops: self.ops,
        }
    }
}
