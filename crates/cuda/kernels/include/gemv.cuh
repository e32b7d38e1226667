// What the matrix-vector kernels share: the weights of a launch. And of the one of floats: which thread computes which row, and how a
// row's parts are summed.
//
// `lanes` threads (a power of two, whole warps above 32) share a weight row; a block of `blockDim.x` threads works on
// blockDim.x / lanes rows at a time, and takes every gridDim.x-th such group of them. The rows are those of up to four weights of one type, one weight after the other. blockIdx.y is a pass over ROWS rows of
// activations, blockIdx.z a head (HeadProject; one otherwise).
//
// Order of summation: thread `lane` takes units lane, lane + lanes, ...; then a butterfly within the warp, then warps in order.
// It depends on `lanes` alone, which depends on the weights' shape and type.
#pragma once
#include "common.cuh"

constexpr int GEMV_WEIGHTS = 4;
constexpr int GEMV_THREADS = 512;

// Up to four weights, as program/linear.rs packs them; by value and `__grid_constant__`, so that one is found by its number and not by
// looking at all.
struct GemvTargets {
    const u8* w[GEMV_WEIGHTS];
    float* y[GEMV_WEIGHTS];
    // Rows of a head, of each weight; 0: no such weight.
    int m[GEMV_WEIGHTS];
    // The rows, or tiles of rows, before each weight's; `all`, where there is none. And all of them.
    int before[GEMV_WEIGHTS];
    int all;
    int reserved;

    // The weight that row (or tile) `v` is of; the first for one that is not there.
    __device__ __forceinline__ int weight_of(int v) const {
        return v < all ? (v >= before[1]) + (v >= before[2]) + (v >= before[3]) : 0;
    }
};

// A row of a weight and where its products go.
struct GemvRow {
    const u8* w;
    float* y;
    // Rows of the whole weight, which is also the distance of two rows of results.
    u64 rows;
    // This row among them.
    u64 row;
    bool is_there;
};

// Row `v` of all weights, for one head. A row that is not there is row 0 of the first weight, for nobody to use.
__device__ __forceinline__ GemvRow gemv_row(const GemvTargets& t, int v) {
    const int i = t.weight_of(v);
    const bool is_there = v < t.all;
    const u64 m = u64(t.m[i]);
    return {t.w[i], t.y[i], m * gridDim.z, u64(blockIdx.z) * m + u64(is_there ? v - t.before[i] : 0), is_there};
}

// Sums the parts of `lanes` threads; every thread of the row has the sum. `room` holds R floats for each warp. All threads call.
template <int R> __device__ __forceinline__ void gemv_sum(float (&acc)[R], int lanes, float* room) {
#pragma unroll
    for (int r = 0; r < R; r++) {
        for (int step = min(lanes, WARP) / 2; step; step >>= 1) acc[r] += __shfl_xor_sync(FULL, acc[r], step);
    }
    if (lanes <= WARP) return;
    int warp = int(threadIdx.x) / WARP, warps = lanes / WARP, first = warp / warps * warps;
    if (threadIdx.x % WARP == 0) {
#pragma unroll
        for (int r = 0; r < R; r++) room[warp * R + r] = acc[r];
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < R; r++) {
        acc[r] = 0.0f;
        for (int w = 0; w < warps; w++) acc[r] += room[(first + w) * R + r];
    }
    __syncthreads();
}

// Writes the products of one weight row with `count` rows of activations, the first of which is `first`.
template <int R>
__device__ __forceinline__ void gemv_store(const float (&acc)[R], const GemvRow& row, int lane, int first, int count) {
#pragma unroll
    for (int r = 0; r < R; r++) {
        if (row.is_there && lane == 0 && r < count) row.y[u64(first + r) * row.rows + row.row] = acc[r];
    }
}
