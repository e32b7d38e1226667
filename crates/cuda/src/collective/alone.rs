//! No others: a rank that is alone, or one of several whose others are replaced by a time.

use std::time::Duration;

use super::pieces::Pieces;
use super::{Collective, Gathering, Sum};
use crate::kernels::Kernel;
use crate::program::{Arg, Builder, int};

const THREADS: u32 = 256;

/// A rank that meets nobody.
#[derive(Debug)]
pub(super) struct WithoutOthers {
    pub(super) rank: usize,
    pub(super) world_size: usize,
    /// That each collective takes.
    pub(super) latency: Duration,
}

impl WithoutOthers {
    fn nanoseconds(&self) -> Arg {
        Arg::U64(u64::try_from(self.latency.as_nanos()).unwrap_or(u64::MAX))
    }
}

/// Blocks for so many elements, a few of which each thread takes: never more than are resident at once.
pub(super) fn blocks(b: &Builder<'_>, elements: usize) -> u32 {
    let wanted = elements.div_ceil(THREADS as usize * 4).max(1);
    let resident = b.gpu().multiprocessors.max(1) * 4;
    u32::try_from(wanted).unwrap_or(u32::MAX).min(resident)
}

impl Collective for WithoutOthers {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world_size
    }

    fn sum(&self, b: &mut Builder<'_>, sum: &Sum) -> Result<(), String> {
        let grid = blocks(b, b.rows(sum.x).saturating_mul(sum.width));
        let defines = [sum.wire.define(), ("UNIT", "4")];
        let args = vec![
            Arg::Buffer(sum.x),
            Arg::Buffer(sum.out),
            Arg::Rows(sum.x),
            Arg::I32(int(sum.width)?),
            self.nanoseconds(),
        ];
        let kernel = Kernel::new("collective_local", "all_reduce_alone", &defines);
        b.launch(kernel, [grid, 1, 1], THREADS, 0, args);
        Ok(())
    }

    fn gather(&self, b: &mut Builder<'_>, gathering: &Gathering) -> Result<(), String> {
        for pieces in Pieces::all(gathering, self.world_size) {
            let grid = blocks(b, b.rows(pieces.rows()).saturating_mul(pieces.widest()));
            let args = vec![
                pieces.argument(b)?,
                Arg::Rows(pieces.rows()),
                Arg::I32(int(self.rank)?),
                Arg::I32(int(self.world_size)?),
                self.nanoseconds(),
            ];
            let defines = pieces.defines(gathering.wire);
            let kernel = Kernel::new("collective_local", "all_gather_alone", &defines);
            b.launch(kernel, [grid, 1, 1], THREADS, 0, args);
        }
        Ok(())
    }
}
