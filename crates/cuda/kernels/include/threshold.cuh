// The threshold of a row's choice: its topk-th largest score, exactly, by one block of 1024 threads.
//
//     bins       a look at 1024 scores tells between what bounds most of them lie; a linear map of that range to 2048 bins (what is
//                beyond goes to the first or the last) never puts the larger of two scores lower. One pass counts the bins, and
//                finds that in which the count from above reaches topk: there lies the threshold, usually among a few dozen others
//     candidates a second pass collects the keys of that bin; each of up to 1024 counts those that come before it
//     digits     if the bin holds more (ties, or scores far apart in size), radix selection finds the threshold by 11, 11 and 10 bits
//                of a key that orders as the scores do; passes are skipped once a digit's keys are wanted all
//
// Nothing depends on the order in which threads arrive. Shared memory: 17 KB.
#pragma once
#include "row_pieces.cuh"

constexpr int THREADS = 1024;
constexpr int WARPS = THREADS / WARP;
constexpr int BINS = 2048;

// Orders as `f32::total_cmp`, but for the two zeros, which are equal.
__device__ __forceinline__ u32 key_of(float score) {
    u32 bits = __float_as_uint(score);
    if (bits == 0x80000000u) bits = 0;
    return bits ^ (u32(int(bits) >> 31) | 0x80000000u);
}

// Candidates that are compared with each other.
constexpr int CANDIDATES = 1024;

// The sum over the lower lanes, and the lane's own.
__device__ __forceinline__ u32 warp_scan(u32 v) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int step = 1; step < WARP; step <<= 1) {
        const u32 below = __shfl_up_sync(FULL, v, step);
        if (lane >= step) v += below;
    }
    return v;
}

// The sum over the lower threads. `room` is for WARPS values; barriers before and after are the caller's.
__device__ __forceinline__ u32 block_scan_before(u32 v, u32* room) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const u32 within = warp_scan(v);
    if (lane == WARP - 1) room[warp] = within;
    __syncthreads();
    const u32 total = room[lane];
    const u32 before = __shfl_sync(FULL, warp_scan(total) - total, warp);
    return before + within - v;
}

// Keys at or above this count, those whose masked bits are equal to it up to `wanted` of them.
struct Threshold {
    u32 mask;
    u32 prefix;
    u32 wanted;
};

struct Bins {
    u32 count[BINS];
    u32 room[WARPS];
    // The bin that was looked for, how many of it are wanted, and how many it has.
    u32 found[3];
};

__device__ __forceinline__ void clear(Bins& bins) {
    for (int i = threadIdx.x; i < BINS; i += THREADS) bins.count[i] = 0;
    __syncthreads();
}

// Counts one in `bin`, in each lane for which there is one. By whole warps. What equals the first lane's is added at once: many
// lanes that add to one place would take turns.
__device__ __forceinline__ void count_one(Bins& bins, bool there, u32 bin) {
    const u32 first = __shfl_sync(FULL, bin, 0);
    const u32 alike = __ballot_sync(FULL, there && bin == first);
    if (threadIdx.x % WARP == 0 && alike) atomicAdd(&bins.count[first], u32(__popc(alike)));
    if (there && bin != first) atomicAdd(&bins.count[bin], 1u);
}

// Finds the bin, from the highest down, with which `wanted` are reached. By the whole block; begins and ends with a barrier.
__device__ __forceinline__ void find_bin(Bins& bins, u32 wanted) {
    __syncthreads();
    // Each thread has two bins, the first thread the highest.
    const int high = BINS - 1 - 2 * int(threadIdx.x);
    const u32 in_high = bins.count[high], in_low = bins.count[high - 1];
    const u32 above = block_scan_before(in_high + in_low, bins.room);
    const bool is_high = above < wanted && wanted <= above + in_high;
    const bool is_low = above + in_high < wanted && wanted <= above + in_high + in_low;
    if (is_high || is_low) {
        bins.found[0] = is_high ? high : high - 1;
        bins.found[1] = wanted - above - (is_high ? 0 : in_high);
        bins.found[2] = is_high ? in_high : in_low;
    }
    __syncthreads();
}

// f(i, score, whether there is one) for all elements of a row, by whole warps. The next ones are on their way meanwhile.
template <class F> __device__ __forceinline__ void for_row(const float* scores, int n, F f) {
    const int lane = threadIdx.x % WARP, first = int(threadIdx.x) / WARP * WARP * VEC;
    Piece next = {};
    if (first + lane * VEC < n) next = load_piece(scores + first + lane * VEC);
#pragma unroll 1
    for (int i = first; i < n; i += THREADS * VEC) {
        const int at = i + lane * VEC;
        const Piece piece = next;
        if (at + THREADS * VEC < n) next = load_piece(scores + at + THREADS * VEC);
#pragma unroll
        for (int j = 0; j < VEC; j++) f(at + j, piece.v[j], at + j < n);
    }
}

// A linear map of scores to bins.
struct Line {
    float low, scale;

    // Whether it is one: of no use if the scores that were looked at are all alike, or too far apart.
    __device__ __forceinline__ bool is_good() const { return scale > 0.0f && scale < 1e30f; }

    // Rounding keeps the order: each step's result never falls as the score rises. NaN is where its sign puts it.
    __device__ __forceinline__ u32 bin(float score) const {
        const float t = (score - low) * scale;
        if (score != score) return int(__float_as_uint(score)) < 0 ? 0 : BINS - 1;
        return t >= float(BINS - 1) ? BINS - 1 : t > 0.0f ? u32(t) : 0;
    }
};

// The i-th of `samples` elements of a row of `n`: one anywhere in each of as many stretches, so that no rhythm of the row's shows.
__device__ __forceinline__ u32 sample_of(u32 i, u32 samples, u32 n) {
    const u32 anywhere = i * 2654435761u;
    return u32((u64(i) * n + anywhere % n) / samples);
}

// The map over the range of a thousand scores, spread over the row. By the whole block.
__device__ __forceinline__ Line line_of(const float* scores, int n) {
    __shared__ float lows[WARPS], highs[WARPS];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const float infinity = __uint_as_float(0x7f800000u);
    const float score = scores[sample_of(threadIdx.x, THREADS, n)];
    const bool finite = score - score == 0.0f;
    float low = finite ? score : infinity, high = finite ? score : -infinity;
    for (int round = 0; round < 2; round++) {
#pragma unroll
        for (int step = WARP / 2; step; step >>= 1) {
            low = fminf(low, __shfl_xor_sync(FULL, low, step));
            high = fmaxf(high, __shfl_xor_sync(FULL, high, step));
        }
        if (round) break;
        if (lane == 0) lows[warp] = low, highs[warp] = high;
        __syncthreads();
        low = lows[lane], high = highs[lane];
    }
    Line line;
    line.low = low;
    line.scale = high > low ? float(BINS - 1) / (high - low) : 0.0f;
    return line;
}

// By radix selection, whatever the scores are.
__device__ __forceinline__ Threshold by_digits(const float* scores, int n, u32 topk, Bins& bins) {
    Threshold t = {0, 0, topk};
    for (int pass = 0; pass < 3; pass++) {
        const int shift = pass == 0 ? 21 : pass == 1 ? 10 : 0;
        const u32 digit = pass == 2 ? 0x3ffu : 0x7ffu;
        clear(bins);
        for_row(scores, n, [&](int, float score, bool there) {
            const u32 key = key_of(score);
            count_one(bins, there && (key & t.mask) == t.prefix, key >> shift & digit);
        });
        find_bin(bins, t.wanted);
        t.mask |= digit << shift;
        t.prefix |= bins.found[0] << shift;
        t.wanted = bins.found[1];
        if (bins.found[1] == bins.found[2]) break;
        // Before `found` is written again, all must have read it: `clear` ends with a barrier.
    }
    return t;
}

__device__ __forceinline__ Threshold find_threshold(const float* scores, int n, u32 topk) {
    __shared__ Bins bins;
    __shared__ uint2 candidates[CANDIDATES];
    __shared__ u32 collected;
    __shared__ Threshold threshold;
    const Line line = line_of(scores, n);
    // What is decided here is decided by all threads alike.
    if (line.is_good()) {
        if (threadIdx.x == 0) collected = 0;
        clear(bins);
        for_row(scores, n, [&](int, float score, bool there) { count_one(bins, there, line.bin(score)); });
        find_bin(bins, topk);
        const u32 bin = bins.found[0], wanted = bins.found[1], in_bin = bins.found[2];
        if (in_bin <= CANDIDATES) {
            for_row(scores, n, [&](int i, float score, bool there) {
                if (there && line.bin(score) == bin) candidates[atomicAdd(&collected, 1u)] = make_uint2(key_of(score), u32(i));
            });
            __syncthreads();
            if (threadIdx.x < in_bin) {
                const uint2 own = candidates[threadIdx.x];
                // Keys above its own, and equal ones at lower positions.
                u32 above = 0, equal = 0;
                for (u32 i = 0; i < in_bin; i++) {
                    const uint2 other = candidates[i];
                    above += other.x > own.x;
                    equal += other.x == own.x && other.y < own.y;
                }
                if (above + equal == wanted - 1) threshold = {0xffffffffu, own.x, equal + 1};
            }
            __syncthreads();
            return threshold;
        }
    }
    return by_digits(scores, n, topk, bins);
}
