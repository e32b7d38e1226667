//! Slices as bytes: which bytes of a tensor a [`Slice`] is, and in which order the ranks' bytes make the tensor again.
//!
//! A slice of a row-major tensor is runs of equal length at regular distances: one run where rows are cut, one for each
//! row where columns are cut. Real models have millions of them, so none of these iterators holds a list.

use std::iter::FusedIterator;
use std::ops::Range;

use glim_quant::GgmlType;

use super::slice::Slice;

/// The bytes of one slice of a row-major tensor: consecutive runs, ascending, as long as can be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ByteRuns {
    first: usize,
    run_bytes: usize,
    /// Slowest first. No two that could be one.
    repeats: Vec<Repeat>,
    next: usize,
    count: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Repeat {
    count: usize,
    stride: usize,
}

impl ByteRuns {
    /// The runs of `slice` in a tensor of blocks of `ty` and of row-major `shape`, in elements.
    ///
    /// `None` if the slice does not lie in the tensor, if it or a row of the tensor is not whole blocks, or if the
    /// tensor's bytes cannot be counted in a `usize`.
    pub fn new(ty: GgmlType, shape: &[usize], slice: &Slice) -> Option<Self> {
        if !slice.fits(shape) {
            return None;
        }
        let (shape, ranges) = in_blocks(ty, shape, slice)?;
        let mut strides = vec![0; shape.len()];
        let mut bytes = ty.block_bytes();
        for (stride, &n) in strides.iter_mut().zip(&shape).rev() {
            *stride = bytes;
            bytes = bytes.checked_mul(n)?;
        }

        let is_cut = |axis: usize| ranges[axis] != (0..shape[axis]);
        let innermost_cut = (0..shape.len())
            .rev()
            .find(|&axis| is_cut(axis))
            .unwrap_or(0);
        let mut repeats: Vec<Repeat> = Vec::new();
        for axis in (0..innermost_cut).rev() {
            let repeat = Repeat {
                count: ranges[axis].len(),
                stride: strides[axis],
            };
            match repeats.last_mut() {
                Some(inner) if inner.count * inner.stride == repeat.stride => {
                    inner.count *= repeat.count
                }
                _ => repeats.push(repeat),
            }
        }
        repeats.reverse();

        let first = (ranges.iter().zip(&strides))
            .take(innermost_cut + 1)
            .map(|(range, stride)| range.start * stride);
        let run_bytes = ranges[innermost_cut].len() * strides[innermost_cut];
        let is_empty = ranges.iter().any(Range::is_empty);
        Some(ByteRuns {
            first: first.sum(),
            run_bytes,
            count: if is_empty {
                0
            } else {
                repeats.iter().map(|repeat| repeat.count).product()
            },
            repeats,
            next: 0,
        })
    }

    /// Bytes of each run.
    pub fn run_bytes(&self) -> usize {
        self.run_bytes
    }

    /// Bytes of all runs that are still to come.
    pub fn byte_len(&self) -> usize {
        self.run_bytes * (self.count - self.next)
    }

    fn at(&self, index: usize) -> Range<usize> {
        let mut start = self.first;
        let mut rest = index;
        for repeat in self.repeats.iter().rev() {
            start += rest % repeat.count * repeat.stride;
            rest /= repeat.count;
        }
        start..start + self.run_bytes
    }
}

impl Iterator for ByteRuns {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        let index = (self.next < self.count).then_some(self.next)?;
        self.next += 1;
        Some(self.at(index))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.count - self.next, Some(self.count - self.next))
    }
}

impl ExactSizeIterator for ByteRuns {}
impl FusedIterator for ByteRuns {}

/// The order in which the ranks' bytes make the whole tensor: `(rank, bytes of what that rank holds)`.
///
/// Where rows are cut it is one range for each rank; where columns are cut, one for each row and rank.
#[derive(Debug, Clone)]
pub struct GatherRuns {
    /// For each rank, the bytes that it holds of each index of the axes before the cut one.
    lens: Vec<usize>,
    outer: usize,
    index: usize,
    rank: usize,
}

impl GatherRuns {
    /// `lens[r]`: bytes of rank `r` for each of the `outer` indices before the cut axis.
    pub(super) fn new(lens: Vec<usize>, outer: usize) -> Self {
        GatherRuns {
            lens,
            outer,
            index: 0,
            rank: 0,
        }
    }
}

impl Iterator for GatherRuns {
    type Item = (usize, Range<usize>);

    fn next(&mut self) -> Option<Self::Item> {
        while self.index < self.outer {
            if self.rank == self.lens.len() {
                self.rank = 0;
                self.index += 1;
                continue;
            }
            let (rank, len) = (self.rank, self.lens[self.rank]);
            self.rank += 1;
            if len > 0 {
                return Some((rank, self.index * len..(self.index + 1) * len));
            }
        }
        None
    }
}

impl FusedIterator for GatherRuns {}

/// The boxes that a contiguous range of a tensor's bytes is, in order: whole rows in the middle, parts of rows at its ends.
///
/// The inverse of [`ByteRuns`], for lists that come as bytes. `None` if the range is not whole blocks of the tensor, or
/// for the reasons of [`ByteRuns::new`].
pub fn boxes_of_bytes(ty: GgmlType, shape: &[usize], bytes: Range<usize>) -> Option<Vec<Slice>> {
    let total = ByteRuns::new(ty, shape, &Slice::whole(shape))?.byte_len();
    let block = ty.block_bytes();
    let is_whole = bytes.start.is_multiple_of(block) && bytes.end.is_multiple_of(block);
    if !is_whole || bytes.end > total {
        return None;
    }
    let (dims, _) = in_blocks(ty, shape, &Slice::whole(shape))?;
    let mut boxes = Vec::new();
    push_boxes(
        &dims,
        bytes.start / block..bytes.end / block,
        &mut Vec::new(),
        &mut boxes,
    );
    for ranges in &mut boxes {
        if let Some(last) = ranges.last_mut() {
            *last = last.start * ty.block_elems()..last.end * ty.block_elems();
        }
    }
    Some(boxes.into_iter().map(Slice::new).collect())
}

/// `flat`: indices into the row-major order of `dims`; `prefix`: ranges of the axes before these.
fn push_boxes(
    dims: &[usize],
    flat: Range<usize>,
    prefix: &mut Vec<Range<usize>>,
    boxes: &mut Vec<Vec<Range<usize>>>,
) {
    let Some((_, rest)) = dims.split_first() else {
        return;
    };
    if flat.is_empty() {
        return;
    }
    let mut push = |first: Range<usize>, inside: Range<usize>| {
        prefix.push(first);
        if rest.is_empty() {
            boxes.push(prefix.clone());
        } else if inside == (0..rest.iter().product()) {
            boxes.push(
                prefix
                    .iter()
                    .cloned()
                    .chain(rest.iter().map(|&n| 0..n))
                    .collect(),
            );
        } else {
            push_boxes(rest, inside, prefix, boxes);
        }
        prefix.pop();
    };
    let inner: usize = rest.iter().product();
    let (mut first, last) = (flat.start / inner, flat.end / inner);
    let (head, tail) = (flat.start % inner, flat.end % inner);
    if first == last {
        return push(first..first + 1, head..tail);
    }
    if head > 0 {
        push(first..first + 1, head..inner);
        first += 1;
    }
    if first < last {
        push(first..last, 0..inner);
    }
    if tail > 0 {
        push(last..last + 1, 0..tail);
    }
}

/// Shape and ranges with the last axis counted in blocks.
fn in_blocks(
    ty: GgmlType,
    shape: &[usize],
    slice: &Slice,
) -> Option<(Vec<usize>, Vec<Range<usize>>)> {
    let (mut shape, mut ranges) = (shape.to_vec(), slice.ranges().to_vec());
    let (row, range) = (shape.last_mut()?, ranges.last_mut()?);
    let block = ty.block_elems();
    if [*row, range.start, range.end]
        .iter()
        .any(|n| !n.is_multiple_of(block))
    {
        return None;
    }
    *row /= block;
    *range = range.start / block..range.end / block;
    Some((shape, ranges))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
#[allow(
    clippy::single_range_in_vec_init,
    reason = "a list of one range is meant"
)]
mod tests {
    use super::*;

    fn runs(ty: GgmlType, shape: &[usize], ranges: &[Range<usize>]) -> Option<Vec<Range<usize>>> {
        Some(ByteRuns::new(ty, shape, &Slice::new(ranges.to_vec()))?.collect())
    }

    #[test]
    fn rows_are_one_run_and_columns_one_for_each_row() {
        let ty = GgmlType::Q8_0;
        assert_eq!(runs(ty, &[6, 64], &[2..4, 0..64]).unwrap(), [136..272]);
        assert_eq!(
            runs(ty, &[3, 64], &[0..3, 32..64]).unwrap(),
            [34..68, 102..136, 170..204]
        );
        assert_eq!(runs(ty, &[3, 64], &[0..3, 0..64]).unwrap(), [0..204]);
        assert_eq!(runs(ty, &[5], &[0..5]), None, "not whole blocks");
        // Two experts of 2 x 3 elements: the second row of each; the last column of each.
        let ty = GgmlType::F16;
        assert_eq!(
            runs(ty, &[2, 2, 3], &[0..2, 1..2, 0..3]).unwrap(),
            [6..12, 18..24]
        );
        let columns = [4..6, 10..12, 16..18, 22..24];
        assert_eq!(runs(ty, &[2, 2, 3], &[0..2, 0..2, 2..3]).unwrap(), columns);
        assert_eq!(
            runs(ty, &[2, 2, 3], &[1..2, 0..2, 2..3]).unwrap(),
            columns[2..]
        );
    }

    #[test]
    fn repeats_that_can_be_one_are_one() {
        let column = ByteRuns::new(
            GgmlType::F16,
            &[2, 2, 3],
            &Slice::new(vec![0..2, 0..2, 2..3]),
        )
        .unwrap();
        assert_eq!(
            column.repeats,
            [Repeat {
                count: 4,
                stride: 6
            }]
        );
        assert_eq!((column.len(), column.byte_len()), (4, 8));
    }

    #[test]
    fn a_slice_may_be_cut_on_every_axis() {
        let found = runs(GgmlType::F16, &[3, 2, 4], &[1..3, 1..2, 1..3]).unwrap();
        assert_eq!(found, [26..30, 42..46]);
        let found = runs(GgmlType::F16, &[2, 3, 2, 2], &[0..2, 1..3, 0..1, 1..2]).unwrap();
        assert_eq!(found, [10..12, 18..20, 34..36, 42..44]);
    }

    #[test]
    fn slices_that_are_no_bytes_are_refused() {
        let ty = GgmlType::Q4_K;
        for (shape, ranges) in [
            (&[4, 512][..], &[0..5, 0..256][..]),
            (&[4, 512], &[0..4]),
            (&[4, 512], &[0..4, 0..128]),
            (&[4, 512], &[0..4, 128..256]),
            (&[4, 384], &[0..4, 0..256]),
            (&[usize::MAX, 512], &[0..4, 0..256]),
            (&[], &[]),
        ] {
            assert_eq!(runs(ty, shape, ranges), None, "{shape:?} {ranges:?}");
        }
        #[expect(clippy::reversed_empty_ranges, reason = "the fault")]
        let reversed = [3..1, 0..256];
        assert_eq!(runs(ty, &[4, 512], &reversed), None);
    }

    #[test]
    fn an_empty_slice_has_no_runs() {
        for ranges in [[2..2, 0..512], [0..4, 256..256]] {
            let runs =
                ByteRuns::new(GgmlType::Q4_K, &[4, 512], &Slice::new(ranges.to_vec())).unwrap();
            assert_eq!((runs.byte_len(), runs.count()), (0, 0));
        }
    }

    #[test]
    fn a_range_of_bytes_is_boxes_and_back() {
        let (ty, shape) = (GgmlType::Q8_0, [2, 3, 64]);
        let total = 2 * 3 * 2;
        for start in 0..=total {
            for end in start..=total {
                let bytes = start * 34..end * 34;
                let boxes = boxes_of_bytes(ty, &shape, bytes.clone()).unwrap();
                let mut at = bytes.start;
                for run in boxes
                    .iter()
                    .flat_map(|slice| ByteRuns::new(ty, &shape, slice).unwrap())
                {
                    assert_eq!(run.start, at, "{bytes:?}: {boxes:?}");
                    at = run.end;
                }
                assert_eq!(at, bytes.end, "{bytes:?}: {boxes:?}");
            }
        }
        assert_eq!(boxes_of_bytes(ty, &shape, 0..35), None);
        assert_eq!(boxes_of_bytes(ty, &shape, 0..13 * 34), None);
    }

    #[test]
    fn gathering_takes_each_rank_in_turn() {
        let order: Vec<_> = GatherRuns::new(vec![2, 0, 1], 2).collect();
        assert_eq!(order, [(0, 0..2), (2, 0..1), (0, 2..4), (2, 1..2)]);
    }
}
