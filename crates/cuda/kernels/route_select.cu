// The choice of experts from router logits, by plan/src/reference/moe.rs: score, bias, groups, the k largest, weights.
#include "common.cuh"
#include "order.cuh"

constexpr int THREADS = 256;

__device__ __forceinline__ int above(uint4 v, u32 bound) { return (v.x > bound) + (v.y > bound) + (v.z > bound) + (v.w > bound); }

// How many of `keys[0..n]` come before `keys[i]`: the larger, and of equal ones the lower index. `n` is a multiple of 4, no key that is
// asked for is 0. Before quad `from` all indices are below `i`, from quad `to` on all are above: where these are the same for a warp, so is
// its way through the keys.
__device__ __forceinline__ int rank_of(const u32* keys, int n, int i, int from, int to) {
    const uint4* quads = reinterpret_cast<const uint4*>(keys);
    const u32 own = keys[i];
    int rank = 0;
    // Before `i` an equal key counts, behind it none.
#pragma unroll 4
    for (int q = 0; q < from; q++) rank += above(quads[q], own - 1);
#pragma unroll 2
    for (int q = from; q < to; q++) {
        const uint4 v = quads[q];
        const int d = i - 4 * q;
        rank += (v.x > own - (d > 0)) + (v.y > own - (d > 1)) + (v.z > own - (d > 2)) + (v.w > own - (d > 3));
    }
#pragma unroll 4
    for (int q = to; q < n / 4; q++) rank += above(quads[q], own);
    return rank;
}

__device__ __forceinline__ int up4(int n) { return (n + 3) / 4 * 4; }

// The sum of the two best of a group.
__device__ __forceinline__ float group_score(const float* choice, const u32* keys, int size) {
    int best = 0;
#pragma unroll 1
    for (int e = 1; e < size; e++) {
        if (keys[e] > keys[best]) best = e;
    }
    if (size == 1) return choice[0];
    int second = best == 0 ? 1 : 0;
#pragma unroll 1
    for (int e = second + 1; e < size; e++) {
        if (e != best && keys[e] > keys[second]) second = e;
    }
    return choice[best] + choice[second];
}

// Grid (rows); a thread for each expert, in rounds. A row's experts are ranked by counting those before each, which needs no
// order between threads. Shared: scores, choices and keys of the experts; keys of the groups; a bit for each chosen expert; the
// chosen scores (`shared_bytes` in program/moe.rs).
KERNEL(256) route_select(const float* parts, const float* bias, int* ids, float* weights, int experts, int slices, int k, int softmax,
                         int n_group, int topk_group, int norm, float scale, Rows rows) {
    SHARED(float, scores);
    float* choice = scores + up4(experts);
    u32* keys = reinterpret_cast<u32*>(choice + up4(experts));
    u32* group_keys = keys + up4(experts);
    u32* chosen = group_keys + up4(n_group);
    float* picked = reinterpret_cast<float*>(chosen + (experts + WARP - 1) / WARP);
    __shared__ float room[2][WARP];
    const int t = threadIdx.x, r = blockIdx.x;
    // The bias is a weight: the first round's is on its way before the wait.
    const float first_bias = bias && t < experts ? __uint_as_float(load4(bias + t)) : 0.0f;
    pdl_wait();
    pdl_go();
    if (!is_computed(rows, r)) return;

    // Each thread meets the same experts in every loop over scores, so these need no barrier.
    const float* row = parts + u64(r) * slices * experts;
    float max = __uint_as_float(0xff800000u);
#pragma unroll 1
    for (int e = t; e < experts; e += THREADS) {
        float logit = 0.0f;
#pragma unroll 8
        for (int s = 0; s < slices; s++) logit += row[u64(s) * experts + e];
        scores[e] = softmax ? logit : 1.0f / (1.0f + expf(-logit));
        max = max_nan(max, logit);
    }
    if (softmax) {
        max = block_max(max, room[0]);
        float sum = 0.0f;
#pragma unroll 1
        for (int e = t; e < experts; e += THREADS) sum += scores[e] = expf(scores[e] - max);
        sum = block_sum(sum, room[1]);
#pragma unroll 1
        for (int e = t; e < experts; e += THREADS) scores[e] = scores[e] / sum;
    }
#pragma unroll 1
    for (int e = t; e < up4(experts); e += THREADS) {
        if (e < experts) choice[e] = bias ? scores[e] + (e == t ? first_bias : bias[e]) : scores[e];
        // What is not there comes last.
        keys[e] = e < experts ? order_key(choice[e]) : 0;
    }
    __syncthreads();

    if (n_group > 1) {
        const int size = experts / n_group;
#pragma unroll 1
        for (int g = t; g < up4(n_group); g += THREADS) {
            group_keys[g] = g < n_group ? order_key(group_score(choice + g * size, keys + g * size, size)) : 0;
        }
        __syncthreads();
#pragma unroll 1
        for (int e = t; e < experts; e += THREADS) {
            const bool kept = rank_of(group_keys, up4(n_group), e / size, 0, up4(n_group) / 4) < topk_group;
            if (!kept) keys[e] = order_key(__uint_as_float(0xff800000u));
        }
        __syncthreads();
    }

#pragma unroll 1
    for (int e = t; e < (experts + THREADS - 1) / THREADS * THREADS; e += THREADS) {
        const int first = e / WARP * (WARP / 4), last = min(first + WARP / 4, up4(experts) / 4);
        const bool is_chosen = e < experts && rank_of(keys, up4(experts), e, first, last) < k;
        const u32 word = __ballot_sync(FULL, is_chosen);
        if (e % WARP == 0 && e < experts) chosen[e / WARP] = word;
    }
    __syncthreads();
#pragma unroll 1
    for (int e = t; e < experts; e += THREADS) {
        const u32 word = chosen[e / WARP];
        if (!(word >> (e % WARP) & 1)) continue;
        int place = __popc(word & ((1u << (e % WARP)) - 1));
#pragma unroll 4
        for (int w = 0; w < e / WARP; w++) place += __popc(chosen[w]);
        ids[u64(r) * k + place] = e;
        picked[place] = scores[e];
    }
    __syncthreads();
#pragma unroll 1
    for (int i = t; i < k; i += THREADS) {
        float sum = 0.0f;
#pragma unroll 4
        for (int j = 0; j < k; j++) sum += picked[j];
        const float factor = norm ? scale / (sum + 1e-20f) : scale;
        weights[u64(r) * k + i] = picked[i] * factor;
    }
}
