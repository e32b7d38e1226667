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
// Defines: GATE, UP, DOWN, the types of the weights; FAST, 1 for 8-bit activations; ROWS, pairs of one expert multiplied at a time.
#include "common.cuh"
#include "pieces.cuh"

typedef Pieces<GATE, FAST> Gate;
typedef Pieces<UP, FAST> Up;
typedef Pieces<DOWN, FAST> Down;

// Whether activations are needed as integers, as floats, or as both where gate and up differ.
constexpr bool AS_INTS = Same<Gate::T::X, Ints>::VALUE || Same<Up::T::X, Ints>::VALUE;
constexpr bool AS_FLOATS = Same<Gate::T::X, Floats>::VALUE || Same<Up::T::X, Floats>::VALUE;

template <class X> __device__ __forceinline__ const X* rows_of(const Ints* ints, const Floats* floats) {
    if constexpr (Same<X, Ints>::VALUE) return ints;
    else return floats;
}

// Pieces that a lane loads at once of each of gate and up: with Q4_K and one pair, all of a row of 6144.
constexpr int LOADS = ROWS > 1 ? 2 : 3;
constexpr int HIDDEN_THREADS = 512;

// `hidden[pair, i] = silu(gate_e x)[i] · (up_e x)[i]`. Grid (pairs, I / tile), a warp for a row of both matrices at a time.
// With ROWS > 1 the first pair that names an expert serves all that do, so that the expert is read once; the others' blocks end.
// An expert out of range raises a fault and leaves `hidden` alone: `experts_down` looks again.
// Shared: ROWS rows of activations, in each form that is needed; then a list of the pairs, if ROWS > 1.
KERNEL(512) experts_hidden(const u8* gate, const u8* up, const float* x, const int* ids, float* hidden, int experts, int d, int inner,
                           int k, int tile, Rows rows, Fault* fault, int op) {
    constexpr int WARPS = HIDDEN_THREADS / WARP;
    SHARED(u8, room);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, pair = blockIdx.x;
    pdl_wait();
    pdl_go();
    if (!is_live(rows, pair / k)) return;
    const int expert = ids[pair];
    if (u32(expert) >= u32(experts)) {
        if (blockIdx.y == 0 && threadIdx.x == 0) raise(fault, FAULT_EXPERT, op, expert, experts);
        return;
    }

    const int bytes = (AS_INTS ? Ints::bytes(d) : 0) + (AS_FLOATS ? Floats::bytes(d) : 0);
    const int* members = &pair;
    int count = 1;
    if constexpr (ROWS > 1) {
        // In the order of the pairs, by counting those before in warps and lanes.
        __shared__ u32 words[WARPS];
        int* list = reinterpret_cast<int*>(room + ROWS * bytes);
        count = 0;
        for (int base = 0; base < int(gridDim.x); base += HIDDEN_THREADS) {
            const int other = base + threadIdx.x;
            const bool same = other < int(gridDim.x) && is_live(rows, other / k) && ids[other] == expert;
            const u32 word = __ballot_sync(FULL, same);
            if (lane == 0) words[warp] = word;
            __syncthreads();
            int place = count + __popc(word & ((1u << lane) - 1));
            for (int w = 0; w < WARPS; w++) {
                if (w < warp) place += __popc(words[w]);
                count += __popc(words[w]);
            }
            if (same) list[place] = other;
            __syncthreads();
        }
        if (list[0] != pair) return;
        members = list;
    }

    const int first = blockIdx.y * tile + warp, end = min((blockIdx.y + 1) * tile, inner);
    const int gates = Gate::count(d), ups = Up::count(d);
    typename Gate::T g[LOADS];
    typename Up::T u[LOADS];
    auto load = [&](int i, int base) {
        const RowAt gate_row = Gate::at(gate, u64(experts) * inner, u64(expert) * inner + i, d);
        const RowAt up_row = Up::at(up, u64(experts) * inner, u64(expert) * inner + i, d);
#pragma unroll
        for (int l = 0; l < LOADS; l++) {
            const int piece = base + l * WARP + lane;
            if (piece < gates) g[l].load(gate_row, piece, d);
            if (piece < ups) u[l].load(up_row, piece, d);
        }
    };

    for (int m = 0; m < count; m += ROWS) {
        const int n = min(count - m, ROWS);
        // The first weights are on their way while the activations are rounded.
        bool loaded = first < end;
        if (loaded) load(first, 0);
        Ints ints[ROWS];
        Floats floats[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            u8* at = room + r * bytes;
            ints[r] = Ints(at, d);
            floats[r] = Floats(at + (AS_INTS ? Ints::bytes(d) : 0), d);
            if (r >= n) continue;
            const float* row = x + u64(members[m + r] / k) * d;
            if (AS_INTS) Ints::fill(at, bytes, row, d, 1);
            if (AS_FLOATS) Floats::fill(at + (AS_INTS ? Ints::bytes(d) : 0), bytes, row, d, 1);
        }
        __syncthreads();
        for (int i = first; i < end; i += WARPS) {
            float gate_sum[ROWS] = {}, up_sum[ROWS] = {};
            for (int base = 0; base < max(gates, ups); base += LOADS * WARP) {
                if (!loaded) load(i, base);
                loaded = false;
#pragma unroll
                for (int l = 0; l < LOADS; l++) {
                    const int piece = base + l * WARP + lane;
                    if (piece < gates) g[l].template dot<ROWS>(rows_of<typename Gate::T::X>(ints, floats), n, piece, gate_sum);
                    if (piece < ups) u[l].template dot<ROWS>(rows_of<typename Up::T::X>(ints, floats), n, piece, up_sum);
                }
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if (r >= n) break;
                const float z = warp_sum(gate_sum[r]), factor = warp_sum(up_sum[r]);
                if (lane == 0) hidden[u64(members[m + r]) * inner + i] = z * (1.0f / (1.0f + expf(-z))) * factor;
            }
        }
        // The room is filled again.
        __syncthreads();
    }
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
    typedef Down::T::X X;
    SHARED(u8, room);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, t = blockIdx.x, bytes = X::bytes(inner);
    ids += u64(t) * k, weights += u64(t) * k;
    const int first = blockIdx.y * tile + warp * OUTS, end = min((blockIdx.y + 1) * tile, d);
    const int each = Down::count(inner), pieces = k * each;

    typename Down::T w[OUTS][DOWN_LOADS];
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
                const RowAt row = Down::at(down, u64(experts) * d, u64(expert) * d + min(j + o, d - 1), inner);
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
