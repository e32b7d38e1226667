// The k-th largest of many ranked values (draw.cuh), by a block: radix select.
#pragma once
#include "draw.cuh"

constexpr int BINS = 2048;

// Finds the bin, counted from the highest, in which `k` are reached. Result in `found`: the bin, and how many lie above it.
// All threads of a block of whole warps; ends with a barrier.
__device__ __forceinline__ void find_bin(const u32* bins, u32 k, u32* room, u32* found) {
    const int warps = blockDim.x / WARP, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, each = BINS / blockDim.x;
    const int high = BINS - 1 - threadIdx.x * each;
    u32 own = 0;
    for (int b = 0; b < each; b++) own += bins[high - b];
    u32 through = own;
#pragma unroll
    for (int step = 1; step < WARP; step <<= 1) {
        const u32 before = __shfl_up_sync(FULL, through, step);
        if (lane >= step) through += before;
    }
    if (lane == WARP - 1) room[warp] = through;
    __syncthreads();
    u32 above = through - own;
    for (int w = 0; w < warps; w++) above += w < warp ? room[w] : 0;
    if (above < k && k <= above + own) {
        int b = 0;
        while (above + bins[high - b] < k) above += bins[high - b++];
        found[0] = high - b, found[1] = above;
    }
    __syncthreads();
}

// The least that belongs to the `k` largest of `get(0) .. get(n − 1)`, where 0 is none and no two others are equal; as a bound:
// exactly `k` are at least that. There must be `k`. All threads of a block; `bins` is shared memory for BINS words.
template <class Get> __device__ __forceinline__ u64 nth_largest(Get get, int n, u32 k, u32* bins) {
    __shared__ u32 room[WARP], found[2];
    // Digits from the top: 11 + 11 + 10 bits of the value, then as many of the token.
    const int shifts[6] = {53, 42, 32, 21, 10, 0};
    u64 prefix = 0;
    int top = 64;
    for (int pass = 0; pass < 6; pass++) {
        const int shift = shifts[pass];
        const u32 digits = (1u << (top - shift)) - 1;
        for (int b = threadIdx.x; b < BINS; b += blockDim.x) bins[b] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += blockDim.x) {
            const u64 r = get(i);
            if (r && (top == 64 || r >> top == prefix)) atomicAdd(&bins[u32(r >> shift) & digits], 1u);
        }
        __syncthreads();
        find_bin(bins, k, room, found);
        const u32 bin = found[0], in_bin = bins[bin];
        k -= found[1];
        prefix = prefix << (top - shift) | bin;
        top = shift;
        // Before `bins` and `found` are written again.
        __syncthreads();
        if (in_bin == k) break;
    }
    return prefix << top;
}
