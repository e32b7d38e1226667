//! Where the time of a step goes: when each of its operations began and ended.
//!
//! A backend stamps the operations by a clock of its device ([`crate::Backend::profile`]), and takes the time of the whole run apart
//! from these stamps: so whoever reads them can tell whether they account for the step.

/// One operation in one run, in nanoseconds since the run began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpTime {
    /// When it began: the inputs of the first operation were in place, or the operation before it had ended.
    pub start_ns: u64,
    /// When it ended: all that it writes was written.
    pub end_ns: u64,
}

impl OpTime {
    /// How long it took.
    pub fn ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }
}

/// One run of a step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Profile {
    /// Each operation of the plan, in its order.
    pub ops: Vec<OpTime>,
    /// The whole run, from before its first operation to after its last, by a measurement of its own.
    pub step_ns: u64,
}

impl Profile {
    /// Time before each operation in which none ran: since the one before it ended, or since the run began.
    pub fn gaps(&self) -> impl Iterator<Item = u64> {
        let mut last = 0;
        self.ops.iter().map(move |op| {
            let gap = op.start_ns.saturating_sub(last);
            last = last.max(op.end_ns);
            gap
        })
    }

    /// What operations and the gaps before them add up to: the end of the last operation, unless stamps overlap.
    pub fn accounted_ns(&self) -> u64 {
        self.ops.iter().map(OpTime::ns).sum::<u64>() + self.gaps().sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_and_gaps_add_up_to_the_end_of_the_last() {
        let op = |start_ns, end_ns| OpTime { start_ns, end_ns };
        let profile = Profile {
            ops: vec![op(3, 10), op(10, 14), op(20, 21)],
            step_ns: 23,
        };
        assert_eq!(profile.gaps().collect::<Vec<_>>(), [3, 0, 6]);
        assert_eq!(profile.accounted_ns(), 21);
    }
}
