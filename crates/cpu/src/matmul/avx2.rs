//! AVX2 with FMA and F16C, and the same with AVX-512 VNNI's dot products, both on 256-bit vectors.
//!
//! Eight f32 lanes hold sums of four products each; two such accumulators take the blocks of 32 in turn. What the weights'
//! offsets add goes to eight lanes of its own, block `b` to lane `b % 8`. Integer sums are exact, so both sets give the same bits.

use std::arch::x86_64::*;

use glim_quant::GgmlType;

use super::blocks_avx2::{self as blocks, Blocks, Visitor};
use super::dots::Dots;
use super::floats_avx2::{Bf16, F16, F32, axpy, floats, horizontal};
use super::q8::{BLOCK, Q8Row};
use super::unpack::Row;

/// AVX2, FMA and F16C are there.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

/// AVX-512 VNNI and VL are there as well.
#[derive(Clone, Copy)]
pub(crate) struct Vnni(());

impl Avx2 {
    /// # Safety
    /// - The processor has AVX2, FMA and F16C.
    /// - The value is used in functions that enable them, or what it does is inlined into such: otherwise it is right, but slow.
    pub(crate) unsafe fn new() -> Self {
        Self(())
    }
}

impl Vnni {
    /// # Safety
    /// - As [`Avx2::new`], and AVX-512 VNNI and VL.
    pub(crate) unsafe fn new() -> Self {
        Self(())
    }
}

/// Sums of four products in each of eight lanes, `w` as bytes 0..=128 and `x` in −127..=127: 128 · 127 · 2 still fits the 16 bits
/// that AVX2's first step has.
trait FourProducts: Copy {
    fn sum(self, w: __m256i, x: __m256i) -> __m256i;
}

impl FourProducts for Avx2 {
    #[inline(always)]
    fn sum(self, w: __m256i, x: __m256i) -> __m256i {
        // SAFETY: `self` proves AVX2.
        unsafe { _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1)) }
    }
}

impl FourProducts for Vnni {
    #[inline(always)]
    fn sum(self, w: __m256i, x: __m256i) -> __m256i {
        // SAFETY: `self` proves AVX-512 VNNI and VL.
        unsafe { _mm256_dpbusd_epi32(_mm256_setzero_si256(), w, x) }
    }
}

/// Sums of four products of signed bytes: `|w| · (x with w's sign)`.
///
/// # Safety
/// - AVX2.
#[inline(always)]
unsafe fn signed<F: FourProducts>(f: F, w: __m256i, x: __m256i) -> __m256i {
    // SAFETY: AVX2 by contract.
    unsafe { f.sum(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w)) }
}

fn assert_lengths(k: usize, x: &Q8Row<'_>) {
    let blocks = k / BLOCK;
    assert!(
        k == blocks * BLOCK && x.q.len() == k && x.d.len() == blocks && x.ds.len() == blocks,
        "rows are of one length, in whole blocks"
    );
}

/// Multiplies sub-blocks with `N` rows of activations as they come.
struct Product<'a, F, const N: usize> {
    products: F,
    unsigned: bool,
    x: [Q8Row<'a>; N],
    /// First sub-block of the current block.
    first: usize,
    /// The accumulators whose turn it is, and the others.
    acc: ([__m256; N], [__m256; N]),
}

impl<F: FourProducts, const N: usize> Visitor for Product<'_, F, N> {
    #[inline(always)]
    unsafe fn take(&mut self, j: usize, q: __m256i, scale: __m256) {
        let b = self.first + j;
        let mut sums = self.acc.0;
        // SAFETY: the instructions by contract; sub-block `b` of each `x` is there by contract.
        unsafe {
            for (x, sum) in self.x.iter().zip(&mut sums) {
                let xq = _mm256_loadu_si256(x.q.as_ptr().add(BLOCK * b).cast());
                let four = match self.unsigned {
                    true => self.products.sum(q, xq),
                    false => signed(self.products, q, xq),
                };
                let scale = _mm256_mul_ps(scale, _mm256_set1_ps(*x.d.as_ptr().add(b)));
                *sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(four), scale, *sum);
            }
        }
        self.acc = (self.acc.1, sums);
    }
}

/// A one among zeros: eight floats from `8 - j` on have it in lane `j`.
static LANES: [f32; 16] = {
    let mut lanes = [0.0; 16];
    lanes[8] = 1.0;
    lanes
};

/// The products of one row of blocks with `N` rows of activations.
///
/// # Safety
/// - AVX2, FMA and F16C.
#[inline(always)]
unsafe fn direct<B: Blocks, F: FourProducts, const N: usize>(
    f: F,
    row: &[u8],
    x: [Q8Row<'_>; N],
) -> [f32; N] {
    let blocks = row.len() / B::BYTES;
    for x in &x {
        assert_lengths(blocks * B::SUBS * BLOCK, x);
    }
    // SAFETY: the instructions by contract. Block `i < blocks` reads its `BYTES` bytes, which lie in `row`, and its sub-blocks of each
    // `x`, whose lengths are asserted; `8 - i % 8` is 1 to 8.
    unsafe {
        let zero = [_mm256_setzero_ps(); N];
        let mut product = Product {
            products: f,
            unsigned: B::UNSIGNED,
            x,
            first: 0,
            acc: (zero, zero),
        };
        let mut offsets = zero;
        for i in 0..blocks {
            product.first = i * B::SUBS;
            let block_offsets = B::each(row.as_ptr().add(i * B::BYTES), &mut product);
            if !B::OFFSETS {
                continue;
            }
            // A block of one sub-block adds to its own lane; to the others it adds a zero.
            let own = _mm256_loadu_ps(LANES.as_ptr().add(8 - i % 8));
            for n in 0..N {
                let ds = x[n].ds.as_ptr();
                let ds = match B::SUBS {
                    8 => _mm256_loadu_ps(ds.add(8 * i)),
                    _ => _mm256_mul_ps(own, _mm256_set1_ps(*ds.add(i))),
                };
                offsets[n] = _mm256_fmadd_ps(block_offsets, ds, offsets[n]);
            }
        }
        let mut out = [0f32; N];
        for n in 0..N {
            out[n] = horizontal(_mm256_add_ps(product.acc.0[n], product.acc.1[n]));
            if B::OFFSETS {
                out[n] += horizontal(offsets[n]);
            }
        }
        out
    }
}

/// Stores sub-blocks in a row.
struct Store<'a> {
    row: &'a mut Row,
    /// First sub-block of the current block.
    first: usize,
}

impl Visitor for Store<'_> {
    #[inline(always)]
    unsafe fn take(&mut self, j: usize, q: __m256i, scale: __m256) {
        let b = self.first + j;
        // SAFETY: AVX by contract; the row has room for sub-block `b` by contract.
        unsafe {
            _mm256_storeu_si256(self.row.q.as_mut_ptr().add(BLOCK * b).cast(), q);
            _mm256_storeu_ps(self.row.scale.as_mut_ptr().add(8 * b), scale);
        }
    }
}

/// Unpacks a row of blocks.
///
/// # Safety
/// - AVX2, FMA and F16C.
#[inline(always)]
unsafe fn unpack<B: Blocks>(blocks: &[u8], row: &mut Row) {
    let n = blocks.len() / B::BYTES;
    let subs = n * B::SUBS;
    assert!(
        row.q.len() == subs * BLOCK && row.scale.len() == subs * 8,
        "a row has room for its blocks"
    );
    assert!(
        !B::OFFSETS || row.offset.len() == subs,
        "and for its offsets"
    );
    let mut store = Store { row, first: 0 };
    for i in 0..n {
        store.first = i * B::SUBS;
        // SAFETY: the instructions by contract; block `i < n` lies in `blocks`, and its sub-blocks in the row's arrays, whose lengths
        // are asserted; offsets come in eights (`SUBS` is 8).
        unsafe {
            let offsets = B::each(blocks.as_ptr().add(i * B::BYTES), &mut store);
            if B::OFFSETS && B::SUBS == 8 {
                _mm256_storeu_ps(store.row.offset.as_mut_ptr().add(8 * i), offsets);
            } else if B::OFFSETS {
                store.row.offset[i] = _mm256_cvtss_f32(offsets);
            }
        }
    }
}

/// What the offsets of an unpacked row add.
///
/// # Safety
/// - AVX and FMA.
#[inline(always)]
unsafe fn offsets(offset: &[f32], ds: &[f32]) -> f32 {
    let (o, d) = (offset.as_chunks::<8>(), ds.as_chunks::<8>());
    // SAFETY: the instructions by contract; arrays of eight floats, unaligned.
    unsafe {
        let mut acc = _mm256_setzero_ps();
        for (o, d) in o.0.iter().zip(d.0) {
            let (o, d) = (_mm256_loadu_ps(o.as_ptr()), _mm256_loadu_ps(d.as_ptr()));
            acc = _mm256_fmadd_ps(o, d, acc);
        }
        let mut lanes = [0f32; 8];
        _mm256_storeu_ps(lanes.as_mut_ptr(), acc);
        for (lane, (o, d)) in lanes.iter_mut().zip(o.1.iter().zip(d.1)) {
            *lane = o.mul_add(*d, *lane);
        }
        horizontal(_mm256_loadu_ps(lanes.as_ptr()))
    }
}

/// Adds block `b` of the products of an unpacked row with `N` rows.
///
/// # Safety
/// - AVX2 and FMA.
/// - Block `b` lies in all rows, and its eight scales in the weight row.
#[inline(always)]
unsafe fn tile_block<F: FourProducts, const N: usize>(
    f: F,
    w: &Row,
    x: &[Q8Row<'_>; N],
    b: usize,
    acc: &mut [__m256; N],
) {
    // SAFETY: by contract.
    unsafe {
        let wq = _mm256_loadu_si256(w.q.as_ptr().add(BLOCK * b).cast());
        let w_abs = _mm256_abs_epi8(wq);
        let scale = _mm256_loadu_ps(w.scale.as_ptr().add(8 * b));
        for n in 0..N {
            let xq = _mm256_loadu_si256(x[n].q.as_ptr().add(BLOCK * b).cast());
            let sums = f.sum(w_abs, _mm256_sign_epi8(xq, wq));
            let scale = _mm256_mul_ps(scale, _mm256_set1_ps(*x[n].d.as_ptr().add(b)));
            acc[n] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), scale, acc[n]);
        }
    }
}

/// # Safety
/// - AVX2 and FMA.
#[inline(always)]
unsafe fn tile<F: FourProducts, const N: usize>(f: F, w: &Row, x: [Q8Row<'_>; N]) -> [f32; N] {
    let n = w.q.len() / BLOCK;
    for x in &x {
        assert_lengths(w.q.len(), x);
    }
    assert!(
        w.scale.len() == 8 * n,
        "eight lanes of scale for each block"
    );
    // SAFETY: the instructions by contract; blocks below `n`, and all lengths are asserted.
    unsafe {
        let mut acc = [[_mm256_setzero_ps(); N]; 2];
        for i in 0..n / 2 {
            tile_block(f, w, &x, 2 * i, &mut acc[0]);
            tile_block(f, w, &x, 2 * i + 1, &mut acc[1]);
        }
        if n % 2 == 1 {
            tile_block(f, w, &x, n - 1, &mut acc[0]);
        }
        let mut out = [0f32; N];
        for n in 0..N {
            out[n] = horizontal(_mm256_add_ps(acc[0][n], acc[1][n]));
            if !w.offset.is_empty() {
                out[n] += offsets(&w.offset, x[n].ds);
            }
        }
        out
    }
}

/// Calls a function for the blocks of an integer type.
macro_rules! for_blocks {
    ($ty:expr, $function:ident::<_ $(, $more:ident)*>($($arg:expr),*)) => {
        match $ty {
            GgmlType::Q8_0 => $function::<blocks::Q8_0 $(, $more)*>($($arg),*),
            GgmlType::Q4_0 => $function::<blocks::Q4_0 $(, $more)*>($($arg),*),
            GgmlType::Q4_1 => $function::<blocks::Q4_1 $(, $more)*>($($arg),*),
            GgmlType::Q5_1 => $function::<blocks::Q5_1 $(, $more)*>($($arg),*),
            GgmlType::Q5_0 => $function::<blocks::Q5_0 $(, $more)*>($($arg),*),
            GgmlType::IQ4_NL => $function::<blocks::Iq4Nl $(, $more)*>($($arg),*),
            GgmlType::Q4_K => $function::<blocks::Q4K $(, $more)*>($($arg),*),
            GgmlType::Q5_K => $function::<blocks::Q5K $(, $more)*>($($arg),*),
            GgmlType::Q6_K => $function::<blocks::Q6K $(, $more)*>($($arg),*),
            GgmlType::IQ4_XS => $function::<blocks::Iq4Xs $(, $more)*>($($arg),*),
            other => unreachable!("{other} has no blocks here"),
        }
    };
}

macro_rules! implement {
    ($set:ident, $features:literal) => {
        impl Dots for $set {
            const PLAIN: bool = true;

            #[inline(always)]
            fn q8_blocks<const N: usize>(
                self,
                ty: GgmlType,
                row: &[u8],
                x: [Q8Row<'_>; N],
                _: &mut Row,
            ) -> [f32; N] {
                /// A function of its own, since a row is long, and there would be a copy for each task.
                #[target_feature(enable = $features)]
                fn products<const N: usize>(
                    set: $set,
                    ty: GgmlType,
                    row: &[u8],
                    x: [Q8Row<'_>; N],
                ) -> [f32; N] {
                    // SAFETY: `set` proves the instructions.
                    unsafe { for_blocks!(ty, direct::<_, $set, N>(set, row, x)) }
                }
                // SAFETY: `self` proves the instructions.
                unsafe { products(self, ty, row, x) }
            }

            #[inline(always)]
            fn unpack(self, ty: GgmlType, blocks: &[u8], row: &mut Row) {
                // SAFETY: `self` proves the instructions.
                unsafe { for_blocks!(ty, unpack::<_>(blocks, row)) }
            }

            #[inline(always)]
            fn q8<const N: usize>(self, w: &Row, x: [Q8Row<'_>; N]) -> [f32; N] {
                // SAFETY: `self` proves the instructions.
                unsafe { tile::<Self, N>(self, w, x) }
            }

            #[inline(always)]
            fn f32<const N: usize>(self, w: &[f32], x: [&[f32]; N]) -> [f32; N] {
                // SAFETY: `self` proves the instructions.
                unsafe { floats::<F32, N>(bytemuck::cast_slice(w), x) }
            }

            #[inline(always)]
            fn plain<const N: usize>(self, ty: GgmlType, w: &[u8], x: [&[f32]; N]) -> [f32; N] {
                // SAFETY: `self` proves the instructions.
                unsafe {
                    match ty {
                        GgmlType::F32 => floats::<F32, N>(w, x),
                        GgmlType::F16 => floats::<F16, N>(w, x),
                        GgmlType::BF16 => floats::<Bf16, N>(w, x),
                        other => unreachable!("{other} is not plain floats"),
                    }
                }
            }

            #[inline(always)]
            fn axpy<const N: usize>(self, acc: [&mut [f32]; N], a: [f32; N], x: &[f32]) {
                // SAFETY: `self` proves the instructions.
                unsafe { axpy(acc, a, x) }
            }
        }
    };
}

implement!(Avx2, "avx2,fma,f16c");
implement!(Vnni, "avx2,fma,f16c,avx512vnni,avx512vl");
