// Rounded activations in shared memory, for products on tensor cores (sums.cuh).
//
// A row is copied, or rounded on the way (the same bits; short rows are not worth a kernel of their own), and filled up with zeros to whole units; rows of scales and of sums are padded, so that two rows lie in
// different banks. 16 bytes of zeros come first, for lanes that have nothing to add. Loops are not unrolled: most run once, and what is
// long takes time to fetch.
#pragma once
#include "mma.cuh"
#include "q8.cuh"
#include "silu.cuh"

struct Staged {
    const u8* zero;
    // Elements of a row in shared memory; rows, and how many there is room for: one, or an even number, since a pass takes two.
    int span, count, room;

    // Host: `staged_bytes` in program/linear.rs.
    __device__ __forceinline__ Staged(u8* at, int span, int count) : zero(at), span(span), count(count), room(count == 1 ? 1 : (count + 1) / 2 * 2) {}

    // The row that stands for row `r` of a pass, 0 or 1.
    __device__ __forceinline__ int row(int r) const { return count == 1 ? 0 : r; }

    __device__ __forceinline__ int row_of_d() const { return span / 32 + 4; }
    __device__ __forceinline__ int row_of_s() const { return span / 16 + 8; }

    __device__ __forceinline__ u8* q(int r) const { return const_cast<u8*>(zero) + 16 + r * span; }
    __device__ __forceinline__ float* d(int r) const { return reinterpret_cast<float*>(q(room)) + r * row_of_d(); }
    __device__ __forceinline__ float* s(int r) const { return d(room) + r * row_of_s(); }

    // All threads of the block; a barrier comes before the zeros are read.
    __device__ __forceinline__ void clear() const {
        if (threadIdx.x < 4) reinterpret_cast<u32*>(const_cast<u8*>(zero))[threadIdx.x] = 0;
    }

    // Copies `n` numbers and adds zeros up to `all`: all threads of the block.
    static __device__ __forceinline__ void copy(float* to, const float* from, int n, int all, bool whole) {
        if (whole) {
#pragma unroll 1
            for (int i = 4 * int(threadIdx.x); i < all; i += 4 * int(blockDim.x)) copy16(to + i, from + i);
        } else {
#pragma unroll 1
            for (int i = int(threadIdx.x); i < all; i += int(blockDim.x)) {
                if (i < n) copy4(to + i, from + i);
                else to[i] = 0.0f;
            }
        }
    }

    // Copies row `r` from `x`, a row of `k` elements, in the background: all threads of the block, which then wait for copies and meet.
    __device__ __forceinline__ void fill(int r, const Q8& x, int k, bool with_sums) const {
        const bool whole = k == span;
        u8* to = q(r);
#pragma unroll 1
        for (int i = 16 * int(threadIdx.x); i < span; i += 16 * int(blockDim.x)) {
            if (i < k) copy16(to + i, reinterpret_cast<const u8*>(x.q) + i);
            else *reinterpret_cast<uint4*>(to + i) = make_uint4(0, 0, 0, 0);
        }
        copy(d(r), x.d, k / 32, span / 32, whole);
        if (with_sums) copy(this->s(r), x.s, k / 16, span / 16, whole);
    }

    // Rounds four elements of row `r` from element `i` on: neighbouring threads take neighbouring fours, and whole warps call.
    // Scales and sums are multiplied by `factor`.
    __device__ __forceinline__ void put(int r, int i, float4 v, float factor) const {
        float scale, sum;
        *reinterpret_cast<u32*>(q(r) + i) = q8_four(v, scale, sum);
        if (i % 32 == 0) d(r)[i / 32] = factor * scale;
        if (i % 16 == 0) s(r)[i / 16] = factor * sum;
    }

    // Rounds row `r`, `k` elements at `x`, or with `up` those of silu(x) · up: all threads of the block, in whole warps, which then meet. With
    // `up` both are settled and lie in whole 16-byte pieces, and do not come through L1.
    __device__ __forceinline__ void round(int r, const float* x, const float* up, int k) const {
        const bool aligned = is_aligned16(x);
#pragma unroll 1
        for (int i = 4 * int(threadIdx.x); i < span; i += 4 * int(blockDim.x)) {
            float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (i < k) v = up ? gated(load_floats(x + i), load_floats(up + i)) : four(x + i, aligned);
            put(r, i, v, 1.0f);
        }
    }
};
