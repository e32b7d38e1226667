//! Reference arrays, from the safetensors files that another implementation wrote.

use std::collections::HashMap;
use std::path::Path;

use safetensors::{Dtype, SafeTensors};

/// One array of a reference file.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    /// Row-major shape.
    pub shape: Vec<usize>,
    /// Its elements.
    pub data: Data,
}

/// Elements of an [`Array`].
#[derive(Debug, Clone, PartialEq)]
pub enum Data {
    /// Logits, hidden states, weights, margins.
    F32(Vec<f32>),
    /// Token ids, expert ids, positions.
    I32(Vec<i32>),
}

impl Array {
    /// The elements, which must be floats.
    ///
    /// # Panics
    /// If they are integers.
    #[track_caller]
    pub fn f32s(&self) -> &[f32] {
        match &self.data {
            Data::F32(values) => values,
            Data::I32(_) => panic!("an array of i32 where f32 was expected"),
        }
    }

    /// The elements, which must be integers.
    ///
    /// # Panics
    /// If they are floats.
    #[track_caller]
    pub fn i32s(&self) -> &[i32] {
        match &self.data {
            Data::I32(values) => values,
            Data::F32(_) => panic!("an array of f32 where i32 was expected"),
        }
    }
}

/// Every array of the reference file at `path`, by name (`PROMPT.WHAT`).
///
/// # Panics
/// If the file cannot be read, or holds another type than F32 and I32.
#[track_caller]
pub fn load(path: &Path) -> HashMap<String, Array> {
    let fail = |error: &dyn std::fmt::Display| -> ! { panic!("{}: {error}", path.display()) };
    let bytes = std::fs::read(path).unwrap_or_else(|error| fail(&error));
    let file = SafeTensors::deserialize(&bytes).unwrap_or_else(|error| fail(&error));
    let array = |(name, view): (&str, safetensors::tensor::TensorView<'_>)| {
        let words = view.data().as_chunks::<4>().0.iter();
        let data = match view.dtype() {
            Dtype::F32 => Data::F32(words.map(|word| f32::from_le_bytes(*word)).collect()),
            Dtype::I32 => Data::I32(words.map(|word| i32::from_le_bytes(*word)).collect()),
            other => panic!(
                "{}: `{name}` has type {other:?}; expected F32 or I32",
                path.display()
            ),
        };
        (
            name.to_owned(),
            Array {
                shape: view.shape().to_vec(),
                data,
            },
        )
    };
    file.iter().map(array).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assets;

    #[test]
    fn references_have_the_shapes_that_their_readme_states() {
        let arrays = load(&assets::odd_glm52_reference());
        assert_eq!(arrays["long.input_ids"].shape, [333]);
        assert_eq!(arrays["long.logits"].shape, [16, 4096]);
        assert_eq!(arrays["long.logits"].f32s().len(), 16 * 4096);
        assert!(
            arrays["long.input_ids"]
                .i32s()
                .iter()
                .all(|id| (0..4096).contains(id))
        );
        assert!(load(&assets::tiny_glm5_reference()).contains_key("long1500.indexer_topk"));
    }
}
