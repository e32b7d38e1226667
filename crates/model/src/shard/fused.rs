//! Stored tensors that hold two logical ones, part by part.
//!
//! Both fused forms of the family are one thing: for each expert or head, first the rows of one logical tensor, then those
//! of the other. `ffn_gate_up_exps` is `[E, I + I, D]`, gate first; `attn_kv_b` is `[H * (nope + v), kv_lora]`, in each
//! head keys first, and there keys are transposed against the logical `attn_k_b`. A rank's share is its rows of the first part and its
//! rows of the second, in each expert or head. It is *not* a share of the rows of the whole, nor of all keys and then
//! all values.

use std::borrow::Cow;
use std::ops::Range;

use super::check::{check_families, check_weight};
use super::error::{ShardError, ShardFault};
use super::slice::Slice;
use super::{ShardedWeight, Shards};
use crate::catalogue::Role;
use crate::checkpoint::{Checkpoint, Source, TensorDesc};
use crate::kv_b::KvBDims;

/// Which of the two logical tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Gate, or keys.
    First,
    /// Up, or values.
    Second,
}

impl Part {
    fn index(self) -> usize {
        self as usize
    }
}

/// Where two logical tensors lie in one stored tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fused {
    outer: usize,
    outer_name: &'static str,
    /// Rows of each part in each expert or head.
    rows: [usize; 2],
    cols: usize,
    /// The logical form of the first part has rows and columns exchanged.
    is_first_transposed: bool,
}

impl Fused {
    /// `ffn_gate_up_exps`, `[experts, 2 * inner, hidden]`.
    pub fn gate_up(experts: usize, inner: usize, hidden: usize) -> Self {
        Fused {
            outer: experts,
            outer_name: "expert",
            rows: [inner; 2],
            cols: hidden,
            is_first_transposed: false,
        }
    }

    /// `attn_kv_b`, `[n_heads * (nope + v), rank]`.
    pub fn kv_b(dims: KvBDims) -> Self {
        let KvBDims {
            n_heads,
            nope,
            v,
            rank,
        } = dims;
        Fused {
            outer: n_heads,
            outer_name: "head",
            rows: [nope, v],
            cols: rank,
            is_first_transposed: true,
        }
    }

    /// The stored tensor as `[experts or heads, rows of both parts, columns]`; the same memory as its own shape.
    pub fn view(&self) -> [usize; 3] {
        [self.outer, self.rows[0] + self.rows[1], self.cols]
    }

    /// Whether the logical form of the first part has rows and columns exchanged.
    pub(crate) fn is_first_transposed(&self) -> bool {
        self.is_first_transposed
    }

    /// Row-major shape of a logical tensor.
    pub fn logical_shape(&self, part: Part) -> [usize; 3] {
        self.oriented(part, [self.outer, self.rows[part.index()], self.cols])
    }

    /// What a slice of a logical tensor is in the coordinates of [`Self::view`]; of keys its rows are the slice's columns.
    ///
    /// `None` if the slice does not lie in the logical tensor.
    pub fn stored_slice(&self, part: Part, slice: &Slice) -> Option<Slice> {
        if !slice.fits(&self.logical_shape(part)) {
            return None;
        }
        let ranges: [Range<usize>; 3] = slice.ranges().to_vec().try_into().ok()?;
        let [outer, rows, cols] = self.oriented(part, ranges);
        let first_row = self.first_row(part);
        Some(Slice::new(vec![
            outer,
            rows.start + first_row..rows.end + first_row,
            cols,
        ]))
    }

    /// The rows of the stored tensor, all its axes but the last counted as one, that hold a slice of a logical tensor.
    ///
    /// `None` if the slice does not lie in the logical tensor, or is not whole rows of the stored one.
    pub fn rows_of(&self, part: Part, slice: &Slice) -> Option<Vec<Range<usize>>> {
        let stored = self.stored_slice(part, slice)?;
        let [outer, rows, cols] = stored.ranges() else {
            return None;
        };
        if *cols != (0..self.cols) {
            return None;
        }
        let [_, rows_of_both, _] = self.view();
        let of_one = |index| index * rows_of_both + rows.start..index * rows_of_both + rows.end;
        Some(outer.clone().map(of_one).collect())
    }

    /// Rows and columns as they are stored, or as the logical tensor has them: the exchange is its own inverse.
    fn oriented<T>(&self, part: Part, [outer, rows, cols]: [T; 3]) -> [T; 3] {
        match part {
            Part::First if self.is_first_transposed => [outer, cols, rows],
            _ => [outer, rows, cols],
        }
    }

    fn first_row(&self, part: Part) -> usize {
        match part {
            Part::First => 0,
            Part::Second => self.rows[0],
        }
    }

    /// Expert or head, part, and row in the part, of a row of the stored tensor.
    fn place(&self, row: usize) -> (usize, Part, usize) {
        let rows_of_both = self.rows[0] + self.rows[1];
        let (index, row) = (row / rows_of_both, row % rows_of_both);
        match row.checked_sub(self.rows[0]) {
            None => (index, Part::First, row),
            Some(row) => (index, Part::Second, row),
        }
    }

    /// The inverse of [`Self::rows_of`]: slices of the logical tensor, neighbours merged.
    ///
    /// The error is the first row that is the other part's.
    fn logical(&self, part: Part, rows: &[Range<usize>]) -> Result<Vec<Slice>, usize> {
        // Experts or heads that hold the same rows.
        let mut boxes: Vec<(Range<usize>, Range<usize>)> = Vec::new();
        for range in rows {
            let mut row = range.start;
            while row < range.end {
                let (index, found, first) = self.place(row);
                if found != part {
                    return Err(row);
                }
                let len = (range.end - row).min(self.rows[part.index()] - first);
                match boxes.last_mut() {
                    Some((outer, rows)) if outer.end == index && *rows == (first..first + len) => {
                        outer.end += 1
                    }
                    _ => boxes.push((index..index + 1, first..first + len)),
                }
                row += len;
            }
        }
        let slice =
            |(outer, rows)| Slice::new(self.oriented(part, [outer, rows, 0..self.cols]).to_vec());
        Ok(boxes.into_iter().map(slice).collect())
    }
}

/// What each rank takes from one fused stored tensor: plain data, to be checked by [`Shards::check_fused`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FusedRows {
    /// Name of the stored tensor.
    pub stored: String,
    /// How it is laid out.
    pub fused: Fused,
    /// Names of the logical tensors: gate and up, or keys and values.
    pub tensors: [String; 2],
    /// For each part and each rank, rows of the stored tensor, all its axes but the last counted as one.
    pub rows: [Vec<Vec<Range<usize>>>; 2],
}

impl Shards {
    /// What each rank takes from a fused stored tensor, from the slices of the two logical ones.
    ///
    /// # Errors
    /// A tensor that is not in the list, or of another shape than `fused` says.
    pub fn fused_rows(
        &self,
        stored: &str,
        fused: Fused,
        tensors: [&str; 2],
    ) -> Result<FusedRows, ShardError> {
        let rows = |part: Part| {
            let sharded = self.part(&fused, part, tensors[part.index()])?;
            let of_rank = |slices: &Vec<Slice>| {
                let rows = slices.iter().map(|slice| fused.rows_of(part, slice));
                rows.collect::<Option<Vec<_>>>().map(|rows| rows.concat())
            };
            let rows: Option<Vec<_>> = sharded.slices().iter().map(of_rank).collect();
            rows.ok_or_else(|| shape(sharded, "slices of whole rows".to_owned()))
        };
        Ok(FusedRows {
            stored: stored.to_owned(),
            fused,
            tensors: tensors.map(str::to_owned),
            rows: [rows(Part::First)?, rows(Part::Second)?],
        })
    }

    /// Proves that a list for a fused stored tensor gives each rank its slices of both logical tensors: every row is of
    /// the part that it is taken for, and both parts stand [`Self::check`] in place of the list's own.
    ///
    /// # Errors
    /// [`ShardError::Fault`]; a tensor that is not in the list, or of another shape than the layout says.
    pub fn check_fused(&self, list: &FusedRows) -> Result<(), ShardError> {
        let FusedRows {
            fused,
            tensors,
            rows,
            ..
        } = list;
        let mut parts = Vec::new();
        for part in [Part::First, Part::Second] {
            let mut sharded = self.part(fused, part, &tensors[part.index()])?.clone();
            let rows = &rows[part.index()];
            sharded.slices = (rows.iter().enumerate())
                .map(|(rank, rows)| list.slices(part, rank, rows))
                .collect::<Result<_, _>>()?;
            check_weight(&sharded, self.world_size())?;
            parts.push(sharded);
        }
        let layer = parts.first().and_then(|part| part.weight().layer);
        let others = self.weights().iter().filter(|other| {
            other.weight().layer == layer
                && parts
                    .iter()
                    .all(|part| part.weight().name != other.weight().name)
        });
        check_families(parts.iter().chain(others))?;
        Ok(())
    }

    /// [`Self::check_fused`] for every fused tensor that a checkpoint stores. Returns how many there were.
    ///
    /// # Errors
    /// As [`Self::check_fused`], and if the checkpoint is not the one that was cut.
    pub fn check_stored(&self, checkpoint: &Checkpoint) -> Result<usize, ShardError> {
        let mut firsts: Vec<(usize, &TensorDesc, Fused)> = Vec::new();
        let mut fused_tensors = 0;
        for desc in checkpoint.tensors().iter().chain(checkpoint.mtp_tensors()) {
            let Form::Part {
                stored,
                fused,
                part,
            } = Form::of(checkpoint, desc)?
            else {
                continue;
            };
            if part == Part::First {
                firsts.push((stored, desc, fused));
                continue;
            }
            let Some((_, first, _)) = firsts.iter().find(|(index, ..)| *index == stored) else {
                continue;
            };
            let Some((name, _)) = stored_header(checkpoint, stored) else {
                continue;
            };
            let list = self.fused_rows(name, fused, [&first.name, &desc.name])?;
            self.check_fused(&list)?;
            fused_tensors += 1;
        }
        Ok(fused_tensors)
    }

    fn part(&self, fused: &Fused, part: Part, name: &str) -> Result<&ShardedWeight, ShardError> {
        let sharded = self.weight(name).ok_or_else(|| ShardError::Unknown {
            tensor: name.to_owned(),
        })?;
        let expected = fused.logical_shape(part);
        if sharded.weight().shape != expected {
            return Err(shape(
                sharded,
                format!("{expected:?}, as a part of the fused tensor"),
            ));
        }
        Ok(sharded)
    }
}

impl FusedRows {
    /// What the rows that `rank` takes for `part` are of the logical tensor.
    fn slices(
        &self,
        part: Part,
        rank: usize,
        rows: &[Range<usize>],
    ) -> Result<Vec<Slice>, ShardFault> {
        let [outer, rows_of_both, cols] = self.fused.view();
        let stored_rows = outer * rows_of_both;
        if let Some(outside) = rows
            .iter()
            .find(|range| range.start > range.end || range.end > stored_rows)
        {
            return Err(ShardFault::Outside {
                tensor: self.stored.clone(),
                rank,
                slice: Slice::new(vec![outside.clone(), 0..cols]),
                shape: vec![stored_rows, cols],
            });
        }
        self.fused.logical(part, rows).map_err(|row| {
            let (index, is, part_row) = self.fused.place(row);
            ShardFault::WrongPart {
                tensor: self.stored.clone(),
                rank,
                row,
                taken_for: self.tensors[part.index()].clone(),
                is: self.tensors[is.index()].clone(),
                outer: self.fused.outer_name,
                index,
                part_row,
            }
        })
    }
}

/// How a checkpoint stores a logical tensor; numbers are indices into its [`Source`]'s own list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Form {
    /// As it is.
    Whole {
        /// The stored tensor.
        stored: usize,
    },
    /// As one of two parts.
    Part {
        /// The stored tensor.
        stored: usize,
        /// Its layout.
        fused: Fused,
        /// Which part.
        part: Part,
    },
    /// One stored tensor for each index of the first axis.
    Stack {
        /// The stored tensors.
        stored: Vec<usize>,
    },
}

impl Form {
    /// How `checkpoint` stores one of its tensors.
    ///
    /// Resolution has matched shapes already, so sizes decide: a stored tensor is as large as the logical one, or fused.
    ///
    /// # Errors
    /// [`ShardError::Form`] if it is neither.
    pub fn of(checkpoint: &Checkpoint, desc: &TensorDesc) -> Result<Form, ShardError> {
        let (stored, elements) = (desc.stored(), desc.elements());
        let elements_of =
            |index: usize| stored_header(checkpoint, index).map_or(0, |(_, elements)| elements);
        let &[index] = stored else {
            return Ok(Form::Stack {
                stored: stored.to_vec(),
            });
        };
        let found = elements_of(index);
        if found == elements {
            return Ok(Form::Whole { stored: index });
        }
        let config = checkpoint.config();
        let kv_b = Fused::kv_b(KvBDims {
            n_heads: config.n_heads,
            nope: config.qk_nope_head_dim,
            v: config.v_head_dim,
            rank: config.kv_lora_rank,
        });
        let (fused, part) = match (desc.role, desc.shape.as_slice()) {
            (Role::AttnKB, _) => (kv_b, Part::First),
            (Role::AttnVB, _) => (kv_b, Part::Second),
            (Role::FfnGateExps, &[experts, inner, hidden]) => {
                (Fused::gate_up(experts, inner, hidden), Part::First)
            }
            (Role::FfnUpExps, &[experts, inner, hidden]) => {
                (Fused::gate_up(experts, inner, hidden), Part::Second)
            }
            _ => {
                return Err(ShardError::Form {
                    tensor: desc.name.clone(),
                    elements,
                    stored: found,
                });
            }
        };
        if fused.view().iter().product::<usize>() != found {
            return Err(ShardError::Form {
                tensor: desc.name.clone(),
                elements,
                stored: found,
            });
        }
        Ok(Form::Part {
            stored: index,
            fused,
            part,
        })
    }
}

/// Name and elements of a stored tensor.
pub(super) fn stored_header(checkpoint: &Checkpoint, index: usize) -> Option<(&str, usize)> {
    match checkpoint.source() {
        Source::Gguf(gguf) => {
            let info = gguf.tensors().get(index)?;
            Some((&info.name, info.shape().iter().product()))
        }
        Source::Hf(folder) => {
            let tensor = folder.tensors().get(index)?;
            Some((&tensor.name, tensor.shape.iter().product()))
        }
    }
}

/// Bytes of a stored tensor, in the type of the logical form: FP8 is decoded.
pub(super) fn stored_data(checkpoint: &Checkpoint, index: usize) -> Option<Cow<'_, [u8]>> {
    match checkpoint.source() {
        Source::Gguf(gguf) => Some(Cow::Borrowed(gguf.data(gguf.tensors().get(index)?))),
        Source::Hf(folder) => Some(folder.data(folder.tensors().get(index)?)),
    }
}

fn shape(sharded: &ShardedWeight, expected: String) -> ShardError {
    let weight = sharded.weight();
    ShardError::Shape {
        tensor: weight.name.clone(),
        found: weight.shape.clone(),
        expected,
    }
}
