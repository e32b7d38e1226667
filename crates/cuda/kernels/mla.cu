// Absorbed multi-head latent attention (DeepSeek-V2 paper, section 2.1) over cached rows [c | k_pe] of f32: for each head
//     p = softmax over s of scale * (q_latent . c_s + q_rope . k_pe_s),   out = sum over s of p_s * c_s,
// s over the row's chosen positions, or over all up to its own.
//
// All heads of a row share its cached rows (they are 2304 bytes each with 512 + 64 elements), so a block serves one row and HEADS of
// its heads: each cached row is brought to shared memory once, by 16-byte asynchronous copies, and used for both products.
//
//     grid: rows x tiles of HEADS heads x splits of the positions; 256 threads
//     round: POSITIONS cached rows in shared memory
//       scores: the 8 warps and KS lanes of each share a dot product's elements (16-byte vectors in turn); a lane holds
//               POSITIONS / 4 positions x 4 heads. Sums: over the lane's vectors, a butterfly over the KS lanes, the warps in order
//       softmax: warp h has head h, lane s position s; running maximum and sum (online softmax, Milakov and Gimelshein 2018)
//       values: thread (column vector, half): 4 columns x HEADS heads, over the even or the odd positions of the round
//
// Splits. In decode a row's positions are cut into chunks of MIN_CHUNK, doubled until MAX_SPLITS of them suffice: by the row's own
// length, so that its bits do not depend on what else is in the step. The grid has room for the plan's longest row; blocks beyond a
// row's length end at once. Each chunk leaves maximum, sum and unnormalised values of its heads in scratch, and `mla_merge` adds
// them up in the order of the chunks. In prefill the rows fill the GPU: a row is one chunk, and is written directly.
//
// A chunk of 32 positions x 8 heads is 280k multiply-adds on one SM, 1.2 us; 64 such chunks read 4.7 MB, 1 us of an H200's reads.
//
// -DHEADS=4|8, -DPOSITIONS=16|32 (by the shared memory there is), -DVEC (see row_pieces.cuh).
// Shared memory, in floats: (POSITIONS + HEADS) * stride for cached rows and queries, 8 * POSITIONS * HEADS for the warps' parts of
// the scores, POSITIONS * HEADS probabilities. stride is the padded width rounded up to 16 mod 32, so that the eight vectors that a
// quarter-warp reads lie in different banks.
// variants: HEADS = 4 8; POSITIONS = 16 32; VEC = 1 4
// spills: mla_attend mla_merge
#include "async.cuh"
#include "paged.cuh"
#include "row_pieces.cuh"

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / WARP;
constexpr int MIN_CHUNK = 32;
constexpr int MAX_SPLITS = 64;
// Column vectors that one half of the block covers: latent rows have at most 512 columns.
constexpr int COLUMNS = THREADS / 2;
// Lanes: KS share a dot product, times 4 groups of positions, times HEADS / 4 groups of heads.
constexpr int KS = WARP / HEADS;
constexpr int LANE_POSITIONS = POSITIONS / 4;

__device__ __forceinline__ float minus_infinity() { return __uint_as_float(0xff800000u); }

// How a row is cut: `n` is how many positions it has at most, by its own position and the width of its choice.
__device__ __forceinline__ int chunk_of(int n) {
    int chunk = MIN_CHUNK;
    while (i64(chunk) * MAX_SPLITS < n) chunk *= 2;
    return chunk;
}

// Sizes that a launch holds constant.
struct Sizes {
    int heads;
    // Elements of a latent, of its rotated part, and the same rounded up to whole vectors.
    int rank, rope;
    int padded_rank, padded_rope;
    // Floats from one row of shared memory to the next.
    int stride;
};

__device__ __forceinline__ Sizes sizes_of(int heads, int rank, int rope) {
    Sizes z;
    z.heads = heads;
    z.rank = rank;
    z.rope = rope;
    z.padded_rank = (rank + 3) / 4 * 4;
    z.padded_rope = (rope + 3) / 4 * 4;
    const int width = z.padded_rank + z.padded_rope;
    z.stride = (width + 15) / 32 * 32 + 16;
    return z;
}

// One warp brings [a | b] to a row of shared memory, each part padded with zeros to whole vectors.
__device__ __forceinline__ void stage(float* to, const float* a, const float* b, const Sizes& z) {
    const int lane = threadIdx.x % WARP;
#if VEC == 4
    for (int i = 4 * lane; i < z.rank; i += 4 * WARP) copy16_async(to + i, a + i);
    for (int i = 4 * lane; i < z.rope; i += 4 * WARP) copy16_async(to + z.padded_rank + i, b + i);
#else
    for (int i = lane; i < z.padded_rank; i += WARP) to[i] = i < z.rank ? a[i] : 0.0f;
    for (int i = lane; i < z.padded_rope; i += WARP) to[z.padded_rank + i] = i < z.rope ? b[i] : 0.0f;
#endif
}

// One step of a butterfly that adds up N values over lanes and leaves each lane with half of them: the lanes whose `bit` is set keep
// the upper half.
template <int N>
__device__ __forceinline__ void halve(float (&v)[N], int count, int bit) {
    const bool upper = threadIdx.x & bit;
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        if (i < count / 2) {
            const float sent = upper ? v[i] : v[i + count / 2];
            const float kept = upper ? v[i + count / 2] : v[i];
            v[i] = kept + __shfl_xor_sync(FULL, sent, bit);
        }
    }
}

// This warp's part of all scores of a round, to `parts[head][position]`.
__device__ __forceinline__ void score_part(const float* rows, const float* q, float* parts, const Sizes& z) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int slice = lane % KS, position = lane / KS % 4, head = lane / (4 * KS) * 4;
    constexpr int N = LANE_POSITIONS * 4;
    // Element j * 4 + i: position + 4 * j, head + i.
    float dot[N] = {};
    const float* c = rows + position * z.stride;
    const float* a = q + head * z.stride;
    const int width = z.padded_rank + z.padded_rope;
    for (int d = 4 * (warp * KS + slice); d < width; d += 4 * WARPS * KS) {
        float4 cv[LANE_POSITIONS];
#pragma unroll
        for (int j = 0; j < LANE_POSITIONS; j++) cv[j] = *reinterpret_cast<const float4*>(c + 4 * j * z.stride + d);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float4 qv = *reinterpret_cast<const float4*>(a + i * z.stride + d);
#pragma unroll
            for (int j = 0; j < LANE_POSITIONS; j++) {
                float& sum = dot[j * 4 + i];
                sum = fmaf(cv[j].x, qv.x, sum);
                sum = fmaf(cv[j].y, qv.y, sum);
                sum = fmaf(cv[j].z, qv.z, sum);
                sum = fmaf(cv[j].w, qv.w, sum);
            }
        }
    }
    // After it, the lane of slice k has the N / KS values that begin with the bits of k, reversed.
    int first = 0;
#pragma unroll
    for (int bit = 1, count = N; bit < KS; bit *= 2, count /= 2) {
        halve(dot, count, bit);
        if (slice & bit) first += count / 2;
    }
#pragma unroll
    for (int i = 0; i < N / KS; i++) {
        const int e = first + i;
        parts[(head + e % 4) * POSITIONS + position + e / 4 * 4] = dot[i];
    }
}

// Grid: rows x head tiles x splits. With `direct` a row is one chunk, and goes to `out`; else chunks go to `partial` ([row][split]
// [head][padded rank]) and `partial_sums` (maximum and sum, [row][split][head]).
KERNEL(256) mla_attend(const float* q_latent, const float* q_rope, int q_rope_stride, const float* latent, float* out, float scale,
                       int heads, int rank, int rope, const int* topk, int topk_width, int direct,
                       float* partial, float2* partial_sums,
                       const int* positions, const int* cu_seqlens, const int* block_tables,
                       int sequences, int max_blocks, int block_size, Rows rows, Fault* fault, int op) {
    SHARED(float, room);
    __shared__ float factors[HEADS];
    __shared__ float sums[HEADS];
    const Sizes z = sizes_of(heads, rank, rope);
    float* cached = room;
    float* q = cached + POSITIONS * z.stride;
    float* parts = q + HEADS * z.stride;
    float* p = parts + WARPS * HEADS * POSITIONS;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int row = blockIdx.x, first_head = blockIdx.y * HEADS, split = blockIdx.z;
    const int tile_heads = min(HEADS, heads - first_head);

    pdl_wait();
    pdl_go();
    if (!is_live(rows, row)) return;
    const int position = positions[row];
    const int n = topk ? min(topk_width, position + 1) : position + 1;
    const int chunk = direct ? n : chunk_of(n);
    const int begin = split * chunk, end = min(begin + chunk, n);
    if (begin >= n) return;

    for (int h = warp; h < HEADS; h += WARPS) {
        const u64 at = u64(row) * heads + first_head + min(h, tile_heads - 1);
        stage(q + h * z.stride, q_latent + at * rank, q_rope + at * q_rope_stride, z);
    }
    const int* table = block_tables + u64(sequence_of(cu_seqlens, sequences, row)) * max_blocks;
    const int* chosen = topk ? topk + u64(row) * topk_width : nullptr;

    // Of this thread's columns, by head, over its half of the positions; of this warp's head, in all lanes.
    const int column = threadIdx.x % COLUMNS * 4, half = threadIdx.x / COLUMNS;
    float4 acc[HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; h++) acc[h] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float maximum = minus_infinity(), sum = 0.0f;

    for (int at = begin; at < end; at += POSITIONS) {
        // Lane i finds the round's i-th position, in every warp. A choice ends at its first -1.
        const bool there = lane < POSITIONS && at + lane < end;
        const int s = !there ? -1 : chosen ? chosen[at + lane] : at + lane;
        const bool outside = there && s != -1 && u32(s) > u32(position);
        if (outside && warp == 0) raise(fault, FAULT_POSITION, op, s, position + 1);
        // What points outside is not followed: its score is NaN, and so is the row.
        const u32 slot = s == -1 ? 0 : slot_of(table, block_size, outside ? 0 : s);
        const u32 ended = ~__ballot_sync(FULL, s != -1);
        const int count = ended ? __ffs(ended) - 1 : WARP;

        // The last round's rows have been used by all.
        __syncthreads();
        for (int i = warp; i < count; i += WARPS) {
            const float* from = latent + u64(__shfl_sync(FULL, slot, i)) * (rank + rope);
            stage(cached + i * z.stride, from, from + rank, z);
        }
        copies_wait();
        __syncthreads();
        score_part(cached, q, parts + warp * HEADS * POSITIONS, z);
        __syncthreads();
        if (warp < HEADS) {
            float score = 0.0f;
            if (lane < count) {
#pragma unroll
                for (int w = 0; w < WARPS; w++) score += parts[(w * HEADS + warp) * POSITIONS + lane];
                score = outside ? __uint_as_float(0x7fffffff) : score * scale;
            } else {
                score = minus_infinity();
            }
            float largest = score;
#pragma unroll
            for (int step = WARP / 2; step; step >>= 1) largest = fmaxf(largest, __shfl_xor_sync(FULL, largest, step));
            largest = fmaxf(largest, maximum);
            // If all scores so far are -inf, so is the maximum, and their difference would be NaN: these weigh nothing, since a
            // later one may be finite.
            const float base = largest == minus_infinity() ? 0.0f : largest;
            const float probability = lane < count ? expf(score - base) : 0.0f;
            const float factor = expf(maximum - base);
            sum = sum * factor + warp_sum(probability);
            maximum = largest;
            if (lane < POSITIONS) p[lane * HEADS + warp] = probability;
            if (lane == 0) factors[warp] = factor;
        }
        __syncthreads();
        if (column < z.padded_rank) {
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                const float f = factors[h];
                acc[h].x *= f;
                acc[h].y *= f;
                acc[h].z *= f;
                acc[h].w *= f;
            }
#pragma unroll 4
            for (int i = half; i < count; i += 2) {
                const float4 c = *reinterpret_cast<const float4*>(cached + i * z.stride + column);
#pragma unroll
                for (int h = 0; h < HEADS; h++) {
                    const float w = p[i * HEADS + h];
                    acc[h].x = fmaf(w, c.x, acc[h].x);
                    acc[h].y = fmaf(w, c.y, acc[h].y);
                    acc[h].z = fmaf(w, c.z, acc[h].z);
                    acc[h].w = fmaf(w, c.w, acc[h].w);
                }
            }
        }
        // Nothing follows a choice's end.
        if (count < POSITIONS) break;
    }

    // The two halves' sums, even positions first; the rows' room is free once all have used them.
    __syncthreads();
    float4* other = reinterpret_cast<float4*>(room);
    if (half == 1) {
#pragma unroll
        for (int h = 0; h < HEADS; h++) other[h * COLUMNS + threadIdx.x % COLUMNS] = acc[h];
    }
    if (warp < HEADS && lane == 0) {
        sums[warp] = sum;
        if (!direct && warp < tile_heads)
            partial_sums[(u64(row) * gridDim.z + split) * heads + first_head + warp] = make_float2(maximum, sum);
    }
    __syncthreads();
    if (half == 1 || column >= z.padded_rank) return;
    // A row that attends to nothing gives zeros, as the reference; one whose scores are all -inf gives NaN (0 / 0).
    const bool nothing = chosen && chosen[0] == -1;
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        if (h >= tile_heads) break;
        const float4 o = other[h * COLUMNS + threadIdx.x];
        const float v[4] = {acc[h].x + o.x, acc[h].y + o.y, acc[h].z + o.z, acc[h].w + o.w};
        if (direct) {
            float* to = out + (u64(row) * heads + first_head + h) * rank;
#pragma unroll
            for (int j = 0; j < 4; j += VEC) {
                Piece piece;
#pragma unroll
                for (int k = 0; k < VEC; k++) piece.v[k] = nothing ? 0.0f : v[j + k] / sums[h];
                if (column + j < rank) store_piece(to + column + j, piece);
            }
        } else {
            float* to = partial + ((u64(row) * gridDim.z + split) * heads + first_head + h) * z.padded_rank;
            *reinterpret_cast<float4*>(to + column) = make_float4(v[0], v[1], v[2], v[3]);
        }
    }
}

// Adds up the chunks of each row and head. Grid: rows x heads x quarters of the columns; 128 threads: lane = column vector, warp w
// takes chunks w, w + 4, ...; the four warps' sums are added in order.
KERNEL(128) mla_merge(const float* partial, const float2* partial_sums, float* out, int heads, int rank, int splits,
                      const int* topk, int topk_width, const int* positions, Rows rows) {
    __shared__ float4 others[3][WARP];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int row = blockIdx.x, head = blockIdx.y, column = (int(blockIdx.z) * WARP + lane) * 4;
    const int padded_rank = (rank + 3) / 4 * 4;

    pdl_wait();
    pdl_go();
    if (!is_live(rows, row)) return;
    const int position = positions[row];
    const int n = topk ? min(topk_width, position + 1) : position + 1;
    const int chunk = chunk_of(n), used = (n + chunk - 1) / chunk;

    // Lane i has chunks i and i + 32.
    const float2* row_sums = partial_sums + u64(row) * splits * heads + head;
    const float2 none = make_float2(minus_infinity(), 0.0f);
    const float2 a = lane < used ? row_sums[lane * heads] : none;
    const float2 b = lane + WARP < used ? row_sums[(lane + WARP) * heads] : none;
    float largest = fmaxf(a.x, b.x);
#pragma unroll
    for (int step = WARP / 2; step; step >>= 1) largest = fmaxf(largest, __shfl_xor_sync(FULL, largest, step));
    const float base = largest == minus_infinity() ? 0.0f : largest;
    const float a_weight = expf(a.x - base), b_weight = expf(b.x - base);
    const float sum = warp_sum(fmaf(a_weight, a.y, b_weight * b.y));

    const float* row_partial = partial + (u64(row) * splits * heads + head) * padded_rank;
    float4 acc = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 8
    for (int i = warp; i < used; i += 4) {
        const float w = __shfl_sync(FULL, i < WARP ? a_weight : b_weight, i % WARP);
        if (column < padded_rank) {
            const float4 v = *reinterpret_cast<const float4*>(row_partial + u64(i) * heads * padded_rank + column);
            acc.x = fmaf(w, v.x, acc.x);
            acc.y = fmaf(w, v.y, acc.y);
            acc.z = fmaf(w, v.z, acc.z);
            acc.w = fmaf(w, v.w, acc.w);
        }
    }
    if (warp > 0) others[warp - 1][lane] = acc;
    __syncthreads();
    if (warp > 0 || column >= padded_rank) return;
#pragma unroll
    for (int w = 0; w < 3; w++) {
        const float4 o = others[w][lane];
        acc.x += o.x;
        acc.y += o.y;
        acc.z += o.z;
        acc.w += o.w;
    }
    const bool nothing = topk && topk[u64(row) * topk_width] == -1;
    const float v[4] = {acc.x, acc.y, acc.z, acc.w};
    float* to = out + (u64(row) * heads + head) * rank;
#pragma unroll
    for (int j = 0; j < 4; j += VEC) {
        Piece piece;
#pragma unroll
        for (int k = 0; k < VEC; k++) piece.v[k] = nothing ? 0.0f : v[j + k] / sum;
        if (column + j < rank) store_piece(to + column + j, piece);
    }
}
