//! What the kernels of collectives are given, as `kernels/include/ranks.cuh` declares it.

use super::{Gathering, MAX_RANKS, Part, Wire};
use crate::program::{Arg, Builder, int};

/// As in `ranks.cuh`.
const MAX_PARTS: usize = 4;

impl Wire {
    /// The value of the define `WIRE`.
    pub(super) fn define(self) -> (&'static str, &'static str) {
        let bits = match self {
            Self::F32 => "32",
            Self::Bf16 => "16",
        };
        ("WIRE", bits)
    }

    /// Elements in 16 bytes.
    pub(super) fn elements(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 8,
        }
    }
}

/// A gathering in units, for as many parts as a kernel takes at a time.
#[derive(Debug)]
pub(super) struct Pieces<'a> {
    parts: &'a [Part],
    world_size: usize,
    /// Words of a unit.
    pub(super) unit: usize,
}

impl<'a> Pieces<'a> {
    /// All parts, in groups that a kernel takes.
    pub(super) fn all(
        gathering: &'a Gathering,
        world_size: usize,
    ) -> impl Iterator<Item = Pieces<'a>> {
        gathering.parts.chunks(MAX_PARTS).map(move |parts| {
            let widths = parts.iter().flat_map(|part| &part.widths);
            let is_wide = widths.clone().all(|width| width % 4 == 0);
            Pieces {
                parts,
                world_size,
                unit: if is_wide { 4 } else { 1 },
            }
        })
    }

    /// Units that a rank brings for a row.
    pub(super) fn width(&self, rank: usize) -> usize {
        let words: usize = self.parts.iter().map(|part| part.widths[rank]).sum();
        words / self.unit
    }

    /// The most that a rank brings for a row.
    pub(super) fn widest(&self) -> usize {
        let widths = (0..self.world_size).map(|rank| self.width(rank));
        widths.max().unwrap_or(0)
    }

    /// The values of the defines.
    pub(super) fn defines(&self, wire: Wire) -> [(&'static str, &'static str); 2] {
        [
            wire.define(),
            ("UNIT", if self.unit == 4 { "4" } else { "1" }),
        ]
    }

    /// A buffer whose rows are those of all.
    pub(super) fn rows(&self) -> glim_plan::BufferId {
        self.parts[0].out
    }

    /// The struct `Parts`.
    pub(super) fn argument(&self, b: &mut Builder<'_>) -> Result<Arg, String> {
        let mut fields = Vec::new();
        for i in 0..MAX_PARTS {
            let part = self.parts.get(i);
            let address = |id: Option<_>| id.map_or(Arg::Null, Arg::Buffer);
            fields.push(address(part.map(|part| part.x)));
            fields.push(address(part.map(|part| part.out)));
            for rank in 0..MAX_RANKS {
                let words = part.and_then(|part| part.widths.get(rank));
                fields.push(Arg::I32(int(words.map_or(0, |words| words / self.unit))?));
            }
            fields.push(Arg::I32(part.is_some_and(|part| part.is_float).into()));
            fields.push(Arg::I32(0));
        }
        for rank in 0..MAX_RANKS {
            let is_there = rank < self.world_size;
            let width = if is_there { self.width(rank) } else { 0 };
            fields.push(Arg::I32(int(width)?));
        }
        fields.push(Arg::I32(int(self.parts.len())?));
        fields.push(Arg::I32(0));
        // Units are counted with 32 bits over all rows.
        let most = b.rows(self.rows()).saturating_mul(self.widest());
        int(most).map_err(|e| format!("a rank brings too much at once: {e}"))?;
        Ok(b.structure(fields))
    }
}
