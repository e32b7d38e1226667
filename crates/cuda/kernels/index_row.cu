// Lightning-indexer scores (index.cu says which) of a decode step's rows, each of which has keys of its own, up to 128 elements each.
//
// A key is read once, straight into registers, and there is nothing that blocks share: so the work is cut small enough to fill the
// GPU from 2048 keys on, and blocks go on in strides where there are more.
//
//     block: 16 keys at a time; 4 warps
//     warp:  8 heads of every 32, all 16 keys (the warps' loads of the same keys meet in L1, but for a block's first: paged.cuh)
//     lane:  4 keys (lane / 8) x a few vectors of 4 elements (lane % 8 + 8p), two heads at a time: 8 sums over 8 lanes, of which a
//            butterfly leaves one in each lane
//
// Grid: rows x strides. Shared memory: the row's queries, padded to 32 * PIECES elements with zeros, and its head weights.
// Order of a score: a lane's elements ascending; lanes by butterfly; a warp's even and its odd heads, each ascending, and their two
// sums; the warps in order. Nothing depends on the grid.
//
// Before the wait (see mla.cu): the row's place, and what the preceding kernel did not write: queries (EARLY_QUERIES), keys
// (EARLY_KEYS), or at least the keys of earlier steps (EARLY_OLD_KEYS): those before the sequence's first row in this step.
//
// 128k keys of 128: 67 MB, 15 us of an H200's reads; 537 M multiply-adds, 16 us of its units.
// variants: PIECES = 1 4; VEC = 1 4
// spills: index_score_row
#include "async.cuh"
#include "paged.cuh"

constexpr int WARPS = 4;
constexpr int WARP_HEADS = 8;
constexpr int PASS_HEADS = WARPS * WARP_HEADS;
constexpr int SLICES = 8;
constexpr int LANE_KEYS = 4;
constexpr int KEYS = WARP / SLICES * LANE_KEYS;
constexpr int PADDED = 32 * PIECES;

constexpr int EARLY_QUERIES = 1;
constexpr int EARLY_OLD_KEYS = 2;
constexpr int EARLY_KEYS = 4;

// Said so that the compiler knows that it is the same in all lanes.
__device__ __forceinline__ int warp_index() { return __shfl_sync(FULL, int(threadIdx.x) / WARP, 0); }

// Zero for what is negative; NaN stays, unlike in fmaxf, so that a key that was never written is not hidden.
__device__ __forceinline__ float relu(float x) { return x < 0.0f ? 0.0f : x; }

// Elements at..at + 4 of a row of `dim`, zeros beyond its end: from L2, or through L1.
template <bool EARLY> __device__ __forceinline__ float load_one(const float* row, int at, int dim) {
    if (at >= dim) return 0.0f;
    return EARLY ? __uint_as_float(load4(row + at)) : row[at];
}

template <bool EARLY> __device__ __forceinline__ float4 load_whole(const float* p) {
    return EARLY ? load_floats(p) : *reinterpret_cast<const float4*>(p);
}

template <bool EARLY> __device__ __forceinline__ float4 load_four(const float* row, int at, int dim) {
#if VEC == 4
    if (at >= dim) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    return load_whole<EARLY>(row + at);
#else
    return make_float4(load_one<EARLY>(row, at, dim), load_one<EARLY>(row, at + 1, dim), load_one<EARLY>(row, at + 2, dim),
                       load_one<EARLY>(row, at + 3, dim));
#endif
}

// A lane's part of four keys.
struct Keys {
    float4 v[LANE_KEYS][PIECES];
};

// Of positions first.. of a row that sees `n`; beyond its end, the last one's: loads under a condition would wait for each other.
template <bool EARLY>
__device__ __forceinline__ void load_keys(Keys& k, const float* keys, const int* table, int block_size, int first, int n, int dim) {
    const int lane = threadIdx.x % WARP, slice = lane % SLICES, own = lane / SLICES * LANE_KEYS;
    // Lane i finds the i-th key, for all.
    const u32 slot = slot_of(table, block_size, min(first + lane % KEYS, n - 1));
#pragma unroll
    for (int i = 0; i < LANE_KEYS; i++) {
        const float* row = keys + u64(__shfl_sync(FULL, slot, own + i)) * dim;
#pragma unroll
        for (int p = 0; p < PIECES; p++) {
            const int at = 4 * (slice + SLICES * p);
            k.v[i][p] = VEC == 4 && dim == PADDED ? load_whole<EARLY>(row + at) : load_four<EARLY>(row, at, dim);
        }
    }
}

// Brings the warp's heads and their weights to shared memory; seen by the warp after its copies and a __syncwarp.
__device__ __forceinline__ void stage_queries(float* q, float* weights, const float* row_q, const float* row_weights, float scale,
                                              int heads, int dim) {
    const int warp = warp_index(), lane = threadIdx.x % WARP;
#pragma unroll 1
    for (int pass = warp * WARP_HEADS; pass < heads; pass += PASS_HEADS) {
        const int own = min(heads - pass, WARP_HEADS);
#pragma unroll 1
        for (int i = 4 * lane; i < own * PADDED; i += 4 * WARP) {
            const int head = pass + i / PADDED, at = i % PADDED;
            float* to = q + head * PADDED + at;
#if VEC == 4
            if (at < dim) {
                copy16_async(to, row_q + head * dim + at);
                continue;
            }
#endif
            *reinterpret_cast<float4*>(to) = load_four<true>(row_q + head * dim, at, dim);
        }
        if (lane < own) weights[pass + lane] = load_one<true>(row_weights, pass + lane, heads) * scale;
    }
}

// The sum over the warp's heads of the key that the lane ends with (`key_of_lane`), in both of its lanes.
__device__ __forceinline__ float score(const Keys& k, const float* q, const float* weights, int heads) {
    const int warp = warp_index(), lane = threadIdx.x % WARP, slice = lane % SLICES;
    float sum = 0.0f;
#pragma unroll 1
    for (int pass = warp * WARP_HEADS; pass < heads; pass += PASS_HEADS) {
#pragma unroll 1
        for (int h = pass; h < min(heads, pass + WARP_HEADS); h += 2) {
            // Element 2 * key + head.
            float dot[2 * LANE_KEYS] = {};
#pragma unroll
            for (int j = 0; j < 2; j++) {
                // Beyond the last head: once more the last, whose sum is left out.
                const float* a = q + min(h + j, heads - 1) * PADDED + 4 * slice;
#pragma unroll
                for (int p = 0; p < PIECES; p++) {
                    const float4 x = *reinterpret_cast<const float4*>(a + 4 * SLICES * p);
#pragma unroll
                    for (int i = 0; i < LANE_KEYS; i++) {
                        float& d = dot[2 * i + j];
                        d = fmaf(k.v[i][p].x, x.x, d);
                        d = fmaf(k.v[i][p].y, x.y, d);
                        d = fmaf(k.v[i][p].z, x.z, d);
                        d = fmaf(k.v[i][p].w, x.w, d);
                    }
                }
            }
            // Lanes exchange halves: each keeps the values whose number has its bits, and gives away the others.
#pragma unroll
            for (int bit = 1, count = LANE_KEYS; bit < SLICES; bit *= 2, count /= 2) {
                const bool upper = lane & bit;
#pragma unroll
                for (int i = 0; i < LANE_KEYS; i++) {
                    if (i < count) {
                        const float sent = upper ? dot[i] : dot[i + count], kept = upper ? dot[i + count] : dot[i];
                        dot[i] = kept + __shfl_xor_sync(FULL, sent, bit);
                    }
                }
            }
            const int own = h + (lane >> 2 & 1);
            // Heads that are not there are skipped, not multiplied by zero: an infinite key would make NaN of that.
            if (own < heads) sum = fmaf(weights[own], relu(dot[0]), sum);
        }
    }
    return sum + __shfl_xor_sync(FULL, sum, 4);
}

// Which of the block's keys that is.
__device__ __forceinline__ int key_of_lane() {
    const int lane = threadIdx.x % WARP;
    return lane / SLICES * LANE_KEYS + (lane & 1) * 2 + (lane >> 1 & 1);
}

// Rows that see at most `unread` positions are left out: the choice takes all of these whatever their scores are.
KERNEL(128, 4) index_score_row(const float* q, const float* weights, const float* keys, float* out, float scale, int heads, int dim,
                               int out_stride, int unread, int early, const int* positions, const int* cu_seqlens,
                               const int* block_tables, int sequences, int max_blocks, int block_size, Rows rows) {
    SHARED(float, room);
    __shared__ float parts[2][WARPS][KEYS];
    float* q_room = room;
    float* weight_room = q_room + heads * PADDED;
    const int warp = warp_index(), lane = threadIdx.x % WARP, row = blockIdx.x;
    const int step = int(gridDim.y) * KEYS;

    const int n = load_input(positions + row) + 1;
    int at = int(blockIdx.y) * KEYS;
    const bool idle = !is_live_token(rows, row) || n <= unread || at >= n;
    const int sequence = sequence_of(cu_seqlens, sequences, row);
    const int* table = block_tables + u64(sequence) * max_blocks;
    const float* row_q = q + u64(row) * heads * dim;
    const float* row_weights = weights + u64(row) * heads;
    const int settled = early & EARLY_KEYS ? n : early & EARLY_OLD_KEYS ? load_input(positions + load_input(cu_seqlens + sequence)) : 0;
    // In brackets: not the wait that stamps are taken at (common.cuh).
    if (min(at + KEYS, n) > settled) (pdl_wait)();
    Keys k;
    if (!idle) load_keys<true>(k, keys, table, block_size, at, n, dim);
    if (!(early & EARLY_QUERIES)) (pdl_wait)();
    if (!idle) stage_queries(q_room, weight_room, row_q, row_weights, scale, heads, dim);
    pdl_wait();
    pdl_go();
    if (idle) return;
    copies_wait();
    __syncwarp();

#pragma unroll 1
    for (int turn = 0;; turn ^= 1) {
        const float sum = score(k, q_room, weight_room, heads);
        if (!(lane & 4)) parts[turn][warp][key_of_lane()] = sum;
        const int scored = at;
        at += step;
        if (at < n) load_keys<false>(k, keys, table, block_size, at, n, dim);
        __syncthreads();
        if (threadIdx.x < KEYS && scored + int(threadIdx.x) < n) {
            float total = 0.0f;
#pragma unroll
            for (int w = 0; w < WARPS; w++) total += parts[turn][w][threadIdx.x];
            out[u64(row) * out_stride + scored + threadIdx.x] = total;
        }
        if (at >= n) break;
    }
}
