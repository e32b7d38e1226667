// What all kernels of the sampler share: parameters of a row, its tokens, the scan's result, and the noise of the race. The
// specification is plan/src/sample.rs; names are its names.
#pragma once
#include "common.cuh"
#include "order.cuh"

constexpr int TOKEN_CORRUPT = -2;
constexpr int TOKEN_NONE_ALLOWED = -3;

// Logits that one block scans, and its threads. Host: program/head.rs.
constexpr int PART = 2048;
constexpr int PART_THREADS = 256;

// ---- an order of tokens ------------------------------------------------------------------------------------------------------------

// A value and its token in one integer: the larger value first, of equal ones the lower token. 0 is no token.
__device__ __forceinline__ u64 ranked(float value, int token) { return u64(order_key(value)) << 32 | u32(~token); }
__device__ __forceinline__ float ranked_value(u64 r) { return order_value(u32(r >> 32)); }
__device__ __forceinline__ int ranked_token(u64 r) { return int(~u32(r)); }

// ---- a row ---------------------------------------------------------------------------------------------------------------------------

// Logits of a part of the vocabulary under a mask of all of it, or candidates with their tokens.
struct Tokens {
    const float* logits;
    // Null: logit `i` is that of token `first + i`.
    const int* ids;
    const u32* mask;
    int first;

    __device__ __forceinline__ int token(int i) const { return ids ? ids[i] : first + i; }

    // Whether token `i`, of logit `l`, may be drawn. Candidates were masked when they were chosen; −1 is an empty place.
    __device__ __forceinline__ bool is_allowed(int i, float l) const {
        if (ids) return ids[i] >= 0;
        return mask[u32(first + i) / 32] >> (u32(first + i) % 32) & 1 && l > __uint_as_float(0xff800000u);
    }
};

__device__ __forceinline__ Tokens tokens_of(const float* logits, const int* ids, const u32* masks, int words, int first, int width,
                                            int row) {
    return {logits + u64(row) * width, ids ? ids + u64(row) * width : nullptr, ids ? nullptr : masks + u64(row) * words, first};
}

__device__ __forceinline__ bool is_corrupt(float l) { return l != l || l == __uint_as_float(0x7f800000u); }

// What a scan of a part finds.
struct Scan {
    u32 corrupt;
    // Tokens that may be drawn.
    u32 count;
    // The largest logit among them.
    u64 best;
};

__device__ __forceinline__ Scan joined(const Scan& a, const Scan& b) {
    return {a.corrupt | b.corrupt, a.count + b.count, max(a.best, b.best)};
}

__device__ __forceinline__ Scan warp_scan(Scan s) {
#pragma unroll
    for (int step = WARP / 2; step; step >>= 1) {
        s = joined(s, {__shfl_xor_sync(FULL, s.corrupt, step), __shfl_xor_sync(FULL, s.count, step), __shfl_xor_sync(FULL, s.best, step)});
    }
    return s;
}

// The scan of a whole row from those of its parts, in every lane of a warp.
__device__ __forceinline__ Scan scan_of(const Scan* parts, int count) {
    Scan all = {0, 0, 0};
    for (int p = threadIdx.x % WARP; p < count; p += WARP) all = joined(all, parts[p]);
    return warp_scan(all);
}

// ---- parameters ------------------------------------------------------------------------------------------------------------------------

struct Draw {
    float temperature, max;
    u32 seed[2], choice, position;

    // (logit − max) / temperature, at most zero: a tiny temperature makes no infinity and no new ties out of the largest logits.
    __device__ __forceinline__ float scaled(float logit) const {
        const float below = logit - max;
        // 0 · ∞ (a temperature whose inverse overflows) is the largest logit itself.
        return below == 0.0f ? 0.0f : fmaxf(below * (1.0f / temperature), -3.40282347e38f);
    }

    // Standard Gumbel noise of one token: lane `token % 4` of the Philox block at counter (token / 4, position, choice, 0).
    // Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    __device__ __forceinline__ float noise(int token) const {
        u32 c[4] = {u32(token) / 4, position, choice, 0}, key[2] = {seed[0], seed[1]};
#pragma unroll
        for (int round = 0; round < 10; round++) {
            const u64 a = u64(c[0]) * 0xd2511f53u, b = u64(c[2]) * 0xcd9e8d57u;
            const u32 c1 = c[1], c3 = c[3];
            c[0] = u32(b >> 32) ^ c1 ^ key[0];
            c[1] = u32(b);
            c[2] = u32(a >> 32) ^ c3 ^ key[1];
            c[3] = u32(a);
            key[0] += 0x9e3779b9u, key[1] += 0xbb67ae85u;
        }
        const int lane = token % 4;
        const u32 bits = lane == 0 ? c[0] : lane == 1 ? c[1] : lane == 2 ? c[2] : c[3];
        // All ones and a half would be rounded to 1, whose noise is infinite.
        const float u = fminf((float(bits >> 8) + 0.5f) * (1.0f / 16777216.0f), 0.99999994f);
        // In double, then rounded: what a good f32 logarithm gives, but for an ulp now and then.
        const float once = -float(log(double(u)));
        return -float(log(double(once)));
    }
};

__device__ __forceinline__ Draw draw_of(const Rows& rows, int row, const float* temperature, const int* seeds, const int* positions,
                                        u64 best) {
    Draw d;
    d.temperature = temperature[row];
    d.max = best ? fmaxf(ranked_value(best), -3.40282347e38f) : 0.0f;
    d.seed[0] = u32(seeds[3 * row]), d.seed[1] = u32(seeds[3 * row + 1]), d.choice = u32(seeds[3 * row + 2]);
    d.position = u32(positions[rows.output_rows[row]]) + 1;
    return d;
}

// ---- the scan --------------------------------------------------------------------------------------------------------------------------

// Of a part of a row, by a block of PART_THREADS: written to `out` by one thread. `room` has a place for each warp.
__device__ __forceinline__ void scan_part(const Tokens& tokens, int start, int end, Scan* room, Scan* out) {
    Scan s = {0, 0, 0};
#pragma unroll 4
    for (int i = start + threadIdx.x; i < end; i += PART_THREADS) {
        const float l = tokens.logits[i];
        s.corrupt |= is_corrupt(l);
        if (tokens.is_allowed(i, l)) s = joined(s, {0, 1, ranked(l, tokens.token(i))});
    }
    s = warp_scan(s);
    if (threadIdx.x % WARP == 0) room[threadIdx.x / WARP] = s;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < PART_THREADS / WARP; w++) s = joined(s, room[w]);
        *out = s;
    }
}
