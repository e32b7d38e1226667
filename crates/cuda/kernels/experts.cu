// The chosen experts of each row with activations of f32: out = Σ weight · down (silu(gate x) ⊙ up x), for one to a few rows. For float
// weights, and in exact arithmetic; others: experts_int.cu.
//
// A pair is a choice of a row: pair `t · k + i` is expert `ids[t, i]`. Two kernels: gate and up of every pair with silu between,
// then down with the sum over a row's pairs.
//
// A row's bits depend on the shapes and on its own choices alone: lanes take pieces of a weight row in a fixed order and a butterfly
// adds up the lanes, whichever block, tile or company a row is in.
//
// Defines: TYPE, the type of the weights of one launch.
// variants: TYPE = F32 F16 BF16 Q8_0 Q8_1 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K
// variants: TYPE = IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_NL IQ4_XS TQ1_0 TQ2_0 MXFP4 NVFP4
// prefetches: experts_down
// spills: experts_half experts_hidden
#include "common.cuh"
#include "pieces.cuh"
#include "silu.cuh"

typedef Pieces<TYPE> Weight;
typedef Weight::T Piece;

// Pieces of a matrix that a lane has on their way at once, as registers allow.
constexpr int LOADS = sizeof(Piece) <= 32 ? 4 : sizeof(Piece) <= 48 ? 3 : 2;
constexpr int HIDDEN_THREADS = 512;

// Multiplies a pair's activations with rows of one or two matrices of its expert, and gives the sums of each row to `put`. A warp takes
// one row of each matrix at a time.
template <int MATRICES, class Put>
__device__ __forceinline__ void products(const u8* const (&weights)[MATRICES], const float* x, const int* ids, int experts, int d, int inner,
                                         int k, int tile, const Rows& rows, Fault* fault, int op, Put put) {
    constexpr int WARPS = HIDDEN_THREADS / WARP;
    SHARED(float, room);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, pair = blockIdx.x;
    // Both loads at once: what a dead row names is not looked at.
    const int expert = ids[pair];
    if (!is_live(rows, pair / k)) return;
    if (u32(expert) >= u32(experts)) {
        if (blockIdx.y == 0 && threadIdx.x == 0) raise(fault, FAULT_EXPERT, op, pair, expert, experts);
        return;
    }

    // The warp's rows one after another, each in passes of a piece for every lane: one sequence of items, LOADS of which are always
    // on their way.
    const int first = blockIdx.y * tile + warp, end = min((blockIdx.y + 1) * tile, inner);
    const int pieces = Weight::count(d), passes = (pieces + WARP - 1) / WARP;
    const int items = first < end ? (end - first + WARPS - 1) / WARPS * passes : 0;
    const u64 blocks = Weight::blocks(d), all = u64(experts) * inner * blocks;
    Piece w[LOADS][MATRICES];
    u64 at = (u64(expert) * inner + first) * blocks;
    int next = lane;
    auto load = [&](Piece* slot) {
        if (next < pieces) {
#pragma unroll
            for (int m = 0; m < MATRICES; m++) slot[m].load({weights[m], all, at}, next, d);
        }
        next += WARP;
        if (next >= passes * WARP) next = lane, at += WARPS * blocks;
    };
    // The first weights are on their way while the activations are copied.
#pragma unroll
    for (int l = 0; l < LOADS; l++) {
        if (l < items) load(w[l]);
    }
    const Floats row(room);
    row.fill(x + u64(pair / k) * d, d, 1);
    __syncthreads();
    float sum[MATRICES] = {};
    int i = first, piece = lane;
    for (int item = 0; item < items; item += LOADS) {
#pragma unroll
        for (int l = 0; l < LOADS; l++) {
            if (item + l >= items) break;
            if (piece < pieces) {
#pragma unroll
                for (int m = 0; m < MATRICES; m++) sum[m] = w[l][m].dot(row, piece, sum[m]);
            }
            if (item + l + LOADS < items) load(w[l]);
            piece += WARP;
            if (piece < passes * WARP) continue;
            // The row is done.
            float own[MATRICES];
#pragma unroll
            for (int m = 0; m < MATRICES; m++) own[m] = warp_sum(sum[m]), sum[m] = 0.0f;
            if (lane == 0) put(u64(pair) * inner + i, own);
            piece = lane, i += WARPS;
        }
    }
}

// `hidden[pair, i] = silu(gate_e x)[i] · (up_e x)[i]`. Grid (pairs, I / tile). An expert out of range raises a fault and leaves `hidden`
// alone: `experts_down` looks again. Shared: the activations.
KERNEL(512) experts_hidden(const u8* gate, const u8* up, const float* x, const int* ids, float* hidden, int experts, int d, int inner,
                           int k, int tile, Rows rows, Fault* fault, int op) {
    pdl_wait();
    pdl_go();
    const u8* const weights[2] = {gate, up};
    products<2>(weights, x, ids, experts, d, inner, k, tile, rows, fault, op,
                [&](u64 at, const float* sum) { hidden[at] = silu(sum[0]) * sum[1]; });
}

// The same in two launches, for matrices of different types: without `gated` the sums of gate, then `silu(gated) ·` those of up.
KERNEL(512) experts_half(const u8* weight, const float* x, const int* ids, const float* gated, float* hidden, int experts, int d,
                         int inner, int k, int tile, Rows rows, Fault* fault, int op) {
    pdl_wait();
    pdl_go();
    const u8* const weights[1] = {weight};
    products<1>(weights, x, ids, experts, d, inner, k, tile, rows, fault, op,
                [&](u64 at, const float* sum) { hidden[at] = gated ? silu(gated[at]) * sum[0] : sum[0]; });
}

// Output elements of a warp, and pieces of each that are on their way at once.
constexpr int OUTS = 2;
constexpr int DOWN_LOADS = sizeof(Piece) <= 32 ? 3 : 2;
constexpr int DOWN_THREADS = 256;

// `out[t, j] = Σ_i weights[t, i] · (down_e hidden[t · k + i])[j]`. Grid (rows, D / tile), a warp for two elements at a time: its lanes
// share out the pieces of all the row's experts, which at 256 inputs an expert are two for each lane.
// The first weights are loaded before the wait, though ids and their weights say which: these were written before `experts_hidden`,
// the kernel in front of this one, ended its own wait, and this one starts after that.
// An expert out of range, of which `experts_hidden` raised the fault, makes the row NaN.
// Shared: the hidden rows of the row's pairs; then the row's experts and their weights.
KERNEL(256) experts_down(const u8* down, const float* hidden, const int* ids, const float* weights, float* out, int experts, int inner,
                         int d, int k, int tile, Rows rows) {
    constexpr int WARPS = DOWN_THREADS / WARP;
    SHARED(float, room);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, t = blockIdx.x, width = Floats::width(inner);
    int* chosen = reinterpret_cast<int*>(room + k * width);
    float* factors = reinterpret_cast<float*>(chosen + k);
    const bool live = is_live(rows, t);
    if (live) {
        for (int i = threadIdx.x; i < k; i += DOWN_THREADS) {
            const u32 expert = load4(ids + u64(t) * k + i);
            const float factor = __uint_as_float(load4(weights + u64(t) * k + i));
            const bool inside = expert < u32(experts);
            chosen[i] = inside ? expert : 0, factors[i] = inside ? factor : __uint_as_float(0x7fc00000u);
        }
    }
    __syncthreads();

    const int first = blockIdx.y * tile + warp * OUTS, end = live ? min((blockIdx.y + 1) * tile, d) : 0;
    const int each = Weight::count(inner), pieces = k * each, passes = (pieces + WARP - 1) / WARP;
    const int items = first < end ? (end - first + WARPS * OUTS - 1) / (WARPS * OUTS) * passes : 0;
    const u64 blocks = Weight::blocks(inner), all = u64(experts) * d * blocks;
    Piece w[DOWN_LOADS][OUTS];
    int ahead = first, next = lane;
    auto load = [&](Piece* slot) {
        if (next < pieces) {
            const int i = next / each;
#pragma unroll
            for (int o = 0; o < OUTS; o++) {
                // An element too many repeats the last.
                const u64 row = u64(chosen[i]) * d + min(ahead + o, d - 1);
                slot[o].load({down, all, row * blocks}, next - i * each, inner);
            }
        }
        next += WARP;
        if (next >= passes * WARP) next = lane, ahead += WARPS * OUTS;
    };
#pragma unroll
    for (int l = 0; l < DOWN_LOADS; l++) {
        if (l < items) load(w[l]);
    }
    pdl_wait();
    pdl_go();
    if (!live) return;
    Floats(room).fill(hidden + u64(t) * k * inner, inner, k);
    __syncthreads();
    float sum[OUTS] = {};
    int j = first, piece = lane;
    for (int item = 0; item < items; item += DOWN_LOADS) {
#pragma unroll
        for (int l = 0; l < DOWN_LOADS; l++) {
            if (item + l >= items) break;
            if (piece < pieces) {
                const int i = piece / each;
                const Floats x(room + i * width);
#pragma unroll
                for (int o = 0; o < OUTS; o++) sum[o] = fmaf(factors[i], w[l][o].dot(x, piece - i * each, 0.0f), sum[o]);
            }
            if (item + l + DOWN_LOADS < items) load(w[l]);
            piece += WARP;
            if (piece < passes * WARP) continue;
            // The elements are done.
#pragma unroll
            for (int o = 0; o < OUTS; o++) {
                const float value = warp_sum(sum[o]);
                sum[o] = 0.0f;
                if (lane == 0 && j + o < end) out[u64(t) * d + j + o] = value;
            }
            piece = lane, j += WARPS * OUTS;
        }
    }
}
