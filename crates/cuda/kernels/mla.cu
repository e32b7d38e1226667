// Absorbed multi-head latent attention (DeepSeek-V2 paper, section 2.1) over cached rows [c | k_pe] of f32: for each head
//     p = softmax over s of scale * (q_latent . c_s + q_rope . k_pe_s),   out = sum over s of p_s * c_s,
// s over the row's list of chosen positions up to its first -1, or over all positions up to its own.
//
// All heads of a row share its cached rows (they are 2304 bytes each with 512 + 64 elements), so a block serves one row and HEADS of
// its heads: each cached row is brought to shared memory once, by 16-byte asynchronous copies, and used for both products.
//
//     grid: rows x tiles of HEADS heads x chunks of the positions; 256 threads
//     round: POSITIONS cached rows in shared memory
//       scores: the 8 warps and KS lanes of each share a dot product's elements (16-byte vectors in turn); a lane holds
//               POSITIONS / 4 positions x 4 heads. Sums: over the lane's vectors, a butterfly over the KS lanes, the warps in order
//       softmax: warp h has head h, lane s position s; running maximum and sum (online softmax, Milakov and Gimelshein 2018)
//       values: a thread has two columns of all HEADS heads, and adds up the round's positions in order
//
// Chunks. A row's positions are cut into chunks of MIN_CHUNK, doubled until `most_chunks` of them suffice: by the row's own length
// and the number of heads, so that its bits do not depend on what else is in the step. The grid has room for the plan's longest row;
// blocks beyond a row's length end at once. A row of one chunk is written directly (in prefill all are, since there rows fill the
// GPU). Otherwise each chunk leaves maximum, sum and unnormalised values of its heads in scratch, and `mla_merge` adds them up in
// the order of the chunks. A chunk that finds the end of its row's list says so by its count, and those after it are left out.
//
// Before the wait. Which chunk a block has follows from the step's inputs, which the step's first kernel had to wait for. Chosen
// lists and cached rows were written in this step; if it was not the preceding kernel that did (`settled`, the host looks at the
// plan), they are complete when this kernel starts, since each kernel lets its successor start only after its own wait. Then all
// that is left after the wait are the queries. None of it comes through L1, which only the wait makes sure of.
//
// A chunk of 32 positions x 8 heads is 280k multiply-adds on one SM, 1.1 us; 64 such chunks read 4.7 MB, 1 us of an H200's reads.
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
// Chunks that `mla_merge` can add up.
constexpr int MOST_CHUNKS = 64;
// Columns of a thread: latent rows have at most 512.
constexpr int COLUMNS = 2;
// Lanes: KS share a dot product, times 4 groups of positions, times HEADS / 4 groups of heads.
constexpr int KS = WARP / HEADS;
constexpr int LANE_POSITIONS = POSITIONS / 4;

__device__ __forceinline__ float minus_infinity() { return __uint_as_float(0xff800000u); }

// How many positions a chunk has, of a row that attends to at most `n`.
__device__ __forceinline__ int chunk_of(int n, int most_chunks) {
    int chunk = MIN_CHUNK;
    while (i64(chunk) * most_chunks < n) chunk *= 2;
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

// The loops here are kept rolled, and sites few: a kernel runs once a layer, finds its instructions evicted, and waits longer for
// those of unrolled loops than it gains by them.

// One warp brings `n` elements to shared memory, padded with zeros to whole vectors.
__device__ __forceinline__ void stage(float* to, const float* from, int n) {
    const int lane = threadIdx.x % WARP;
#if VEC == 4
#pragma unroll 1
    for (int i = 4 * lane; i < n; i += 4 * WARP) copy16_async(to + i, from + i);
#else
#pragma unroll 1
    for (int i = lane; i < (n + 3) / 4 * 4; i += WARP) to[i] = i < n ? from[i] : 0.0f;
#endif
}

// A row's positions, and where they lie.
struct Listed {
    // Null: all positions.
    const int* chosen;
    const int* table;
    int block_size;
    // The row's own position.
    int position;
};

// The cached rows of a round, as every warp sees them.
struct Round {
    // Of the round's `lane`th position.
    int position;
    u32 slot;
    // The row does not see it: it is not followed, and its score is NaN.
    bool outside;
    // How many there are: a list ends at its first -1.
    int count;
};

__device__ __forceinline__ Round look(const Listed& listed, int at, int end) {
    const int lane = threadIdx.x % WARP;
    const bool there = lane < POSITIONS && at + lane < end;
    Round r;
    r.position = !there ? -1 : listed.chosen ? load_input(listed.chosen + at + lane) : at + lane;
    const u32 ended = ~__ballot_sync(FULL, r.position != -1);
    r.count = ended ? __ffs(ended) - 1 : WARP;
    r.outside = lane < r.count && u32(r.position) > u32(listed.position);
    r.slot = lane < r.count && !r.outside ? slot_of(listed.table, listed.block_size, r.position) : 0;
    return r;
}

// Starts the copies of a round's rows.
__device__ __forceinline__ void bring(float* cached, const float* latent, const Round& r, const Sizes& z) {
#pragma unroll 1
    for (int i = threadIdx.x / WARP; i < r.count; i += WARPS) {
        const float* from = latent + u64(__shfl_sync(FULL, r.slot, i)) * (z.rank + z.rope);
#if VEC == 4
        // Both parts at once: neither needs padding.
        stage(cached + i * z.stride, from, z.rank + z.rope);
#else
        stage(cached + i * z.stride, from, z.rank);
        stage(cached + i * z.stride + z.padded_rank, from + z.rank, z.rope);
#endif
    }
}

// Reports positions outside, unless the list ended in an earlier chunk, from `begin` down. By one warp. `place`: of the round's first
// position, among those of all rows.
__device__ __forceinline__ void report(const Listed& listed, const Round& r, int begin, u64 place, Fault* fault, int op) {
    for (int i = threadIdx.x % WARP; i - int(threadIdx.x % WARP) < begin; i += WARP) {
        if (__any_sync(FULL, i < begin && listed.chosen[i] == -1)) return;
    }
    if (r.outside) raise(fault, FAULT_POSITION, op, place + threadIdx.x % WARP, r.position, listed.position + 1);
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
#pragma unroll 1
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

// What a warp knows of its head after the rounds so far; the same in all lanes.
struct Softmax {
    float maximum, sum;
};

// Probabilities of a round, relative to the largest score so far, for the warp's head: to p[position][head]. Returns what earlier
// values are to be multiplied with.
__device__ __forceinline__ float softmax(Softmax& state, const float* parts, float* p, const Round& r, float scale) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    float score = minus_infinity();
    if (lane < r.count) {
        score = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) score += parts[(w * HEADS + warp) * POSITIONS + lane];
        score = r.outside ? __uint_as_float(0x7fffffff) : score * scale;
    }
    float largest = score;
#pragma unroll
    for (int step = WARP / 2; step; step >>= 1) largest = fmaxf(largest, __shfl_xor_sync(FULL, largest, step));
    largest = fmaxf(largest, state.maximum);
    // If all scores so far are -inf, so is the maximum, and their difference would be NaN: these weigh nothing, since a later one
    // may be finite.
    const float base = largest == minus_infinity() ? 0.0f : largest;
    const float probability = lane < r.count ? expf(score - base) : 0.0f;
    const float factor = expf(state.maximum - base);
    state.sum = state.sum * factor + warp_sum(probability);
    state.maximum = largest;
    if (lane < POSITIONS) p[lane * HEADS + warp] = probability;
    return factor;
}

// Adds a position's values to the thread's columns.
__device__ __forceinline__ void add_value(float (&acc)[HEADS][COLUMNS], const float* columns, const float* p) {
    const float2 c = *reinterpret_cast<const float2*>(columns);
#pragma unroll
    for (int g = 0; g < HEADS / 4; g++) {
        const float4 w = reinterpret_cast<const float4*>(p)[g];
        const float each[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int h = 0; h < 4; h++) {
            acc[4 * g + h][0] = fmaf(each[h], c.x, acc[4 * g + h][0]);
            acc[4 * g + h][1] = fmaf(each[h], c.y, acc[4 * g + h][1]);
        }
    }
}

// The same for a round's.
__device__ __forceinline__ void add_values(float (&acc)[HEADS][COLUMNS], const float* columns, const float* p, int count, int stride) {
    int i = 0;
#pragma unroll 1
    for (; i + 4 <= count; i += 4) {
#pragma unroll
        for (int j = 0; j < 4; j++) add_value(acc, columns + (i + j) * stride, p + (i + j) * HEADS);
    }
#pragma unroll 1
    for (; i < count; i++) add_value(acc, columns + i * stride, p + i * HEADS);
}

// Two neighbouring columns of a row that has `columns` of them.
__device__ __forceinline__ void store_columns(float* row, int column, int columns, float x, float y) {
#if VEC == 4
    *reinterpret_cast<float2*>(row + column) = make_float2(x, y);
#else
    row[column] = x;
    if (column + 1 < columns) row[column + 1] = y;
#endif
}

// Chunks go to `partial` ([row][chunk][head][padded rank]), `partial_sums` (maximum and sum, [row][chunk][head]) and
// `partial_counts` ([row][chunk]).
KERNEL(256, 2) mla_attend(const float* q_latent, const float* q_rope, int q_rope_stride, const float* latent, float* out, float scale,
                          int heads, int rank, int rope, const int* topk, int topk_width, int most_chunks, int settled,
                          float* partial, float2* partial_sums, int* partial_counts,
                          const int* positions, const int* cu_seqlens, const int* block_tables,
                          int sequences, int max_blocks, int block_size, Rows rows, Fault* fault, int op) {
    SHARED(float, room);
    // Of each head: what earlier values are multiplied with, and what values are in the end.
    __shared__ float factors[HEADS];
    __shared__ float shares[HEADS];
    const Sizes z = sizes_of(heads, rank, rope);
    float* cached = room;
    float* q = cached + POSITIONS * z.stride;
    float* parts = q + HEADS * z.stride;
    float* p = parts + WARPS * HEADS * POSITIONS;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int row = blockIdx.x, first_head = blockIdx.y * HEADS;
    const int tile_heads = min(HEADS, heads - first_head);

    Listed listed;
    listed.position = load_input(positions + row);
    listed.table = block_tables + u64(sequence_of(cu_seqlens, sequences, row)) * max_blocks;
    listed.chosen = topk ? topk + u64(row) * topk_width : nullptr;
    listed.block_size = block_size;
    const int n = topk ? min(topk_width, listed.position + 1) : listed.position + 1;
    const int chunk = chunk_of(n, most_chunks), begin = int(blockIdx.z) * chunk, end = min(begin + chunk, n);
    const bool idle = !is_live_token(rows, row) || begin >= n;

    // In brackets: not the wait that stamps are taken at (common.cuh).
    if (!settled) (pdl_wait)();
    Round r = {};
    if (!idle) {
        r = look(listed, begin, end);
        bring(cached, latent, r, z);
    }
    pdl_wait();
    pdl_go();
    if (idle) return;
#pragma unroll 1
    for (int h = warp; h < HEADS; h += WARPS) {
        const u64 at = u64(row) * heads + first_head + min(h, tile_heads - 1);
        stage(q + h * z.stride, q_latent + at * rank, rank);
        stage(q + h * z.stride + z.padded_rank, q_rope + at * q_rope_stride, rope);
    }

    const int column = COLUMNS * threadIdx.x;
    float acc[HEADS][COLUMNS] = {};
    Softmax state = {minus_infinity(), 0.0f};
    // Positions taken.
    int taken = 0;
#pragma unroll 1
    for (int at = begin;;) {
        copies_wait();
        __syncthreads();
        if (__builtin_expect(warp == 0 && __any_sync(FULL, r.outside), 0)) report(listed, r, begin, u64(row) * topk_width + at, fault, op);
        score_part(cached, q, parts + warp * HEADS * POSITIONS, z);
        __syncthreads();
        if (HEADS == WARPS || warp < HEADS) {
            const float factor = softmax(state, parts, p, r, scale);
            if (lane == 0) {
                factors[warp] = factor;
                shares[warp] = 1.0f / state.sum;
            }
        }
        __syncthreads();
        if (column < z.padded_rank) {
            if (at != begin) {
#pragma unroll
                for (int h = 0; h < HEADS; h++) {
                    acc[h][0] *= factors[h];
                    acc[h][1] *= factors[h];
                }
            }
            add_values(acc, cached + column, p, r.count, z.stride);
        }
        taken += r.count;
        at += POSITIONS;
        // Nothing follows a list's end.
        if (r.count < POSITIONS || at >= end) break;
        r = look(listed, at, end);
        // The rows have been used by all.
        __syncthreads();
        bring(cached, latent, r, z);
    }

    const bool direct = chunk >= n;
    const u64 place = u64(row) * gridDim.z + blockIdx.z;
    if (!direct) {
        if (warp < tile_heads && lane == 0) partial_sums[place * heads + first_head + warp] = make_float2(state.maximum, state.sum);
        if (blockIdx.y == 0 && threadIdx.x == 0) partial_counts[place] = taken;
    }
    const int columns = direct ? rank : z.padded_rank;
    if (column >= columns) return;
    float* to = direct ? out + (u64(row) * heads + first_head) * rank : partial + (place * heads + first_head) * z.padded_rank;
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        if (h >= tile_heads) break;
        // A row that attends to nothing gives zeros, as the reference; one whose scores are all -inf gives NaN (0 / 0).
        const float share = !direct ? 1.0f : taken ? shares[h] : 0.0f;
        store_columns(to + h * columns, column, columns, acc[h][0] * share, acc[h][1] * share);
    }
}

// Adds up the chunks of each row and head; a row of one chunk is done already. Grid: rows x heads x quarters of the columns; 256
// threads: lane = column vector, warp w takes chunks w, w + 8, ..., all on their way at once; the warps' sums are added in order.
KERNEL(256) mla_merge(const float* partial, const float2* partial_sums, const int* partial_counts, float* out, int heads, int rank,
                      int chunks, int most_chunks, int topk_width, const int* positions, Rows rows) {
    constexpr int EACH = MOST_CHUNKS / WARPS, SLOTS = MOST_CHUNKS / WARP;
    __shared__ float4 others[WARPS][WARP];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int row = blockIdx.x, head = blockIdx.y, column = (int(blockIdx.z) * WARP + lane) * 4;
    const int padded_rank = (rank + 3) / 4 * 4;
    const int visible = load_input(positions + row) + 1;
    const int n = topk_width ? min(topk_width, visible) : visible;
    const int chunk = chunk_of(n, most_chunks), used = (n + chunk - 1) / chunk;
    const bool idle = !is_live_token(rows, row) || used <= 1;
    pdl_wait();
    pdl_go();
    if (idle) return;

    const u64 first = u64(row) * chunks;
    float2 sums[SLOTS];
    int count[SLOTS];
#pragma unroll
    for (int i = 0; i < SLOTS; i++) {
        const int c = i * WARP + lane;
        sums[i] = c < used ? partial_sums[(first + c) * heads + head] : make_float2(minus_infinity(), 0.0f);
        count[i] = c < used ? partial_counts[first + c] : 0;
    }
    float4 values[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int c = i * WARPS + warp;
        values[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (c < used && column < padded_rank)
            values[i] = *reinterpret_cast<const float4*>(partial + ((first + c) * heads + head) * padded_rank + column);
    }

    // The first chunk that is not full is the list's last.
    int last = MOST_CHUNKS;
#pragma unroll
    for (int i = SLOTS - 1; i >= 0; i--) {
        const int c = i * WARP + lane;
        const u32 ends = __ballot_sync(FULL, c < used && count[i] < min(chunk, n - c * chunk));
        if (ends) last = i * WARP + __ffs(ends) - 1;
    }
    float largest = minus_infinity();
#pragma unroll
    for (int i = 0; i < SLOTS; i++) {
        if (i * WARP + lane > last) sums[i] = make_float2(minus_infinity(), 0.0f);
        largest = fmaxf(largest, sums[i].x);
    }
#pragma unroll
    for (int step = WARP / 2; step; step >>= 1) largest = fmaxf(largest, __shfl_xor_sync(FULL, largest, step));
    const float base = largest == minus_infinity() ? 0.0f : largest;
    float weights[SLOTS], sum = 0.0f;
#pragma unroll
    for (int i = 0; i < SLOTS; i++) {
        weights[i] = expf(sums[i].x - base);
        sum = fmaf(weights[i], sums[i].y, sum);
    }
    sum = warp_sum(sum);

    float4 acc = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int c = i * WARPS + warp;
        const float w = __shfl_sync(FULL, weights[i * WARPS / WARP], c % WARP);
        if (c >= used || c > last) continue;
        acc.x = fmaf(w, values[i].x, acc.x);
        acc.y = fmaf(w, values[i].y, acc.y);
        acc.z = fmaf(w, values[i].z, acc.z);
        acc.w = fmaf(w, values[i].w, acc.w);
    }
    others[warp][lane] = acc;
    // A row that attends to nothing gives zeros, as the reference.
    const bool nothing = last == 0 && __shfl_sync(FULL, count[0], 0) == 0;
    __syncthreads();
    // One column a thread.
    const int mine = int(blockIdx.z) * 4 * WARP + int(threadIdx.x);
    if (threadIdx.x >= 4 * WARP || mine >= rank) return;
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) total += reinterpret_cast<const float*>(others[w])[threadIdx.x];
    out[(u64(row) * heads + head) * rank + mine] = nothing ? 0.0f : total / sum;
}
