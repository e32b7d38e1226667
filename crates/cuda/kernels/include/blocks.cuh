// Blocks of every quantised type, on the device: where they lie, and what their 32-element pieces say.
//
// A type is a struct with
//   ELEMS, BYTES   of a block, as in the quant crate's registry
//   SCALES         scales that 32 elements have: 1, or 2 (one for each 16)
//   OFFSETS        offsets that 32 elements have: 0, 1 or 2
//   INTEGER        whether elements are scaled integers: all types but F32, F16 and BF16
//   Raw, load      the words of 32 elements as they lie in memory: nothing is computed, so loads can be many in flight
//   expand         Raw to a Sub
// and `-DTYPE=Q4_K` (the name in ggml) chooses one. `unpack32` and `decode32` do all of it at once.
//
// Layout. Blocks of 34, 22 or 210 bytes cannot be read 16 bytes at a time. A weight of such a type lies in *planes*: field by field,
// each the same field of all blocks in order (the fields of a type and their order stand beside it; `src/layout.rs` moves the
// bytes, there and back). A weight takes the same bytes in either form. Q4_K, Q5_K and IQ1_M, and the float types, lie as stored.
// So a block is named by its weight's address, the number of blocks of the whole weight (all rows, all experts), and its own
// number: row · blocks a row + block of the row. Every weight begins at a multiple of 256 bytes.
//
// Values are those of the quant crate, bit for bit: products of scale and integer are exact there and here (see its k_quants.rs),
// and an offset is added with one rounding.
#pragma once
#include "common.cuh"

// 32 elements: w[i] = scale[i / 16] * q[i] + offset[i / 16]. All fields are set, whatever SCALES and OFFSETS are.
struct Sub {
    // Signed bytes in order, four to a word, the first lowest.
    u32 q[8];
    float scale[2];
    float offset[2];
};

#include "blocks/bits.cuh"
#include "blocks/legacy.cuh"
#include "blocks/k_quants.cuh"
#include "blocks/iq4.cuh"
#include "blocks/fp4.cuh"
#include "blocks/ternary.cuh"
#include "blocks/grid.cuh"
#include "blocks/floats.cuh"

// Elements 32·sub .. of block `block`, of `blocks` at `weight`.
template <class B>
__device__ __forceinline__ void unpack32(const u8* weight, u64 blocks, u64 block, int sub, Sub& out) {
    typename B::Raw raw;
    B::load(raw, weight, blocks, block, sub);
    B::expand(raw, sub, out);
}

// Element `i` of a Sub, a constant after unrolling.
__device__ __forceinline__ int sub_q(const Sub& s, int i) { return int(i8(s.q[i / 4] >> (8 * (i % 4)))); }

// Values of a Sub, in the quant crate's bits: without offsets none is added, since -0 + 0 is 0.
template <class B> __device__ __forceinline__ void values32(const Sub& s, float* w) {
#pragma unroll
    for (int i = 0; i < 32; i++) {
        float q = float(sub_q(s, i));
        w[i] = B::OFFSETS ? fmaf(s.scale[i / 16], q, s.offset[i / 16]) : s.scale[i / 16] * q;
    }
}

// The same elements as `unpack32`, as floats.
template <class B>
__device__ __forceinline__ void decode32(const u8* weight, u64 blocks, u64 block, int sub, float* w) {
    Sub s;
    unpack32<B>(weight, blocks, block, sub, s);
    values32<B>(s, w);
}

// 32 elements times 32 activations rounded to signed bytes: `x` eight words, 16-byte aligned, of scale `d`; `ds` is `d` times the
// sum of all 32. One order for every caller.
template <class B> __device__ __forceinline__ float dot32(const Sub& w, const u32* x, float d, float ds) {
    int dot[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 8; i++) dot[i / 4] = __dp4a(int(w.q[i]), int(x[i]), dot[i / 4]);
    float sum;
    if constexpr (B::SCALES == 1) {
        sum = w.scale[0] * float(dot[0] + dot[1]);
    } else {
        sum = fmaf(w.scale[1], float(dot[1]), w.scale[0] * float(dot[0]));
    }
    if constexpr (B::OFFSETS == 0) return sum * d;
    if constexpr (B::OFFSETS == 1) return fmaf(sum, d, w.offset[0] * ds);
    int ones[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 8; i++) ones[i / 4] = __dp4a(0x01010101, int(x[i]), ones[i / 4]);
    sum = fmaf(w.offset[0], float(ones[0]), sum);
    return fmaf(w.offset[1], float(ones[1]), sum) * d;
}
