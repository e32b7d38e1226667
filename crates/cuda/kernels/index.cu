// Lightning-indexer scores (DeepSeek-V3.2 paper, section 2.1): out[t, s] = sum over h of weights[t, h] * scale * relu(q[t, h] . key[s])
// for every s up to the row's own position.
//
// A small matrix product with a reduction at its end, in f32 (the choice that follows it turns on the last bits):
//
//     block:  ROWS query rows x KEYS cached keys; a key is read from memory once for all heads of all these rows
//     warp:   one row x 32 keys x all heads, 4 * LANE_HEADS heads at a time
//     lane:   4 keys x LANE_HEADS heads: 4 + LANE_HEADS shared loads of 16 bytes for 16 * LANE_HEADS multiply-adds
//
// Grid: (rows / ROWS, tiles), the second bounded: a block takes tiles blockIdx.y, blockIdx.y + gridDim.y, ... of its rows, so a
// short context in a plan of great capacity costs a handful of blocks that find nothing to do. Every score is computed by one lane
// in one order (dimensions ascending; then its heads; then the four lanes that share a key, by butterfly), whatever the grid and
// ROWS are: decode takes 1, prefill as many as shared memory holds, and both give the same bits.
//
// Shared memory: (KEYS + ROWS * padded heads) rows of `stride` floats, and ROWS * padded heads weights. stride is the dimension
// rounded up to 4, plus 4: the eight keys that a quarter-warp reads then lie in different banks.
//
// Bytes at 32k keys of 128, one row: 16.8 MB, 3.6 us of an H200's reads; 134 M multiply-adds, 4 us of its units.
// variants: ROWS = 1 2 4; LANE_HEADS = 2 8; VEC = 1 4
// spills: index_score
#include "async.cuh"
#include "paged.cuh"

constexpr int KEY_WARPS = 2;
constexpr int WARP_KEYS = 32;
constexpr int KEYS = KEY_WARPS * WARP_KEYS;
constexpr int TILE_HEADS = 4 * LANE_HEADS;
constexpr int THREADS = ROWS * KEY_WARPS * WARP;

// Zero for what is negative; NaN stays, unlike in fmaxf, so that a key that was never written is not hidden.
__device__ __forceinline__ float relu(float x) { return x < 0.0f ? 0.0f : x; }

// `dim` floats to shared memory, zeros after them up to `padded`; by `lanes` threads, of which this is number `lane`.
__device__ __forceinline__ void stage(float* to, const float* from, int dim, int padded, int lane, int lanes) {
#if VEC == 4
    for (int i = 4 * lane; i < dim; i += 4 * lanes) copy16_async(to + i, from + i);
#else
    for (int i = lane; i < padded; i += lanes) to[i] = i < dim ? from[i] : 0.0f;
#endif
}

// 32 keys against the heads of one row; the score of key `lane` in each lane.
__device__ __forceinline__ float score(const float* keys, const float* q, const float* weights, int heads, int padded, int stride) {
    const int lane = threadIdx.x % WARP, key = lane % 8, head = lane / 8;
    float sum[4] = {};
    for (int tile = 0; tile < heads; tile += TILE_HEADS) {
        float dot[4][LANE_HEADS] = {};
        const float* k = keys + key * stride;
        const float* a = q + (tile + head) * stride;
#pragma unroll 2
        for (int d = 0; d < padded; d += 4) {
            float4 kv[4];
#pragma unroll
            for (int j = 0; j < 4; j++) kv[j] = *reinterpret_cast<const float4*>(k + 8 * j * stride + d);
#pragma unroll
            for (int i = 0; i < LANE_HEADS; i++) {
                const float4 qv = *reinterpret_cast<const float4*>(a + 4 * i * stride + d);
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    dot[j][i] = fmaf(kv[j].x, qv.x, dot[j][i]);
                    dot[j][i] = fmaf(kv[j].y, qv.y, dot[j][i]);
                    dot[j][i] = fmaf(kv[j].z, qv.z, dot[j][i]);
                    dot[j][i] = fmaf(kv[j].w, qv.w, dot[j][i]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < LANE_HEADS; i++) {
            const int h = tile + head + 4 * i;
            // Heads that are not there are skipped, not multiplied by zero: an infinite key would make NaN of that.
            if (h < heads) {
#pragma unroll
                for (int j = 0; j < 4; j++) sum[j] = fmaf(weights[h], relu(dot[j][i]), sum[j]);
            }
        }
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        sum[j] += __shfl_xor_sync(FULL, sum[j], 8);
        sum[j] += __shfl_xor_sync(FULL, sum[j], 16);
    }
    // Key `key + 8 * head` is the lane's own number.
    return head == 0 ? sum[0] : head == 1 ? sum[1] : head == 2 ? sum[2] : sum[3];
}

// Rows that see at most `unread` positions are left out: the choice takes all of these whatever their scores are.
KERNEL(ROWS * KEY_WARPS * 32) index_score(const float* q, const float* weights, const float* keys, float* out, float scale,
                                          int heads, int dim, int out_stride, int unread,
                                          const int* positions, const int* cu_seqlens, const int* block_tables,
                                          int sequences, int max_blocks, int block_size, Rows rows) {
    SHARED(float, room);
    __shared__ int row_end[ROWS];
    __shared__ int row_sequence[ROWS];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int padded = (dim + 3) / 4 * 4, stride = padded + 4;
    const int tiled_heads = (heads + TILE_HEADS - 1) / TILE_HEADS * TILE_HEADS;
    float* key_room = room;
    float* q_room = key_room + KEYS * stride;
    float* weight_room = q_room + ROWS * tiled_heads * stride;
    const int first = blockIdx.x * ROWS;

    pdl_wait();
    pdl_go();
    // Where each row ends, and whose it is; one warp a row.
    if (warp < ROWS) {
        const int row = first + warp;
        int end = 0, sequence = -1;
        if (is_live(rows, row)) {
            end = positions[row] + 1;
            sequence = sequence_of(cu_seqlens, sequences, row);
        }
        if (lane == 0) {
            row_end[warp] = end > unread ? end : 0;
            row_sequence[warp] = sequence;
        }
    }
    __syncthreads();
    int longest = 0;
    for (int r = 0; r < ROWS; r++) longest = max(longest, row_end[r]);
    if (int(blockIdx.y) * KEYS >= longest) return;

    for (int r = 0; r < ROWS; r++) {
        if (!row_end[r]) continue;
        const float* row_q = q + u64(first + r) * heads * dim;
        float* to = q_room + r * tiled_heads * stride;
        // Warps take heads in turn. Heads that are not there stay as they are: what they give is left out.
        for (int h = warp; h < heads; h += THREADS / WARP) stage(to + h * stride, row_q + h * dim, dim, padded, lane, WARP);
        for (int h = threadIdx.x; h < heads; h += THREADS)
            weight_room[r * tiled_heads + h] = weights[u64(first + r) * heads + h] * scale;
    }

    const int own = warp / KEY_WARPS, own_keys = warp % KEY_WARPS * WARP_KEYS;
    // Rows of one sequence are neighbours and share its keys.
    for (int from = 0, to; from < ROWS; from = to) {
        int end = row_end[from];
        for (to = from + 1; to < ROWS && row_sequence[to] == row_sequence[from]; to++) end = max(end, row_end[to]);
        const int* table = block_tables + u64(max(row_sequence[from], 0)) * max_blocks;
        for (int tile = int(blockIdx.y) * KEYS; tile < end; tile += int(gridDim.y) * KEYS) {
            // Before the tile of another round is overwritten, all must have read it.
            __syncthreads();
            // All of a warp's slots in one look at the block table, then its keys: lane i has that of the warp's i-th key.
            const int mine = tile + warp + lane * (THREADS / WARP);
            const u32 slot = mine < min(tile + KEYS, end) ? slot_of(table, block_size, mine) : 0;
            for (int k = warp, i = 0; k < KEYS && tile + k < end; k += THREADS / WARP, i++)
                stage(key_room + k * stride, keys + u64(__shfl_sync(FULL, slot, i)) * dim, dim, padded, lane, WARP);
            copies_wait();
            __syncthreads();
            const int s = tile + own_keys;
            if (own >= from && own < to && s < row_end[own]) {
                const float value = score(key_room + own_keys * stride, q_room + own * tiled_heads * stride,
                                          weight_room + own * tiled_heads, heads, padded, stride);
                if (s + lane < row_end[own]) out[u64(first + own) * out_stride + s + lane] = value;
            }
        }
    }
}
