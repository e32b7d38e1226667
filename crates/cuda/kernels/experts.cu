// The chosen experts of each row: out = Σ weight · down (silu(gate x) ⊙ up x), for one to a few rows.
//
// A pair is a choice of a row: pair `t · k + i` is expert `ids[t, i]`. Two kernels: gate and up of every pair with silu between,
// then down with the sum over a row's pairs. Both round their activations to 8 bits themselves (fast arithmetic, types with
// integers), since a kernel of its own for that costs more than reading a few kilobytes in every block.
//
// A row's bits depend on the shapes and on its own choices alone: lanes take pieces of a weight row in a fixed order and a butterfly
// adds up the lanes, whichever block, tile or company a row is in. Multiplying and adding are spelled out where the compiler could
// choose between two ways to fuse them.
//
// Defines: TYPE, the type of the weights of one launch; FAST, 1 for 8-bit activations; ROWS, pairs of one expert that are multiplied
// at a time.
// variants: TYPE = Q8_0 Q8_1 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K; FAST = 1; ROWS = 1 4
// variants: TYPE = IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_NL IQ4_XS TQ1_0 TQ2_0 MXFP4 NVFP4; FAST = 1; ROWS = 1 4
// variants: TYPE = Q8_0 Q8_1 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K; FAST = 0; ROWS = 1
// variants: TYPE = IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_NL IQ4_XS TQ1_0 TQ2_0 MXFP4 NVFP4; FAST = 0; ROWS = 1
// variants: TYPE = F32 F16 BF16; FAST = 0; ROWS = 1
// prefetches: experts_down
// spills: experts_half experts_hidden
#include "common.cuh"
#include "pieces.cuh"

typedef Pieces<TYPE, FAST> Weight;
typedef Weight::T Piece;
typedef Piece::X X;

// Pieces of a matrix that a lane has on their way at once, as registers allow.
constexpr int LOADS = (sizeof(Piece) <= 32 ? 4 : sizeof(Piece) <= 48 ? 3 : 2) - (ROWS > 1 && sizeof(Piece) <= 48);
constexpr int HIDDEN_THREADS = 512;

__device__ __forceinline__ float silu(float z) { return z * (1.0f / (1.0f + expf(-z))); }

// The pairs that this block serves, and their number; 0 if an earlier block does. With ROWS > 1 the first pair that names an expert
// serves all that do, so that the expert is read once. In the order of the pairs, by counting those before in warps and lanes.
__device__ __forceinline__ int members_of(const int* ids, int expert, int pairs, int k, const Rows& rows, int* members) {
    constexpr int WARPS = HIDDEN_THREADS / WARP;
    __shared__ u32 words[WARPS];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int count = 0;
    for (int base = 0; base < pairs; base += HIDDEN_THREADS) {
        const int other = base + threadIdx.x;
        const bool same = other < pairs && is_live(rows, other / k) && ids[other] == expert;
        const u32 word = __ballot_sync(FULL, same);
        if (lane == 0) words[warp] = word;
        __syncthreads();
        int place = count + __popc(word & ((1u << lane) - 1));
        for (int w = 0; w < WARPS; w++) {
            if (w < warp) place += __popc(words[w]);
            count += __popc(words[w]);
        }
        if (same) members[place] = other;
        __syncthreads();
    }
    return members[0] == int(blockIdx.x) ? count : 0;
}

// Multiplies the activations of pairs with rows of one or two matrices of their expert, and gives the sums of each pair and row to
// `put`. A warp takes one row of each matrix at a time.
template <int MATRICES, class Put>
__device__ __forceinline__ void products(const u8* const (&weights)[MATRICES], const float* x, const int* ids, int experts, int d, int inner,
                                         int k, int tile, const Rows& rows, Fault* fault, int op, Put put) {
    constexpr int WARPS = HIDDEN_THREADS / WARP;
    SHARED(u8, room);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, pair = blockIdx.x, bytes = X::bytes(d);
    // Both loads at once: what a dead row names is not looked at.
    const int expert = ids[pair];
    if (!is_live(rows, pair / k)) return;
    if (u32(expert) >= u32(experts)) {
        if (blockIdx.y == 0 && threadIdx.x == 0) raise(fault, FAULT_EXPERT, op, pair, expert, experts);
        return;
    }
    const int* members = &pair;
    int count = 1;
    if constexpr (ROWS > 1) {
        int* list = reinterpret_cast<int*>(room + ROWS * bytes);
        count = members_of(ids, expert, gridDim.x, k, rows, list);
        members = list;
    }

    // The warp's rows one after another, each in passes of a piece for every lane: one sequence of items, LOADS of which are always
    // on their way.
    const int first = blockIdx.y * tile + warp, end = min((blockIdx.y + 1) * tile, inner);
    const int pieces = Weight::count(d), passes = (pieces + WARP - 1) / WARP;
    const int items = first < end ? (end - first + WARPS - 1) / WARPS * passes : 0;
    const u64 blocks = Weight::blocks(d), all = u64(experts) * inner * blocks;
    Piece w[LOADS][MATRICES];

    for (int start = 0; start < count; start += ROWS) {
        const int n = min(count - start, ROWS);
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
        // The first weights are on their way while the activations are rounded.
#pragma unroll
        for (int l = 0; l < LOADS; l++) {
            if (l < items) load(w[l]);
        }
        X row[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            row[r] = X(room + r * bytes, d);
            if (r < n) X::fill(room + r * bytes, bytes, x + u64(members[start + r] / k) * d, d, 1);
        }
        __syncthreads();
        float sum[MATRICES][ROWS] = {};
        int i = first, piece = lane;
        for (int item = 0; item < items; item += LOADS) {
#pragma unroll
            for (int l = 0; l < LOADS; l++) {
                if (item + l >= items) break;
                if (piece < pieces) {
#pragma unroll
                    for (int m = 0; m < MATRICES; m++) w[l][m].template dot<ROWS>(row, n, piece, sum[m]);
                }
                if (item + l + LOADS < items) load(w[l]);
                piece += WARP;
                if (piece < passes * WARP) continue;
                // The row is done.
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    float own[MATRICES];
#pragma unroll
                    for (int m = 0; m < MATRICES; m++) own[m] = warp_sum(sum[m][r]), sum[m][r] = 0.0f;
                    if (lane == 0 && r < n) put(u64(members[start + r]) * inner + i, own);
                }
                piece = lane, i += WARPS;
            }
        }
        // The room is filled again.
        __syncthreads();
    }
}

// `hidden[pair, i] = silu(gate_e x)[i] · (up_e x)[i]`. Grid (pairs, I / tile). An expert out of range raises a fault and leaves `hidden`
// alone: `experts_down` looks again. Shared: ROWS rows of activations; then a list of the pairs, if ROWS > 1.
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
// Shared: the hidden rows of the row's pairs, in the form that is needed; then the row's experts and their weights.
KERNEL(256) experts_down(const u8* down, const float* hidden, const int* ids, const float* weights, float* out, int experts, int inner,
                         int d, int k, int tile, Rows rows) {
    constexpr int WARPS = DOWN_THREADS / WARP;
    SHARED(u8, room);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, t = blockIdx.x, bytes = X::bytes(inner);
    int* chosen = reinterpret_cast<int*>(room + k * bytes);
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
    X::fill(room, bytes, hidden + u64(t) * k * inner, inner, k);
    __syncthreads();
    float sum[OUTS] = {};
    int j = first, piece = lane;
    for (int item = 0; item < items; item += DOWN_LOADS) {
#pragma unroll
        for (int l = 0; l < DOWN_LOADS; l++) {
            if (item + l >= items) break;
            if (piece < pieces) {
                const int i = piece / each;
                const X x(room + i * bytes, inner);
#pragma unroll
                for (int o = 0; o < OUTS; o++) {
                    float part = 0.0f;
                    w[l][o].template dot<1>(&x, 1, piece - i * each, &part);
                    sum[o] = fmaf(factors[i], part, sum[o]);
                }
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
