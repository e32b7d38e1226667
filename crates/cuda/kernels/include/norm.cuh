// What norms share: a row in registers, its sums in a fixed order, and the ways it leaves. `-DPIECES`: pieces of a thread.
//
// `threads` of a block work on a row; piece i of a thread is four elements from 4 · (threadIdx.x + i · threads). Threads beyond
// have nothing but zeros, which no sum feels; all threads of the block call these functions.
#pragma once
#include "q8.cuh"

struct Pieces {
    // The thread's own elements, in order.
    float v[4 * PIECES];

    __device__ __forceinline__ float4 piece(int i) const { return make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]); }
    __device__ __forceinline__ void set(int i, float4 p) { v[4 * i] = p.x, v[4 * i + 1] = p.y, v[4 * i + 2] = p.z, v[4 * i + 3] = p.w; }
};

// First element of the thread's piece `i`, which is at least `width` if there is none.
__device__ __forceinline__ int place(int i, int width, int threads) {
    const int tid = threadIdx.x;
    return tid < threads ? 4 * (tid + i * threads) : width;
}

// The elements of a row that a block writes, of whole warps' pieces: all, or those of its part.
struct Share {
    int from, to;
};

__device__ __forceinline__ Share share_of(int width, int part, int parts) {
    const int each = (width + 128 * parts - 1) / (128 * parts) * 128;
    return {part * each, min((part + 1) * each, width)};
}

// Weight types: norms are F32 in GGUF files, but checkpoints keep them as they were trained.
constexpr int WEIGHT_F32 = 0;
constexpr int WEIGHT_F16 = 1;
constexpr int WEIGHT_BF16 = 2;

__device__ __forceinline__ float weight_of(const void* weight, int type, int i) {
    if (type == WEIGHT_F32) return __uint_as_float(load4(static_cast<const float*>(weight) + i));
    const u16 half = load2(static_cast<const u16*>(weight) + i);
    return type == WEIGHT_F16 ? h2f(half) : bf2f(half);
}

// Weights do not depend on the step: they are on their way while the kernel before this one ends.
__device__ __forceinline__ Pieces weights(const void* weight, int type, int width, int threads) {
    Pieces w = {};
    const bool whole = type == WEIGHT_F32 && width % 4 == 0;
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const int at = place(i, width, threads);
        if (at >= width) continue;
        if (whole) {
            w.set(i, load_floats(static_cast<const float*>(weight) + at));
            continue;
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            if (at + e < width) w.v[4 * i + e] = weight_of(weight, type, at + e);
        }
    }
    return w;
}

__device__ __forceinline__ Pieces elements(const float* row, int width, int threads) {
    Pieces v = {};
    const bool whole = width % 4 == 0 && is_aligned16(row);
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const int at = place(i, width, threads);
        if (at >= width) continue;
        if (whole) {
            v.set(i, *reinterpret_cast<const float4*>(row + at));
            continue;
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            if (at + e < width) v.v[4 * i + e] = row[at + e];
        }
    }
    return v;
}

__device__ __forceinline__ float sum_of_squares(const Pieces& v, int threads, float* room) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 4 * PIECES; i++) sum = fmaf(v.v[i], v.v[i], sum);
    return sum_of_warps(sum, threads / WARP, room);
}

// `room`: a float for each warp.
__device__ __forceinline__ void scale_rms(Pieces& v, const Pieces& w, float eps, int width, int threads, float* room) {
    const float scale = 1.0f / sqrtf(sum_of_squares(v, threads, room) / width + eps);
#pragma unroll
    for (int i = 0; i < 4 * PIECES; i++) v.v[i] = v.v[i] * scale * w.v[i];
}

// The variance is that of the differences from the mean: squares of the values themselves would cancel. `room`: two floats for each
// of 32 warps.
__device__ __forceinline__ void scale_centred(Pieces& v, const Pieces& w, const Pieces& b, float eps, int width, int threads, float* room) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 4 * PIECES; i++) sum += v.v[i];
    const float mean = sum_of_warps(sum, threads / WARP, room) / width;
#pragma unroll
    for (int i = 0; i < 4 * PIECES; i++) {
        v.v[i] = place(i / 4, width, threads) + i % 4 < width ? v.v[i] - mean : 0.0f;
    }
    const float scale = 1.0f / sqrtf(sum_of_squares(v, threads, room + WARP) / width + eps);
#pragma unroll
    for (int i = 0; i < 4 * PIECES; i++) v.v[i] = v.v[i] * scale * w.v[i] + b.v[i];
}

// The block's share of a row.
__device__ __forceinline__ void store(const Pieces& v, float* row, Share share, int width, int threads) {
    const bool whole = width % 4 == 0 && is_aligned16(row);
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const int at = place(i, width, threads);
        if (at < share.from || at >= share.to) continue;
        if (whole) {
            *reinterpret_cast<float4*>(row + at) = v.piece(i);
            continue;
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            if (at + e < width) row[at + e] = v.v[4 * i + e];
        }
    }
}

// The same of row `r` rounded, if somebody wants it.
__device__ __forceinline__ void store_rounded(const Pieces& v, const Rounding& to, int r, Share share, int width, int threads) {
    if (!to.q) return;
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const int at = place(i, width, threads);
        // Of a warp all pieces or none; those behind the end belong to nobody.
        if (at >= share.from && at / 128 * 128 < share.to) to.put(r, width, at, v.piece(i));
    }
}
