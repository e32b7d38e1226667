//! A reference: safetensors files with what another implementation computed for a few prompts.
//!
//! Arrays are named `PROMPT.WHAT`. `input_ids` makes a prompt; all others are optional. Rows are those of the prompt's last
//! positions, as many as the array has:
//!
//! | what | shape | meaning |
//! | --- | --- | --- |
//! | `input_ids` | `[n]` i32 | the prompt |
//! | `logits` | `[rows, vocab]` | after the head |
//! | `hidden` | `[layers + 1, rows, hidden]` | embedding, then the residual stream after each layer |
//! | `final_norm` | `[rows, hidden]` | after the last norm |
//! | `experts`, `expert_weights` | `[sparse layers, rows, k]` | chosen experts, ascending, and their weights |
//! | `indexer_topk` | `[full layers, rows, ≤ topk]` i32 | chosen positions, ascending, −1 where there are fewer |
//! | `tie_rows` | `[m, 2]` i32 | index of the full layer and position of near-ties (see below) |
//! | `tie_topk` | `[m, topk]` i32 | positions chosen there, ascending |
//! | `greedy` | `[m]` i32 | arg-max continuation, not stopped at end tokens |
//!
//! Near-ties: where index scores at the last selected place are equal up to rounding, the choice is an accident of the order of
//! summation, and every later row that attends to such a row inherits it. A reference can say what it chose there.

use std::collections::BTreeMap;

use glim_text::TokenId;
use safetensors::{Dtype, SafeTensors};

use crate::error::EngineError;
use crate::trace::ForcedChoices;

/// An array of the file.
#[derive(Debug, Clone, Default)]
pub(super) struct Array {
    pub(super) shape: Vec<usize>,
    pub(super) f32s: Vec<f32>,
    pub(super) i32s: Vec<i32>,
}

/// What the reference says of one prompt.
#[derive(Debug, Clone, Default)]
pub struct PromptReference {
    /// Name.
    pub name: String,
    /// The prompt.
    pub input_ids: Vec<TokenId>,
    arrays: BTreeMap<String, Array>,
}

/// A reference, of one file or several.
#[derive(Debug, Clone, Default)]
pub struct Reference {
    /// Prompts, by name.
    pub prompts: Vec<PromptReference>,
}

impl Reference {
    /// Reads the arrays of some safetensors files as one reference.
    ///
    /// # Errors
    /// If a file is not safetensors, an array has another type than F32 and I32 or a name of another form, or there are no
    /// `input_ids`.
    pub fn parse(files: &[&[u8]]) -> Result<Self, EngineError> {
        let mut prompts: BTreeMap<String, PromptReference> = BTreeMap::new();
        for bytes in files {
            let file = SafeTensors::deserialize(bytes)
                .map_err(|e| bad("file", format!("not a safetensors file: {e}")))?;
            for (name, view) in file.tensors() {
                let (prompt, what) = name
                    .split_once('.')
                    .ok_or_else(|| bad(&name, "expected a name of the form PROMPT.WHAT".into()))?;
                let array = array(&name, view.dtype(), view.shape(), view.data())?;
                let entry = prompts.entry(prompt.to_owned()).or_default();
                if what == "input_ids" {
                    entry.input_ids = array.i32s.iter().map(|id| TokenId(*id as u32)).collect();
                } else {
                    entry.arrays.insert(what.to_owned(), array);
                }
            }
        }
        let prompts: Vec<_> = prompts
            .into_iter()
            .filter(|(_, p)| !p.input_ids.is_empty())
            .map(|(name, p)| PromptReference { name, ..p })
            .collect();
        match prompts.is_empty() {
            true => Err(bad("file", "no array named PROMPT.input_ids".into())),
            false => Ok(Self { prompts }),
        }
    }

    /// The context that a comparison needs, in tokens.
    pub fn context(&self) -> usize {
        let greedy = |p: &PromptReference| p.arrays.get("greedy").map_or(0, |g| g.i32s.len());
        self.prompts
            .iter()
            .map(|p| p.input_ids.len() + greedy(p))
            .max()
            .unwrap_or(0)
    }
}

impl PromptReference {
    /// An array, if it is there. Its shape must be `expected`, where 0 stands for any length.
    pub(super) fn array(
        &self,
        what: &str,
        expected: &[usize],
    ) -> Result<Option<&Array>, EngineError> {
        let Some(array) = self.arrays.get(what) else {
            return Ok(None);
        };
        let same = |(found, expected): (&usize, &usize)| *expected == 0 || found == expected;
        let fits = array.shape.len() == expected.len()
            && array.shape.iter().zip(expected).all(same)
            && array.f32s.len() + array.i32s.len() == array.shape.iter().product::<usize>();
        match fits {
            true => Ok(Some(array)),
            false => Err(bad(
                &format!("{}.{what}", self.name),
                format!(
                    "shape {:?}, but this model has {expected:?} (0: any)",
                    array.shape
                ),
            )),
        }
    }

    /// Rows that the arrays of f32 and i32 reach back, at most.
    pub(super) fn rows(&self) -> usize {
        let rows = |a: &Array| a.shape.iter().rev().nth(1).copied();
        let last_rows = self
            .arrays
            .iter()
            .filter(|(what, _)| !what.starts_with("tie_"));
        last_rows.filter_map(|(_, a)| rows(a)).max().unwrap_or(1)
    }

    /// What was chosen in near-ties.
    pub(super) fn near_ties(&self, full: usize, topk: usize) -> Result<ForcedChoices, EngineError> {
        let (Some(rows), Some(chosen)) = (
            self.array("tie_rows", &[0, 2])?,
            self.array("tie_topk", &[0, topk])?,
        ) else {
            return Ok(ForcedChoices::new());
        };
        let mut forced = ForcedChoices::new();
        for (row, choice) in rows
            .i32s
            .chunks_exact(2)
            .zip(chosen.i32s.chunks_exact(topk))
        {
            let layer = usize::try_from(row[0]).ok().filter(|l| *l < full);
            let position = usize::try_from(row[1])
                .ok()
                .filter(|p| *p < self.input_ids.len());
            let (Some(layer), Some(position)) = (layer, position) else {
                let reason = format!("{row:?} is no full layer and position of the prompt");
                return Err(bad(&format!("{}.tie_rows", self.name), reason));
            };
            forced.insert((layer, position), choice.to_vec());
        }
        Ok(forced)
    }
}

fn bad(name: &str, reason: String) -> EngineError {
    EngineError::BadReference {
        name: name.into(),
        reason,
    }
}

fn array(name: &str, dtype: Dtype, shape: &[usize], data: &[u8]) -> Result<Array, EngineError> {
    let words = data
        .chunks_exact(4)
        .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let mut array = Array {
        shape: shape.to_vec(),
        ..Array::default()
    };
    match dtype {
        Dtype::F32 => array.f32s = words.map(f32::from_bits).collect(),
        Dtype::I32 => array.i32s = words.map(|w| w as i32).collect(),
        other => return Err(bad(name, format!("type {other:?}, expected F32 or I32"))),
    }
    Ok(array)
}
