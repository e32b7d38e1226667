//! From a set of kernels that was chosen at run time to loops that were compiled for it.

use super::dots::{Dots, Scalar};
use super::q8::Q8Parts;
use super::{Math, Operand, Scratch, Weight, product};
use crate::detect::{Isa, Set};

/// Which loops run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kernels {
    pub(crate) isa: Isa,
    pub(crate) math: Math,
}

impl Kernels {
    /// `acc[n] += a[n] · x`.
    pub(crate) fn axpy<const N: usize>(self, acc: [&mut [f32]; N], a: [f32; N], x: &[f32]) {
        self.dispatch(Axpy { acc, a, x });
    }

    /// Multiplies weight rows with activation rows; `out(index among the activation rows, weight row, value)` gets each product.
    pub(crate) fn product<R, O>(
        self,
        w: &Weight,
        w_rows: std::ops::Range<usize>,
        x: Operand<'_>,
        x_rows: XRows<R>,
        scratch: &mut Scratch,
        out: O,
    ) where
        R: Fn(usize) -> usize,
        O: Fn(usize, usize, f32),
    {
        match x.q8.filter(|_| self.wants_q8(w)) {
            Some(q8) => self.dispatch(product::Quantised {
                w,
                w_rows,
                q8,
                x_rows,
                room: &mut scratch.rows,
                out,
            }),
            None => self.dispatch(product::Floats {
                w,
                w_rows,
                x: x.f32s,
                x_rows,
                decoded: &mut scratch.decoded,
                out,
            }),
        }
    }

    /// Whether products with this weight take 8-bit activations.
    pub(crate) fn wants_q8(self, w: &Weight) -> bool {
        self.math == Math::Fast && w.is_integer()
    }

    /// Rounds `x` into row `t`.
    ///
    /// # Safety
    /// - No other thread touches row `t`.
    pub(crate) unsafe fn round(self, q8: &Q8Parts<'_>, t: usize, x: &[f32]) {
        self.dispatch(Round { q8, t, x });
    }

    /// Runs a task with the loops of this set, compiled with the set's instructions.
    pub(crate) fn dispatch<T: Task>(self, task: T) -> T::Out {
        match (self.math, self.isa.0) {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an `Isa` of this set is had only where AVX2 was found.
            (Math::Exact, Set::Avx2 | Set::Avx512Vnni) => unsafe { x86::exact(task) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an `Isa` of this set is had only where AVX2, FMA and F16C were found.
            (Math::Fast, Set::Avx2) => unsafe { x86::avx2(task) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an `Isa` of this set is had only where these and AVX-512 VNNI and VL were found.
            (Math::Fast, Set::Avx512Vnni) => unsafe { x86::vnni(task) },
            (_, Set::Scalar) => task.run(Scalar),
        }
    }
}

/// Rows of activations: how many, and which the `i`-th is.
#[derive(Clone, Copy)]
pub(crate) struct XRows<R> {
    pub(crate) count: usize,
    pub(crate) at: R,
}

/// Work that is compiled once for each set of instructions.
pub(crate) trait Task {
    type Out;

    /// Must be `#[inline(always)]`, so that it takes on the instructions of its caller.
    fn run<D: Dots>(self, dots: D) -> Self::Out;
}

/// The entry points: everything that they inline is compiled with their instructions.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Task;
    use crate::matmul::avx2::{Avx2, Vnni};
    use crate::matmul::dots::Scalar;

    /// The portable loops on wider registers; without FMA, so that the bits stay the reference's.
    #[target_feature(enable = "avx2")]
    pub(super) fn exact<T: Task>(task: T) -> T::Out {
        task.run(Scalar)
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn avx2<T: Task>(task: T) -> T::Out {
        // SAFETY: this function may be called only where they are.
        task.run(unsafe { Avx2::new() })
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512vnni,avx512vl")]
    pub(super) fn vnni<T: Task>(task: T) -> T::Out {
        // SAFETY: this function may be called only where they are.
        task.run(unsafe { Vnni::new() })
    }
}

struct Axpy<'a, const N: usize> {
    acc: [&'a mut [f32]; N],
    a: [f32; N],
    x: &'a [f32],
}

impl<const N: usize> Task for Axpy<'_, N> {
    type Out = ();

    #[inline(always)]
    fn run<D: Dots>(self, dots: D) {
        dots.axpy(self.acc, self.a, self.x);
    }
}

struct Round<'a, 'q> {
    q8: &'a Q8Parts<'q>,
    t: usize,
    x: &'a [f32],
}

impl Task for Round<'_, '_> {
    type Out = ();

    #[inline(always)]
    fn run<D: Dots>(self, _: D) {
        // SAFETY: the row is the caller's alone, by the contract of `Kernels::round`.
        unsafe { self.q8.fill(self.t, self.x) };
    }
}
