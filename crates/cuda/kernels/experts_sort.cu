// Pairs of a row and one of its experts, gathered by expert, and their results brought back: what surrounds experts_gemm.cu.
//
// A pair is numbered row · k + i. Sorted, pairs of one expert are neighbours and keep their order. Which pairs share a tile changes no
// bit of their results.
#include "common.cuh"

// Where the pairs of an expert lie.
struct Group {
    int first, count;
};

// Part of a group: what one block of the products takes.
struct Piece {
    int expert, first, count, reserved;
};

// grid (experts), 256 threads. Each block goes through all ids twice: it counts those of lower experts, which is where its own pairs
// begin, then puts its own in place. A warp takes one stretch of the pairs, so that their order is known without a barrier each time.
// `order[place]`: pair; `place[pair]`: -1 for an id that is no expert; `total`: pairs in all.
KERNEL(256)
experts_sort(const int* ids, Rows rows, int k, int experts, int* order, int* place, Group* groups, int* total, Fault* fault, int op) {
    pdl_wait();
    pdl_go();
    __shared__ int lower[256 / WARP], equal[256 / WARP];
    const int expert = blockIdx.x, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int pairs = (rows.live ? min(*rows.live, rows.capacity) : rows.capacity) * k;
    const int stretch = (pairs / (256 / WARP) + WARP) / WARP * WARP, start = warp * stretch, end = min(start + stretch, pairs);
    const auto live = [&](int pair) { return pair < end && (!rows.output_rows || rows.output_rows[pair / k] >= 0); };
    // Of a pair that is not live, and of an id below zero: above all experts.
    const auto id_of = [&](int pair) { return live(pair) ? u32(ids[pair]) : ~0u; };

    int low = 0, own = 0;
    for (int pair = start + lane; pair < end; pair += WARP) {
        const u32 id = id_of(pair);
        low += id < u32(expert);
        own += id == u32(expert);
    }
#pragma unroll
    for (int step = WARP / 2; step; step >>= 1) {
        low += __shfl_xor_sync(FULL, low, step);
        own += __shfl_xor_sync(FULL, own, step);
    }
    if (lane == 0) lower[warp] = low, equal[warp] = own;
    __syncthreads();
    int first = 0, before = 0, count = 0;
    for (int w = 0; w < 256 / WARP; w++) {
        first += lower[w];
        if (w < warp) before += equal[w];
        count += equal[w];
    }
    if (threadIdx.x == 0) {
        groups[expert] = {first, count};
        if (expert == experts - 1) *total = first + count;
    }

    int at = first + before;
    for (int base = start; base < end; base += WARP) {
        const int pair = base + lane;
        const u32 id = id_of(pair);
        const u32 mine = __ballot_sync(FULL, id == u32(expert));
        if (id == u32(expert)) {
            const int to = at + __popc(mine & ((1u << lane) - 1));
            order[to] = pair;
            place[pair] = to;
        }
        at += __popc(mine);
        if (expert == 0 && id >= u32(experts) && live(pair)) {
            raise(fault, FAULT_EXPERT, op, pair, int(id), experts);
            place[pair] = -1;
        }
    }
}

// One block of 256 threads: groups cut into pieces of up to `tile` pairs; `pieces[count..capacity]` are empty.
KERNEL(256)
experts_pieces(const Group* groups, int experts, int tile, Piece* pieces, int capacity) {
    pdl_wait();
    pdl_go();
    __shared__ int sums[256 / WARP];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int begin = 0;
    for (int base = 0; base < experts; base += 256) {
        const int expert = base + threadIdx.x;
        const Group group = expert < experts ? groups[expert] : Group{0, 0};
        const int mine = (group.count + tile - 1) / tile;
        int upto = mine;
#pragma unroll
        for (int step = 1; step < WARP; step <<= 1) {
            const int other = __shfl_up_sync(FULL, upto, step);
            if (lane >= step) upto += other;
        }
        if (lane == WARP - 1) sums[warp] = upto;
        __syncthreads();
        int all = 0;
        for (int w = 0; w < 256 / WARP; w++) {
            if (w < warp) upto += sums[w];
            all += sums[w];
        }
        for (int i = 0; i < mine; i++)
            pieces[begin + upto - mine + i] = {expert, group.first + i * tile, min(tile, group.count - i * tile), 0};
        begin += all;
        __syncthreads();
    }
    for (int i = begin + threadIdx.x; i < capacity; i += 256) pieces[i] = {0, 0, 0, 0};
}

// out[t] = Σ_i weights[t, i] · down[place[t, i]], in the order of the choices, for `columns` columns from `first`.
// grid (rows, columns / 256), 256 threads. `down`: [pairs][columns], `out`: [rows][width].
KERNEL(256)
experts_combine(const float* down, const int* place, const float* weights, float* out, Rows rows, int k, int first, int columns,
                int width) {
    pdl_wait();
    pdl_go();
    const int t = blockIdx.x, column = blockIdx.y * 256 + threadIdx.x;
    if (column >= columns || !is_live(rows, t)) return;
    float sum = 0.0f;
    for (int i = 0; i < k; i++) {
        const int from = place[t * k + i];
        sum = from < 0 ? __uint_as_float(0x7fc00000u) : fmaf(weights[t * k + i], down[u64(from) * columns + column], sum);
        if (from < 0) break;
    }
    out[u64(t) * width + first + column] = sum;
}
