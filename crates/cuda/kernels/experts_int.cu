// The chosen experts of each row, quantised ones with activations of 8 bits: out = Σ weight · down (silu(gate x) ⊙ up x), for one to a
// few rows. Others: experts.cu.
//
// A pair is a choice of a row: pair `t · k + i` is expert `ids[t, i]`. The rows come rounded. Two kernels: gate and up of every
// pair with silu between, then down with the sum over a row's pairs. Products are those of gemv_int.cu, warps share tiles of 16 weight
// rows as there; a row's bits depend on the shapes and on its own choices alone.
//
// Defines: TYPE; ROWS, the rows that one expert is multiplied with at a time (1, 8).
// variants: TYPE = Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_NL IQ4_XS TQ1_0 TQ2_0 MXFP4 NVFP4; ROWS = 1 8
// prefetches: experts_down
// spills: experts_hidden experts_down
#include "gemv_tile.cuh"
#include "paged.cuh"
#include "silu.cuh"
#include "sums.cuh"

typedef Unit<TYPE> U;

// Tiles that a block takes at most. Host: program/moe.rs.
constexpr int MOST_TURNS = 8;

constexpr int FLIGHT = U::SLOT > 0 ? U::FLIGHT : 2;

// More than a block has, for one row: registers are left for blocks of `experts_down`, which then has its weights on their way early.
constexpr int HIDDEN_THREADS = ROWS == 1 ? 768 : 512;

// Whether a block serves all pairs that name its expert, and not only its own.
constexpr bool SHARES = ROWS > 1;

// The pairs that this block serves, in order, and their number; 0 if an earlier block does: the first pair that names an expert serves
// all that do, so that the expert is read once.
__device__ __forceinline__ int members_of(const int* ids, int expert, int pairs, int k, const Rows& rows, int* members) {
    __shared__ u32 words[WARP];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    int count = 0;
    for (int base = 0; base < pairs; base += blockDim.x) {
        const int other = base + threadIdx.x;
        const bool same = other < pairs && is_live(rows, other / k) && ids[other] == expert;
        const u32 word = __ballot_sync(FULL, same);
        if (lane == 0) words[warp] = word;
        __syncthreads();
        int place = count + __popc(word & ((1u << lane) - 1));
        for (int w = 0; w < warps; w++) {
            if (w < warp) place += __popc(words[w]);
            count += __popc(words[w]);
        }
        if (same) members[place] = other;
        __syncthreads();
    }
    return members[0] == int(blockIdx.x) ? count : 0;
}

// `hidden[pair, i] = silu(gate_e x)[i] · (up_e x)[i]`. Grid (pairs, tiles of I / turns), `turns` tiles a block; the first half of its warps
// multiplies gate, the second up. In two launches for matrices of different types, each with one of them: `hidden` are the sums of gate,
// then `silu(hidden) ·` those of up.
// `early`, if a block serves its own pair only: the kernel before writes none of what is read here, so
// that only results wait for it. An expert out of range raises a fault and leaves `hidden` alone:
// `experts_down` looks again.
// Shared memory: the warps' sums, twice; the list of pairs, if it SHARES; the activations.
KERNEL(HIDDEN_THREADS) experts_hidden(const u8* gate, const u8* up, const u8* q, const float* d, const float* s, const int* ids, float* hidden,
                           int experts, int inputs, int inner, int k, int turns, int early, Rows rows, Fault* fault, int op) {
    SHARED(float, room);
    const int warps = int(blockDim.x) / WARP, matrices = gate && up ? 2 : 1, ways = warps / matrices;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, way = warp % ways;
    const u8* const weight = warp < ways && gate ? gate : up;
    const int pair = blockIdx.x, pairs = gridDim.x;
    const int units = (inputs + U::SPAN - 1) / U::SPAN, items = (units + ways - 1) / ways;
    const u64 blocks = u64(inputs / TYPE::ELEMS), all = u64(experts) * u64(inner) * blocks;
    int* list = reinterpret_cast<int*>(room + 2 * warps * ROWS * TILE);
    u8* const slots = reinterpret_cast<u8*>(list + (SHARES ? (pairs + 3) / 4 * 4 : 0));
    u8* const staged = slots + warps * FLIGHT * U::SLOT;

    LateWait wait;
    if (!early) wait.now();
    auto fill = [&](const Staged& x, int first) {
        x.clear();
#pragma unroll 1
        for (int r = 0; r < x.count; r++) {
            const int member = SHARES ? list[first + r] : pair;
            x.fill(r, q8_row(q, d, s, inputs, u64(member / k)), inputs, TYPE::OFFSETS > 0);
        }
    };
    // Asked for together.
    const int expert = load_input(ids + pair);
    if (!SHARES) fill(Staged(staged, units * U::SPAN, 1), 0);
    if (!is_live_token(rows, pair / k)) {
        wait.now();
        return;
    }
    if (u32(expert) >= u32(experts)) {
        wait.now();
        if (blockIdx.y == 0 && threadIdx.x == 0) raise(fault, FAULT_EXPERT, op, u64(pair), expert, experts);
        return;
    }
    const int count = SHARES ? members_of(ids, expert, pairs, k, rows, list) : 1;
    if (!count) return;
    const int begin = int(blockIdx.y) * turns, tiles = min(turns, (inner + TILE - 1) / TILE - begin);
    const int total = tiles * items;

    // What is loaded next: unit `ahead` of tile `next`.
    int next = begin, ahead = way;
    auto enter = [&] {
        const u64 row = u64(expert) * u64(inner) + u64(next * TILE);
        return U::from({weight, all, row * blocks, u32(blocks), max(min(TILE, inner - next * TILE), 1)}, lane);
    };
    typename U::From from = enter();
    Ring<TYPE, FLIGHT> ring;
    ring.slots = slots + warp * FLIGHT * U::SLOT;
    auto load = [&](int f, bool is_there) {
        if (!is_there) return ring.skip();
        ring.load(f, from, ahead, units, inputs);
        ahead += ways;
        if (ahead < items * ways) return;
        ahead = way, next++;
        from = enter();
    };
    begin_flight<TYPE, FLIGHT>(total, load);
    // `experts_down` may ask for its weights meanwhile. It reads nothing before its wait that the kernel before this one writes.
    if (early) wait.go_early();
    for (int start = 0; start < count; start += ROWS) {
        const int n = min(count - start, ROWS);
        const Staged x(staged, units * U::SPAN, n);
        if (SHARES) fill(x, start);
        __syncthreads();
        Sums<TYPE, ROWS> tile_sums(x);
        int tile = begin, turn = 0;
        auto use = [&](int f, int i) {
            const int unit = way + i * ways;
            const auto& raw = ring.take(f);
            if (unit < units) tile_sums.multiply(raw, unit, inputs, unit * U::SPAN);
        };
        in_flight<TYPE, FLIGHT>(total, items, load, use, [&] {
            float* sums = room + turn * warps * ROWS * TILE;
            tile_sums.put(sums);
            wait.now();
#pragma unroll 1
            for (u32 i = threadIdx.x; i < u32(n * TILE); i += blockDim.x) {
                const int row = tile * TILE + int(i % TILE), r = i / TILE;
                if (row >= inner) continue;
                float* const to = hidden + u64(SHARES ? list[start + r] : pair) * u64(inner) + u64(row);
                const float sum = sum_of<ROWS>(sums, 0, ways, r, i % TILE);
                if (matrices == 2) *to = silu(sum) * sum_of<ROWS>(sums, ways, ways, r, i % TILE);
                else *to = gate ? sum : silu(*to) * sum;
            }
            tile++, turn ^= 1;
        });
        if (start + ROWS >= count) break;
        // The same weights once more, for other rows. All have read the activations and the sums.
        __syncthreads();
        next = begin, ahead = way;
        from = enter();
        begin_flight<TYPE, FLIGHT>(total, load);
    }
}

// `out[t, j] = Σ_i weights[t, i] · (down_e hidden[t · k + i])[j]`. Grid (rows, tiles of D / turns). The inputs of all the row's pairs are
// multiplied as one long row, of which each pair's part meets its own expert; the pair's weight is a factor of its rounding's scales.
// With `other`, `both = out + other`, too.
// An expert out of range, of which `experts_hidden` raised the fault, makes the row NaN.
// Shared memory: the warps' sums, twice; the row's experts and weights; the rounded inputs.
KERNEL(256) experts_down(const u8* down, const float* hidden, const int* ids, const float* weights, float* out, const float* other,
                         float* both, int experts, int inner, int outputs, int k, int turns, Rows rows) {
    SHARED(float, room);
    __shared__ float others[MOST_TURNS * TILE];
    const int ways = int(blockDim.x) / WARP;
    const int way = threadIdx.x / WARP, lane = threadIdx.x % WARP, t = blockIdx.x;
    const int each = (inner + U::SPAN - 1) / U::SPAN, units = k * each, items = (units + ways - 1) / ways;
    const u64 blocks = u64(inner / TYPE::ELEMS), all = u64(experts) * u64(outputs) * blocks;
    int* chosen = reinterpret_cast<int*>(room + 2 * ways * TILE);
    float* factors = reinterpret_cast<float*>(chosen + (k + 3) / 4 * 4);
    u8* const slots = reinterpret_cast<u8*>(factors + (k + 3) / 4 * 4);
    u8* const staged = slots + ways * FLIGHT * U::SLOT;

    const bool live = is_live(rows, t);
    if (live) {
#pragma unroll 1
        for (int i = threadIdx.x; i < k; i += int(blockDim.x)) {
            const u32 expert = load4(ids + u64(t) * u64(k) + i);
            const float factor = __uint_as_float(load4(weights + u64(t) * u64(k) + i));
            const bool inside = expert < u32(experts);
            chosen[i] = inside ? expert : 0, factors[i] = inside ? factor : __uint_as_float(0x7fc00000u);
        }
    }
    __syncthreads();
    const int begin = int(blockIdx.y) * turns, tiles = min(turns, (outputs + TILE - 1) / TILE - begin);
    const int total = live ? tiles * items : 0;

    int next = begin, ahead = way;
    Ring<TYPE, FLIGHT> ring;
    ring.slots = slots + way * FLIGHT * U::SLOT;
    auto load = [&](int f, bool is_there) {
        if (!is_there) return ring.skip();
        const bool is_unit = ahead < units;
        const u64 row = u64(chosen[is_unit ? ahead / each : 0]) * u64(outputs) + u64(next * TILE);
        const auto from = U::from({down, all, row * blocks, u32(blocks), max(min(TILE, outputs - next * TILE), 1)}, lane);
        ring.load(f, from, is_unit ? ahead % each : each, each, inner);
        ahead += ways;
        if (ahead >= items * ways) ahead = way, next++;
    };
    begin_flight<TYPE, FLIGHT>(total, load);
    pdl_wait();
    pdl_go();
    if (!live) return;

    const u64 first = u64(t) * u64(outputs) + u64(begin * TILE);
    if (other && threadIdx.x < tiles * TILE && begin * TILE + int(threadIdx.x) < outputs) others[threadIdx.x] = other[first + threadIdx.x];
    const Staged x(staged, units * U::SPAN, 1);
    x.clear();
    hidden += u64(t) * u64(k) * u64(inner);
    // Whole warps: a unit has 128 elements or more.
#pragma unroll 1
    for (int i = 4 * int(threadIdx.x); i < x.span; i += 4 * int(blockDim.x)) {
        const int slot = i / (each * U::SPAN), within = i % (each * U::SPAN);
        float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (within < inner) v = *reinterpret_cast<const float4*>(hidden + slot * inner + within);
        x.put(0, i, v, factors[slot]);
    }
    __syncthreads();
    Sums<TYPE, 1> tile_sums(x);
    int tile = begin, turn = 0;
    auto use = [&](int f, int i) {
        const int unit = way + i * ways;
        const auto& raw = ring.take(f);
        if (unit < units) tile_sums.multiply(raw, unit % each, inner, unit * U::SPAN);
    };
    in_flight<TYPE, FLIGHT>(total, items, load, use, [&] {
        float* sums = room + turn * ways * TILE;
        tile_sums.put(sums);
        const int row = tile * TILE + int(threadIdx.x);
        if (threadIdx.x < TILE && row < outputs) {
            const float sum = sum_of<1>(sums, 0, ways, 0, threadIdx.x);
            out[u64(t) * u64(outputs) + u64(row)] = sum;
            if (other) both[u64(t) * u64(outputs) + u64(row)] = sum + others[(tile - begin) * TILE + int(threadIdx.x)];
        }
        tile++, turn ^= 1;
    });
}
