//! Products of weights with activations.
//!
//! Work is cut by weight rows. A thread unpacks (or decodes) a row once and multiplies it with all activations it meets, so a
//! weight is read from memory once for a step however many rows the step has.
//!
//! How a weight is multiplied depends on its type and on the arithmetic asked for, never on the number of rows:
//!
//! | weight | exact | fast |
//! | --- | --- | --- |
//! | integer types (see [`unpack`]) | decode to f32 | 8-bit activations, integer dot products |
//! | F32, F16, BF16 and all others | decode to f32 | decode to f32, fused multiply-add |

mod dot;
pub(crate) mod q8;
mod unpack;

use std::ops::Range;

use glim_quant::{GgmlType, dequantize};

use self::dot::{Dots, Scalar, TILE};
use self::q8::{BLOCK, Q8};
use self::unpack::{Row, is_integer};
use crate::detect::Isa;

/// Arithmetic of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Math {
    /// F32 in the reference's own order of summation: the same bits.
    Exact,
    /// 8-bit activations where weights are integers, fused multiply-adds elsewhere.
    Fast,
}

/// Which loops run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kernels {
    pub(crate) isa: Isa,
    pub(crate) math: Math,
}

/// A resident weight: rows of blocks.
#[derive(Debug)]
pub(crate) struct Weight {
    pub(crate) ty: GgmlType,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
    /// Elements and bytes of a row.
    pub(crate) k: usize,
    row_bytes: usize,
}

impl Weight {
    pub(crate) fn new(ty: GgmlType, shape: Vec<usize>, bytes: Vec<u8>) -> Self {
        let k = shape.last().copied().unwrap_or(1);
        let rows: usize = shape.iter().rev().skip(1).product();
        let row_bytes = bytes.len() / rows.max(1);
        Self {
            ty,
            shape,
            bytes,
            k,
            row_bytes,
        }
    }

    /// Blocks of row `j` (all axes but the last flattened).
    pub(crate) fn row(&self, j: usize) -> &[u8] {
        &self.bytes[j * self.row_bytes..][..self.row_bytes]
    }

    /// Whether the product in fast math wants 8-bit activations.
    pub(crate) fn wants_q8(&self) -> bool {
        is_integer(self.ty) && self.k.is_multiple_of(BLOCK)
    }

    /// Decodes row `j` into f32.
    pub(crate) fn decode(&self, j: usize, out: &mut [f32]) {
        self.decode_inline(j, out);
    }

    /// The plain types here, so that they are decoded with the caller's instructions; all others by the codecs.
    #[inline(always)]
    fn decode_inline(&self, j: usize, out: &mut [f32]) {
        let row = self.row(j);
        let halves = || {
            row.chunks_exact(2)
                .map(|b| u16::from_le_bytes([b[0], b[1]]))
        };
        match self.ty {
            GgmlType::F32 => {
                for (o, b) in out.iter_mut().zip(row.chunks_exact(4)) {
                    *o = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
                }
            }
            GgmlType::BF16 => {
                for (o, bits) in out.iter_mut().zip(halves()) {
                    *o = f32::from_bits(u32::from(bits) << 16);
                }
            }
            _ => {
                let decoded = dequantize(self.ty, row, out);
                // The backend takes no type that it cannot decode, and rows are whole blocks.
                debug_assert!(decoded.is_ok(), "{decoded:?}");
            }
        }
    }
}

/// Activations: rows of f32, and the same rows as 8-bit integers where a weight wants them.
#[derive(Clone, Copy)]
pub(crate) struct Operand<'a> {
    /// `[rows, k]`.
    pub(crate) f32s: &'a [f32],
    pub(crate) q8: Option<&'a Q8>,
}

/// A thread's own buffers.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    row: Row,
    decoded: Vec<f32>,
}

impl Kernels {
    /// `Σ a[i] · b[i]`.
    pub(crate) fn dot(self, a: &[f32], b: &[f32]) -> f32 {
        self.dispatch(Dot { a, b })
    }

    /// `acc += w · x`.
    pub(crate) fn axpy(self, acc: &mut [f32], w: f32, x: &[f32]) {
        self.dispatch(Axpy { acc, w, x });
    }

    /// Multiplies weight rows `w_rows` with the activation rows `x_rows`; `out(row of x, row of w, value)` gets each product.
    pub(crate) fn product<O: Fn(usize, usize, f32)>(
        self,
        w: &Weight,
        w_rows: Range<usize>,
        x: Operand<'_>,
        x_rows: &[usize],
        scratch: &mut Scratch,
        out: O,
    ) {
        match x.q8.filter(|_| self.math == Math::Fast && w.wants_q8()) {
            Some(q8) => self.dispatch(ProductQ8 {
                w,
                w_rows,
                q8,
                x_rows,
                row: &mut scratch.row,
                out,
            }),
            None => {
                let decoded = &mut scratch.decoded;
                self.dispatch(ProductF32 {
                    w,
                    w_rows,
                    x: x.f32s,
                    x_rows,
                    decoded,
                    out,
                });
            }
        }
    }

    /// Runs a task with the loops of this set, compiled with the set's instructions.
    fn dispatch<T: Task>(self, task: T) -> T::Out {
        match (self.math, self.isa) {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `Isa::available` has found AVX2.
            (Math::Exact, Isa::Avx2 | Isa::Avx512Vnni) => unsafe { x86::exact(task) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `Isa::available` has found AVX2, FMA and F16C.
            (Math::Fast, Isa::Avx2) => unsafe { x86::avx2(task) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `Isa::available` has found AVX-512 VNNI and VL as well.
            (Math::Fast, Isa::Avx512Vnni) => unsafe { x86::vnni(task) },
            _ => task.run::<Scalar>(),
        }
    }
}

/// Work that is compiled once for each set of instructions.
trait Task {
    type Out;

    /// Must be `#[inline(always)]`, so that it takes on the instructions of its caller.
    fn run<D: Dots>(self) -> Self::Out;
}

/// The entry points: everything that they inline is compiled with their instructions.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Task;
    use super::dot::{Avx2, Scalar, Vnni};

    /// The portable loops on wider registers; without FMA, so that the bits stay the reference's.
    #[target_feature(enable = "avx2")]
    pub(super) fn exact<T: Task>(task: T) -> T::Out {
        task.run::<Scalar>()
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn avx2<T: Task>(task: T) -> T::Out {
        task.run::<Avx2>()
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512vnni,avx512vl")]
    pub(super) fn vnni<T: Task>(task: T) -> T::Out {
        task.run::<Vnni>()
    }
}

struct Dot<'a> {
    a: &'a [f32],
    b: &'a [f32],
}

impl Task for Dot<'_> {
    type Out = f32;

    #[inline(always)]
    fn run<D: Dots>(self) -> f32 {
        D::f32(self.a, self.b)
    }
}

struct Axpy<'a> {
    acc: &'a mut [f32],
    w: f32,
    x: &'a [f32],
}

impl Task for Axpy<'_> {
    type Out = ();

    #[inline(always)]
    fn run<D: Dots>(self) {
        D::axpy(self.acc, self.w, self.x);
    }
}

struct ProductQ8<'a, O> {
    w: &'a Weight,
    w_rows: Range<usize>,
    q8: &'a Q8,
    x_rows: &'a [usize],
    row: &'a mut Row,
    out: O,
}

impl<O: Fn(usize, usize, f32)> Task for ProductQ8<'_, O> {
    type Out = ();

    #[inline(always)]
    fn run<D: Dots>(self) {
        let Self {
            w,
            w_rows,
            q8,
            x_rows,
            row,
            out,
        } = self;
        row.resize(w.ty, w.k);
        for j in w_rows {
            row.unpack(w.ty, w.row(j));
            let (tiles, rest) = x_rows.as_chunks::<TILE>();
            for tile in tiles {
                for (t, value) in tile.iter().zip(D::q8(row, tile.map(|t| q8.row(t)))) {
                    out(*t, j, value);
                }
            }
            for t in rest {
                let [value] = D::q8(row, [q8.row(*t)]);
                out(*t, j, value);
            }
        }
    }
}

struct ProductF32<'a, O> {
    w: &'a Weight,
    w_rows: Range<usize>,
    x: &'a [f32],
    x_rows: &'a [usize],
    decoded: &'a mut Vec<f32>,
    out: O,
}

impl<O: Fn(usize, usize, f32)> Task for ProductF32<'_, O> {
    type Out = ();

    #[inline(always)]
    fn run<D: Dots>(self) {
        let Self {
            w,
            w_rows,
            x,
            x_rows,
            decoded,
            out,
        } = self;
        decoded.resize(w.k, 0.0);
        for j in w_rows {
            w.decode_inline(j, decoded);
            for t in x_rows {
                out(*t, j, D::f32(decoded, &x[t * w.k..][..w.k]));
            }
        }
    }
}
