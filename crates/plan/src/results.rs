//! What a step gives: its result buffers, one behind the other in one block of words.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::buffer::BufferKind;
use crate::plan::Plan;

/// Where each result of a step lies in its block. Made once for a plan, shared by the results of all its runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResultLayout {
    places: Vec<(String, Range<usize>)>,
}

impl ResultLayout {
    /// The results of a plan, in its order, at full capacity.
    pub fn of(plan: &Plan) -> Self {
        let results = plan.buffers_where(|kind| *kind == BufferKind::Result);
        Self::new(results.map(|(_, b)| (b.name.clone(), b.elements())))
    }

    fn new(results: impl Iterator<Item = (String, usize)>) -> Self {
        let mut end = 0;
        let places = results.map(|(name, words)| {
            let start = end;
            end += words;
            (name, start..end)
        });
        Self {
            places: places.collect(),
        }
    }

    /// Each result's name and words, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Range<usize>)> {
        self.places
            .iter()
            .map(|(name, at)| (name.as_str(), at.clone()))
    }

    /// Words of the block.
    pub fn words(&self) -> usize {
        self.places.last().map_or(0, |(_, at)| at.end)
    }
}

/// The results of one run.
#[derive(Debug, Clone, Default)]
pub struct StepResults {
    layout: Arc<ResultLayout>,
    words: Vec<u32>,
}

impl StepResults {
    /// Results by buffer name, as four-byte words.
    pub fn new(results: HashMap<String, Vec<u32>>) -> Self {
        let sizes = results
            .iter()
            .map(|(name, words)| (name.clone(), words.len()));
        let layout = Arc::new(ResultLayout::new(sizes));
        let words = results.into_values().flatten().collect();
        Self { layout, words }
    }

    /// Results that lie in a block as the layout says; what the block lacks is 0.
    pub fn packed(layout: &Arc<ResultLayout>, mut words: Vec<u32>) -> Self {
        words.resize(layout.words(), 0);
        Self {
            layout: Arc::clone(layout),
            words,
        }
    }

    /// A result of f32, at full capacity: rows beyond the live ones are undefined.
    pub fn f32s(&self, name: &str) -> Option<&[f32]> {
        self.words(name).map(bytemuck::cast_slice)
    }

    /// A result as words.
    pub fn words(&self, name: &str) -> Option<&[u32]> {
        // They are few.
        let mut places = self.layout.iter();
        let (_, at) = places.find(|(other, _)| *other == name)?;
        Some(&self.words[at])
    }

    /// A result of i32.
    pub fn i32s(&self, name: &str) -> Option<&[i32]> {
        self.words(name).map(bytemuck::cast_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_found_by_name_however_they_were_given() {
        let given = HashMap::from([("a".to_owned(), vec![1, 2]), ("b".to_owned(), vec![3])]);
        let named = StepResults::new(given);
        let layout = ResultLayout::new([("a".to_owned(), 2), ("b".to_owned(), 1)].into_iter());
        let packed = StepResults::packed(&Arc::new(layout), vec![1, 2, 3]);
        for results in [named, packed] {
            assert_eq!(results.words("a"), Some(&[1, 2][..]));
            assert_eq!(results.i32s("b"), Some(&[3][..]));
            assert_eq!(results.words("c"), None);
        }
    }
}
