// Rounded activations in shared memory, for products on tensor cores (sums.cuh).
//
// A row is brought as it is, or rounded on the way (the same bits; short rows are not worth a kernel of their own), and filled up with zeros to whole units; rows of scales and of sums are padded, so that two rows lie in
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

    // Brings row `r` from `x`, a row of `k` elements, past L1: all threads of the block, which then meet. Not with the copies that bring
    // weights: they end in their order, and what is asked for last is needed first.
    __device__ __forceinline__ void fill(int r, const Q8& x, int k, bool with_sums) const {
        u8* const to_q = q(r);
        float *const to_d = d(r), *const to_s = s(r);
        const int n_q = k / 16, n_d = k / 32, n_s = with_sums ? k / 16 : 0;
        if (k == span) {
            // Pieces of 16 bytes: of the integers, of their scales, of their sums.
            const int end_q = n_q, end_d = end_q + n_d / 4, end = end_d + n_s / 4;
            auto move = [&](int i, auto f) {
                if (i >= end) return;
                if (i < end_q) f(to_q + 16 * i, reinterpret_cast<const u8*>(x.q) + 16 * i);
                else if (i < end_d) f(reinterpret_cast<u8*>(to_d + 4 * (i - end_q)), reinterpret_cast<const u8*>(x.d + 4 * (i - end_q)));
                else f(reinterpret_cast<u8*>(to_s + 4 * (i - end_d)), reinterpret_cast<const u8*>(x.s + 4 * (i - end_d)));
            };
            constexpr int AT_ONCE = 3;
#pragma unroll 1
            for (int first = int(threadIdx.x); first < end; first += AT_ONCE * int(blockDim.x)) {
                uint4 v[AT_ONCE];
                u8* to[AT_ONCE];
#pragma unroll
                for (int j = 0; j < AT_ONCE; j++) {
                    to[j] = nullptr;
                    move(first + j * int(blockDim.x), [&](u8* at, const u8* from) { to[j] = at, v[j] = load16(from); });
                }
#pragma unroll
                for (int j = 0; j < AT_ONCE; j++)
                    if (to[j]) *reinterpret_cast<uint4*>(to[j]) = v[j];
            }
            return;
        }
        // Rows of scales begin anywhere, and units end behind the row.
        const uint4 zeros = make_uint4(0, 0, 0, 0);
#pragma unroll 1
        for (int i = int(threadIdx.x); i < span / 16; i += int(blockDim.x)) {
            reinterpret_cast<uint4*>(to_q)[i] = i < n_q ? load16(reinterpret_cast<const u8*>(x.q) + 16 * i) : zeros;
            if (with_sums) to_s[i] = i < n_s ? __uint_as_float(load4(x.s + i)) : 0.0f;
            if (i < span / 32) to_d[i] = i < n_d ? __uint_as_float(load4(x.d + i)) : 0.0f;
        }
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
