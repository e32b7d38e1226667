// Activations as signed bytes: one scale for each 32 elements, in the arithmetic of the CPU backend (matmul/q8.rs), bit for bit.
//
// round(x / d) in -127 .. 127 with d = max |x| / 127. A block with a NaN or an infinity gets a NaN for its scale, so that what is
// not a number reaches the result. A block whose scale is below the smallest normal number is zero.
#pragma once
#include "common.cuh"

// One rounded row of `k` elements. Sums are the integers' sums times their scale, for weights with offsets.
struct Q8 {
    // [k / 4]: signed bytes in order; 16-byte aligned.
    const u32* q;
    // [k / 32]
    const float* d;
    // [k / 16]
    const float* s;
};

// Row `i` of three arrays of rows.
__device__ __forceinline__ Q8 q8_row(const u8* q, const float* d, const float* s, int k, u64 i) {
    return {reinterpret_cast<const u32*>(q + i * u64(k)), d + i * u64(k / 32), s + i * u64(k / 16)};
}

// Four elements of a row, which need not be aligned (`aligned` is the same in all threads).
__device__ __forceinline__ float4 four(const float* x, bool aligned) {
    if (aligned) return *reinterpret_cast<const float4*>(x);
    return make_float4(x[0], x[1], x[2], x[3]);
}

__device__ __forceinline__ bool is_aligned16(const void* p) { return (reinterpret_cast<u64>(p) & 15) == 0; }

// The bits without the sign order as the magnitudes do, with infinity above all numbers and NaN above infinity.
__device__ __forceinline__ u32 magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }

// Four elements of a block of 32, whose eight threads are neighbours in a warp of which all threads call: gives the rounded bytes,
// the block's scale, and the scaled sum of this half of the block.
__device__ __forceinline__ u32 q8_four(float4 x, float& scale, float& sum) {
    u32 largest = max(max(magnitude(x.x), magnitude(x.y)), max(magnitude(x.z), magnitude(x.w)));
#pragma unroll
    for (int step = 4; step; step >>= 1) largest = max(largest, __shfl_xor_sync(FULL, largest, step));
    scale = __uint_as_float(largest) / 127.0f;
    float inverse = 1.0f / scale;
    if (largest >= 0x7f800000u) {
        scale = __uint_as_float(0x7fc00000u), inverse = 0.0f;
    } else if (scale < 1.17549435e-38f) {
        // The inverse would be infinite.
        scale = 0.0f, inverse = 0.0f;
    }
    // Adding 1.5 · 2^23 rounds to an integer, ties to even, and leaves it in the low bits. Not fused: two roundings, as on the CPU.
    const float magic = 12582912.0f;
    u32 q = (__float_as_uint(__fadd_rn(__fmul_rn(x.x, inverse), magic)) & 0xff) |
            (__float_as_uint(__fadd_rn(__fmul_rn(x.y, inverse), magic)) & 0xff) << 8 |
            (__float_as_uint(__fadd_rn(__fmul_rn(x.z, inverse), magic)) & 0xff) << 16 |
            __float_as_uint(__fadd_rn(__fmul_rn(x.w, inverse), magic)) << 24;
    int total = __dp4a(0x01010101, int(q), 0);
    total += __shfl_xor_sync(FULL, total, 1);
    total += __shfl_xor_sync(FULL, total, 2);
    sum = scale * float(total);
    return q;
}

// Where rows of `k` elements go rounded, as q8.cu leaves them; `q` null: nowhere.
struct Rounding {
    u8* q;
    float* d;
    float* s;

    // Elements `at..at + 4` of row `row`. All threads of a warp call, and each eight of them, from a multiple of eight on, have the
    // 32 elements of a block in order.
    __device__ __forceinline__ void put(u64 row, int k, int at, float4 v) const {
        float scale, sum;
        const u32 bytes = q8_four(at < k ? v : make_float4(0.0f, 0.0f, 0.0f, 0.0f), scale, sum);
        if (at >= k) return;
        *reinterpret_cast<u32*>(q + row * u64(k) + u64(at)) = bytes;
        if (at % 32 == 0) d[row * u64(k / 32) + u64(at / 32)] = scale;
        if (at % 16 == 0) s[row * u64(k / 16) + u64(at / 16)] = sum;
    }
};
