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
#include "common.cuh"
#include "pieces.cuh"

typedef Pieces<TYPE, FAST> Weight;
typedef Weight::T Piece;
typedef Piece::X X;

// Pieces that a lane loads at once of each matrix, as registers allow: with Q4_K and one pair, all of a row of 6144.
constexpr int LOADS = ROWS == 1 && sizeof(Piece) <= 48 ? 3 : 2;
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
    if (!is_live(rows, pair / k)) return;
    const int expert = ids[pair];
    if (u32(expert) >= u32(experts)) {
        if (blockIdx.y == 0 && threadIdx.x == 0) raise(fault, FAULT_EXPERT, op, expert, experts);
        return;
    }
    const int* members = &pair;
    int count = 1;
    if constexpr (ROWS > 1) {
        int* list = reinterpret_cast<int*>(room + ROWS * bytes);
        count = members_of(ids, expert, gridDim.x, k, rows, list);
        members = list;
    }

    const int first = blockIdx.y * tile + warp, end = min((blockIdx.y + 1) * tile, inner), pieces = Weight::count(d);
    Piece w[MATRICES][LOADS];
    auto load = [&](int i, int base) {
#pragma unroll
        for (int m = 0; m < MATRICES; m++) {
            const RowAt row = Weight::at(weights[m], u64(experts) * inner, u64(expert) * inner + i, d);
#pragma unroll
            for (int l = 0; l < LOADS; l++) {
                const int piece = base + l * WARP + lane;
                if (piece < pieces) w[m][l].load(row, piece, d);
            }
        }
    };

    for (int start = 0; start < count; start += ROWS) {
        const int n = min(count - start, ROWS);
        // The first weights are on their way while the activations are rounded.
        bool loaded = first < end;
        if (loaded) load(first, 0);
        X row[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            row[r] = X(room + r * bytes, d);
            if (r < n) X::fill(room + r * bytes, bytes, x + u64(members[start + r] / k) * d, d, 1);
        }
        __syncthreads();
        for (int i = first; i < end; i += WARPS) {
            float sum[MATRICES][ROWS] = {};
            for (int base = 0; base < pieces; base += LOADS * WARP) {
                if (!loaded) load(i, base);
                loaded = false;
#pragma unroll
                for (int l = 0; l < LOADS; l++) {
                    const int piece = base + l * WARP + lane;
                    if (piece >= pieces) continue;
#pragma unroll
                    for (int m = 0; m < MATRICES; m++) w[m][l].template dot<ROWS>(row, n, piece, sum[m]);
                }
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if (r >= n) break;
#pragma unroll
                for (int m = 0; m < MATRICES; m++) sum[m][r] = warp_sum(sum[m][r]);
                float own[MATRICES];
#pragma unroll
                for (int m = 0; m < MATRICES; m++) own[m] = sum[m][r];
                if (lane == 0) put(u64(members[start + r]) * inner + i, own);
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

// Output elements of a warp, and pieces of each, that are loaded at once.
constexpr int OUTS = 2;
constexpr int DOWN_LOADS = 2;
constexpr int DOWN_THREADS = 256;

// `out[t, j] = Σ_i weights[t, i] · (down_e hidden[t · k + i])[j]`. Grid (rows, D / tile), a warp for two elements at a time: its lanes
// share out the pieces of all the row's experts, which at 256 inputs an expert is one load for each lane.
// The first weights are loaded before the wait, though ids and their weights say which: these were written before `experts_hidden`,
// the kernel in front of this one, ended its own wait, and this one starts after that.
// An expert out of range, of which `experts_hidden` raised the fault, makes the row NaN.
// Shared: the hidden rows of the row's pairs, in the form that is needed.
KERNEL(256) experts_down(const u8* down, const float* hidden, const int* ids, const float* weights, float* out, int experts, int inner,
                         int d, int k, int tile, Rows rows) {
    constexpr int WARPS = DOWN_THREADS / WARP;
    SHARED(u8, room);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, t = blockIdx.x, bytes = X::bytes(inner);
    ids += u64(t) * k, weights += u64(t) * k;
    const int first = blockIdx.y * tile + warp * OUTS, end = min((blockIdx.y + 1) * tile, d);
    const int each = Weight::count(inner), pieces = k * each;

    Piece w[OUTS][DOWN_LOADS];
    // Its expert and piece, and the expert's weight.
    int place[DOWN_LOADS], piece[DOWN_LOADS];
    float factor[DOWN_LOADS];
    auto load = [&](int j, int base) {
#pragma unroll
        for (int l = 0; l < DOWN_LOADS; l++) {
            const int p = base + l * WARP + lane;
            place[l] = p / each, piece[l] = p % each;
            if (p >= pieces) continue;
            u32 expert = load4(ids + place[l]);
            factor[l] = __uint_as_float(load4(weights + place[l]));
            if (expert >= u32(experts)) expert = 0, factor[l] = __uint_as_float(0x7fc00000u);
#pragma unroll
            for (int o = 0; o < OUTS; o++) {
                // An element too many repeats the last.
                const RowAt row = Weight::at(down, u64(experts) * d, u64(expert) * d + min(j + o, d - 1), inner);
                w[o][l].load(row, piece[l], inner);
            }
        }
    };

    const bool live = is_live(rows, t);
    bool loaded = live && first < end;
    if (loaded) load(first, 0);
    pdl_wait();
    pdl_go();
    if (!live) return;
    X::fill(room, bytes, hidden + u64(t) * k * inner, inner, k);
    __syncthreads();
    for (int j = first; j < end; j += WARPS * OUTS) {
        float sum[OUTS] = {};
        for (int base = 0; base < pieces; base += DOWN_LOADS * WARP) {
            if (!loaded) load(j, base);
            loaded = false;
#pragma unroll
            for (int l = 0; l < DOWN_LOADS; l++) {
                if (base + l * WARP + lane >= pieces) continue;
                const X x(room + place[l] * bytes, inner);
#pragma unroll
                for (int o = 0; o < OUTS; o++) {
                    float part = 0.0f;
                    w[o][l].template dot<1>(&x, 1, piece[l], &part);
                    sum[o] = fmaf(factor[l], part, sum[o]);
                }
            }
        }
#pragma unroll
        for (int o = 0; o < OUTS; o++) {
            sum[o] = warp_sum(sum[o]);
            if (lane == 0 && j + o < end) out[u64(t) * d + j + o] = sum[o];
        }
    }
}
