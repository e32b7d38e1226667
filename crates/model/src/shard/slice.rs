//! Boxes in the coordinates of a tensor: one range for each axis of its row-major shape.

use std::fmt;
use std::ops::Range;

/// A box in a tensor: on each axis, slowest first, the elements that it holds.
///
/// Plain data: whether it lies in a tensor is for [`Slice::fits`] to say.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Slice(Vec<Range<usize>>);

impl Slice {
    /// The box with these ranges, slowest axis first.
    pub fn new(ranges: Vec<Range<usize>>) -> Self {
        Slice(ranges)
    }

    /// All of a tensor of this shape.
    pub fn whole(shape: &[usize]) -> Self {
        Slice(shape.iter().map(|&n| 0..n).collect())
    }

    /// All of a tensor of this shape but for one axis, of which it is `range`.
    ///
    /// # Panics
    /// If the shape has no such axis.
    pub fn along(shape: &[usize], axis: usize, range: Range<usize>) -> Self {
        let mut slice = Slice::whole(shape);
        slice.0[axis] = range;
        slice
    }

    /// One range for each axis, slowest first.
    pub fn ranges(&self) -> &[Range<usize>] {
        &self.0
    }

    /// How many elements it spans on each axis: its own row-major shape.
    pub fn shape(&self) -> Vec<usize> {
        self.0.iter().map(ExactSizeIterator::len).collect()
    }

    /// Whether it holds no element.
    pub fn is_empty(&self) -> bool {
        self.0.iter().any(Range::is_empty)
    }

    /// Whether it lies in a tensor of this shape: as many axes, and no range beyond its axis or turned round.
    pub fn fits(&self, shape: &[usize]) -> bool {
        self.0.len() == shape.len()
            && (self.0.iter().zip(shape))
                .all(|(range, &n)| range.start <= range.end && range.end <= n)
    }
}

/// As numpy would write it: `[0..256, 512..1024]`.
impl fmt::Display for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (axis, range) in self.0.iter().enumerate() {
            let comma = if axis > 0 { ", " } else { "" };
            write!(f, "{comma}{}..{}", range.start, range.end)?;
        }
        f.write_str("]")
    }
}
