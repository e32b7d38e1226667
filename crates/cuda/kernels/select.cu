// The positions of the topk largest scores of each row, ascending; equal scores at the last place: the lower positions win.
//
// One block chooses for one row, exactly, by radix selection: three passes over the row's scores (11, 11 and 10 bits of a key that
// orders as the scores do) narrow the range that holds the topk-th largest; a pass counts keys by their next digit in shared memory
// and finds the digit at which the count from above reaches what is still wanted. If a digit's keys are wanted all, the passes that
// are left are skipped. Then each warp counts, in a stretch of its own, the keys above the threshold and those on it, and after one
// prefix sum over the warps writes its positions in order. Nothing depends on the order in which threads arrive.
//
// A row that sees no more than topk positions takes them all, and its scores are not read. A forced row is copied.
//
// A row's scores (128 KB at 32k positions) come from L2 once and stay in L1 for the later passes up to about 50k positions.
// Grid: rows. Shared memory: 8.4 KB.
// variants: VEC = 1 4
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

__device__ __forceinline__ Threshold find_threshold(const float* scores, int n, u32 topk) {
    __shared__ u32 bins[BINS];
    __shared__ u32 room[WARPS];
    __shared__ u32 found[3];
    Threshold t = {0, 0, topk};
    for (int pass = 0; pass < 3; pass++) {
        const int shift = pass == 0 ? 21 : pass == 1 ? 10 : 0;
        const u32 digit = pass == 2 ? 0x3ffu : 0x7ffu;
        for (int i = threadIdx.x; i < BINS; i += THREADS) bins[i] = 0;
        __syncthreads();
#pragma unroll 4
        for (int i = threadIdx.x * VEC; i < n; i += THREADS * VEC) {
            const Piece piece = load_piece(scores + i);
#pragma unroll
            for (int j = 0; j < VEC; j++) {
                const u32 key = key_of(piece.v[j]);
                if (i + j < n && (key & t.mask) == t.prefix) atomicAdd(&bins[key >> shift & digit], 1u);
            }
        }
        __syncthreads();
        // Each thread has two bins, the first thread the highest.
        const int high = BINS - 1 - 2 * int(threadIdx.x);
        const u32 in_high = bins[high], in_low = bins[high - 1];
        const u32 above = block_scan_before(in_high + in_low, room);
        const bool is_high = above < t.wanted && t.wanted <= above + in_high;
        const bool is_low = above + in_high < t.wanted && t.wanted <= above + in_high + in_low;
        if (is_high || is_low) {
            found[0] = is_high ? high : high - 1;
            found[1] = t.wanted - above - (is_high ? 0 : in_high);
            found[2] = is_high ? in_high : in_low;
        }
        __syncthreads();
        t.mask |= digit << shift;
        t.prefix |= found[0] << shift;
        t.wanted = found[1];
        if (found[1] == found[2]) break;
    }
    return t;
}

// How a piece's keys stand to the threshold: bit j of a word for element j.
struct Sides {
    u32 above;
    u32 equal;
};

__device__ __forceinline__ Sides sides(const float* scores, int i, int end, const Threshold& t) {
    Sides s = {0, 0};
    if (i >= end) return s;
    const Piece piece = load_piece(scores + i);
#pragma unroll
    for (int j = 0; j < VEC; j++) {
        const u32 key = key_of(piece.v[j]) & t.mask;
        if (i + j < end && key > t.prefix) s.above |= 1u << j;
        if (i + j < end && key == t.prefix) s.equal |= 1u << j;
    }
    return s;
}

__device__ __forceinline__ void write_chosen(const float* scores, int n, const Threshold& t, int* out) {
    __shared__ u32 above_of[WARPS];
    __shared__ u32 equal_of[WARPS];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    constexpr int STEP = WARP * VEC;
    // A stretch of whole steps for each warp.
    const int stretch = ((n + WARPS - 1) / WARPS + STEP - 1) / STEP * STEP;
    const int begin = min(warp * stretch, n), end = min(begin + stretch, n);

    u32 above = 0, equal = 0;
#pragma unroll 4
    for (int i = begin; i < end; i += STEP) {
        const Sides s = sides(scores, i + lane * VEC, end, t);
        above += __popc(s.above);
        equal += __popc(s.equal);
    }
    above = __shfl_sync(FULL, warp_scan(above), WARP - 1);
    equal = __shfl_sync(FULL, warp_scan(equal), WARP - 1);
    if (lane == 0) {
        above_of[warp] = above;
        equal_of[warp] = equal;
    }
    __syncthreads();
    u32 x = above_of[lane], y = equal_of[lane];
    x = warp_scan(x) - x;
    y = warp_scan(y) - y;
    above = __shfl_sync(FULL, x, warp);
    equal = __shfl_sync(FULL, y, warp);

    const u32 lower = (1u << lane) - 1;
    for (int i = begin; i < end; i += STEP) {
        const Sides s = sides(scores, i + lane * VEC, end, t);
        // Of this step: what lower lanes hold, and what all hold.
        u32 above_before = above, equal_before = equal;
#pragma unroll
        for (int j = 0; j < VEC; j++) {
            const u32 a = __ballot_sync(FULL, s.above >> j & 1), e = __ballot_sync(FULL, s.equal >> j & 1);
            above_before += __popc(a & lower);
            equal_before += __popc(e & lower);
            above += __popc(a);
            equal += __popc(e);
        }
#pragma unroll
        for (int j = 0; j < VEC; j++) {
            const bool is_above = s.above >> j & 1, is_equal = s.equal >> j & 1;
            if (is_above || (is_equal && equal_before < t.wanted)) out[above_before + min(equal_before, t.wanted)] = i + lane * VEC + j;
            above_before += is_above;
            equal_before += is_equal;
        }
    }
}

// `forced` is null, or the first of the row's topk columns of an input with rows of `forced_stride`.
KERNEL(1024) index_select(const float* scores, int scores_stride, const int* positions, int topk, const int* forced, int forced_stride, int* out, Rows rows) {
    pdl_wait();
    pdl_go();
    const int row = blockIdx.x;
    if (!is_live(rows, row)) return;
    int* chosen = out + u64(row) * topk;
    if (forced) {
        const int* given = forced + u64(row) * forced_stride;
        if (given[0] != -1) {
            for (int i = threadIdx.x; i < topk; i += THREADS) chosen[i] = given[i];
            return;
        }
    }
    const int n = positions[row] + 1;
    if (n <= topk) {
        for (int i = threadIdx.x; i < topk; i += THREADS) chosen[i] = i < n ? i : -1;
        return;
    }
    const float* visible = scores + u64(row) * scores_stride;
    write_chosen(visible, n, find_threshold(visible, n, topk), chosen);
}
