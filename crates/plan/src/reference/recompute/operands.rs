//! What operations read and write, wherever it lies.

use std::borrow::Cow;
use std::ops::Range;

use glim_quant::{GgmlType, dequantize};

use crate::backend::{BackendError, WeightData};
use crate::buffer::BufferId;

/// The operands of a plan's operations. Activations, inputs and carries are at full capacity, states with all their rows.
pub trait Operands {
    /// A buffer of f32.
    ///
    /// # Errors
    /// If it is not there.
    fn f32s(&self, id: BufferId) -> Result<&[f32], BackendError>;

    /// A buffer of i32, or of four-byte words.
    ///
    /// # Errors
    /// If it is not there.
    fn i32s(&self, id: BufferId) -> Result<&[i32], BackendError>;

    /// A weight.
    ///
    /// # Errors
    /// If it is not there or cannot be decoded.
    fn weight(&self, id: BufferId) -> Result<Matrix<'_>, BackendError>;
}

/// Rows of a weight (all axes but the last flattened), decoded or as blocks that are decoded row by row.
#[derive(Debug, Clone)]
pub struct Matrix<'a> {
    name: &'a str,
    k: usize,
    rows: usize,
    values: Values<'a>,
}

#[derive(Debug, Clone)]
enum Values<'a> {
    F32(&'a [f32]),
    Blocks {
        ty: GgmlType,
        bytes: Cow<'a, [u8]>,
        row_bytes: usize,
    },
}

impl<'a> Matrix<'a> {
    /// Rows of `k` values each.
    pub(crate) fn decoded(name: &'a str, values: &'a [f32], k: usize) -> Self {
        Self {
            name,
            k,
            rows: values.len() / k.max(1),
            values: Values::F32(values),
        }
    }

    /// Rows of blocks, which are decoded when they are needed.
    ///
    /// # Errors
    /// If the type cannot be decoded, or there are not as many bytes as the shape takes.
    pub fn blocks(name: &'a str, data: WeightData<'a>) -> Result<Self, BackendError> {
        let (k, outer) = data
            .shape
            .split_last()
            .map_or((1, &[][..]), |(k, o)| (*k, o));
        let rows = outer
            .iter()
            .try_fold(1usize, |n, axis| n.checked_mul(*axis));
        let row_bytes = data.ty.row_bytes(k).filter(|n| *n > 0);
        let expected = rows.zip(row_bytes).and_then(|(n, row)| n.checked_mul(row));
        match (rows, row_bytes) {
            (Some(rows), Some(row_bytes)) if expected == Some(data.bytes.len()) => Ok(Self {
                name,
                k,
                rows,
                values: Values::Blocks {
                    ty: data.ty,
                    bytes: data.bytes,
                    row_bytes,
                },
            }),
            _ => Err(BackendError::Source {
                weight: name.into(),
                reason: format!(
                    "{} bytes for {:?} of {}, expected {}",
                    data.bytes.len(),
                    data.shape,
                    data.ty,
                    expected.map_or("whole blocks".into(), |n| n.to_string())
                ),
            }),
        }
    }

    /// Elements of a row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Row `j`, decoded into `room` where it is not already.
    pub(crate) fn row<'r>(
        &'r self,
        j: usize,
        room: &'r mut Vec<f32>,
    ) -> Result<&'r [f32], BackendError> {
        match &self.values {
            Values::F32(values) => Ok(&values[j * self.k..][..self.k]),
            Values::Blocks {
                ty,
                bytes,
                row_bytes,
            } => {
                room.resize(self.k, 0.0);
                let decoded = dequantize(*ty, &bytes[j * row_bytes..][..*row_bytes], room);
                decoded.map_err(|source| BackendError::Decode {
                    weight: self.name.into(),
                    source,
                })?;
                Ok(room)
            }
        }
    }

    /// The values of a weight of one axis.
    pub fn vector(&self) -> Result<Cow<'_, [f32]>, BackendError> {
        match &self.values {
            Values::F32(values) => Ok(Cow::Borrowed(values)),
            Values::Blocks { .. } => {
                let mut values = Vec::new();
                self.row(0, &mut values)?;
                Ok(Cow::Owned(values))
            }
        }
    }
}

/// What an operation writes.
#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    /// Where to: an activation, a state, or a carry.
    pub buffer: BufferId,
    /// Rows of that buffer's first axis (of a state: its slots), with their elements from the first one on. A row of index scores is
    /// as long as its own row sees.
    pub rows: Rows,
}

/// Rows of one element type, by index.
#[derive(Debug, Clone, PartialEq)]
pub enum Rows {
    /// Numbers.
    F32(Vec<(usize, Vec<f32>)>),
    /// Positions, experts, tokens.
    I32(Vec<(usize, Vec<i32>)>),
}

/// Calls `f` on consecutive ranges that tile `0..n`, in at most `threads` threads with at least `grain` each; results in order.
pub(super) fn ranges<T: Send>(
    n: usize,
    grain: usize,
    threads: usize,
    f: impl Fn(Range<usize>) -> T + Sync,
) -> Vec<T> {
    let threads = threads.min(n / grain.max(1)).max(1);
    if threads == 1 {
        return vec![f(0..n)];
    }
    let cut = |i: usize| i * n / threads;
    std::thread::scope(|scope| {
        let spawned: Vec<_> = (0..threads)
            .map(|i| {
                let f = &f;
                scope.spawn(move || f(cut(i)..cut(i + 1)))
            })
            .collect();
        let join = |handle: std::thread::ScopedJoinHandle<'_, T>| {
            handle
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        spawned.into_iter().map(join).collect()
    })
}
