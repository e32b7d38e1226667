// A tile of products of quantised weights with 8-bit activations.
//
//     w_i = scale[i / 16] · q_i + offset[i / 16]          x_i = d · p_i          (blocks of 32)
//     w · x = Σ over blocks, in order:  acc += d · (scale · Σ q_i p_i);  acc += offset · (d · Σ p_i)
//
// The inner sums are exact, in 32 bits; so an element is a chain of f32 operations over the blocks of its row, whatever the tile.
//
// A tensor core adds onto the integer 0x4b400000, whose bits as a float are M = 1.5 · 2^23: the sum (below 2^22) then comes out as the
// float M + sum, without a conversion, which a multiprocessor does at a quarter of the rate of an addition. M · scale is exact for
// scales of up to 22 bits, so scale · sum takes one fma(M + sum, scale, -M · scale), and its rounding is that of the product. These
// operations on every sum are what the tile's time goes to, more than the products: of a warp's instructions for 64 × 32 results of a
// stage, 32 are products and 256 (without offsets) are these.
//
// Two stages of 64 elements take turns: while one is multiplied, activations of the next are copied in the background, and the words of
// its weights are on their way to registers, 32 weights to each thread, which unpacks them when it stores them. One barrier a stage.
#pragma once
#include "blocks.cuh"
#include "tile.cuh"

// Rounded activations, as `quantise` writes them.
struct Activations {
    // [rows][k, rounded up to 64, zeros behind the end]
    const u8* q;
    // [rows][blocks of 32, rounded up to even]: d, d · Σ p, and the same of either half.
    const float4* scales;
};

__device__ __forceinline__ Activations activations(const u8* x, const float4* scales, u64, int) { return {x, scales}; }

struct Stage {
    u8 x[TILE_M * ROW_BYTES];
    u8 w[TILE_N * ROW_BYTES];
    float4 x_scales[2][TILE_M];
    float w_scales[2][TYPE::SCALES][TILE_N];
    float w_offsets[2][TYPE::OFFSETS ? TYPE::OFFSETS : 1][TYPE::OFFSETS ? TILE_N : 1];
};

// The weights that a thread brings: 32 of output threadIdx.x / 2, in every stage.
struct Weights {
    const u8* weight;
    // Of the whole weight, of the row before the thread's, and of a row.
    u64 blocks, first;
    int count;
    TYPE::Raw next;

    // `rows` there are in the weight.
    __device__ __forceinline__ Weights(const u8* weight, u64 rows, u64 row, int k)
        : weight(weight), blocks(rows * (k / TYPE::ELEMS)), first(row * (k / TYPE::ELEMS)), count(k / 32) {}

    // Loads those of a stage.
    __device__ __forceinline__ void fetch(int stage) {
        constexpr int SUBS = TYPE::ELEMS / 32;
        const int sub = stage * 2 + threadIdx.x % 2;
        if (sub < count) TYPE::load(next, weight, blocks, first + sub / SUBS, sub % SUBS);
    }

    // Unpacks those of a stage, and puts them in place. Behind the end of a row their scales are zero.
    __device__ __forceinline__ void store(Stage& to, int stage) const {
        constexpr int SUBS = TYPE::ELEMS / 32;
        const int n = threadIdx.x / 2, half = threadIdx.x % 2, sub = stage * 2 + half;
        Sub w = {};
        if (sub < count) TYPE::expand(next, sub % SUBS, w);
        *reinterpret_cast<uint4*>(chunk(to.w, n, 2 * half)) = make_uint4(w.q[0], w.q[1], w.q[2], w.q[3]);
        *reinterpret_cast<uint4*>(chunk(to.w, n, 2 * half + 1)) = make_uint4(w.q[4], w.q[5], w.q[6], w.q[7]);
#pragma unroll
        for (int s = 0; s < TYPE::SCALES; s++) to.w_scales[half][s][n] = w.scale[s];
#pragma unroll
        for (int s = 0; s < TYPE::OFFSETS; s++) to.w_offsets[half][s][n] = w.offset[s];
    }
};

// The activations that a thread brings.
struct Rounded {
    const Activations& x;
    Copies<TILE_M * ROW_CHUNKS, ROW_CHUNKS> q;
    Copies<TILE_M * 2, 2> scales;

    template <class Row>
    __device__ __forceinline__ Rounded(const Activations& x, Row x_row, int stages) : x(x), q(x_row, stages), scales(x_row, stages) {}

    // Starts the copies of the next stage.
    __device__ __forceinline__ void start(Stage& to) {
        q.start(chunk(to.x, q.row(), q.piece()), q.STEP * ROW_BYTES, x.q);
        u8* first = reinterpret_cast<u8*>(to.x_scales) + (scales.piece() * TILE_M + scales.row()) * 16;
        scales.start(first, scales.STEP * 16, x.scales);
    }
};

// Whether M · scale is exact: scales of f32 have more bits, those of E8M0 (2^126 and less) more range than there is room for.
template <class B> constexpr bool SHORT_SCALES = true;
template <> constexpr bool SHORT_SCALES<Q8_K> = false;
template <> constexpr bool SHORT_SCALES<MXFP4> = false;

constexpr int MAGIC = 0x4b400000;

// scale · sum, of M + sum.
__device__ __forceinline__ float scaled(int sum, float scale) {
    const float magic = __int_as_float(MAGIC), value = __int_as_float(sum);
    if constexpr (SHORT_SCALES<TYPE>) return fmaf(value, scale, __fmul_rn(-magic, scale));
    return __fmul_rn(value - magic, scale);
}

__device__ __forceinline__ float of(float2 pair, int i) { return i % 2 ? pair.y : pair.x; }

// What a row's products with a stage are multiplied with: d, and d · Σ p for each offset.
struct RowScales {
    float d, sums[TYPE::OFFSETS ? TYPE::OFFSETS : 1];

    __device__ __forceinline__ explicit RowScales(const float4& v) : d(v.x) {
        if constexpr (TYPE::OFFSETS == 1) sums[0] = v.y;
        if constexpr (TYPE::OFFSETS == 2) sums[0] = v.z, sums[1] = v.w;
    }
};

// Adds one stage to the results.
__device__ __forceinline__ void multiply_stage(Stage& stage, Results& results) {
    constexpr int SCALES = TYPE::SCALES, OFFSETS = TYPE::OFFSETS;
    const int lane = threadIdx.x % WARP, row = warp_row(), column = warp_column();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 b[NT / 2][4];
        float2 scale[NT][SCALES], offset[NT][OFFSETS ? OFFSETS : 1];
#pragma unroll
        for (int n = 0; n < NT; n += 2) load_b(b[n / 2], stage.w, column + n * 8, half);
#pragma unroll
        for (int n = 0; n < NT; n++) {
            const int at = column + n * 8 + lane % 4 * 2;
#pragma unroll
            for (int s = 0; s < SCALES; s++) scale[n][s] = *reinterpret_cast<const float2*>(&stage.w_scales[half][s][at]);
#pragma unroll
            for (int s = 0; s < OFFSETS; s++) offset[n][s] = *reinterpret_cast<const float2*>(&stage.w_offsets[half][s][at]);
        }
#pragma unroll
        for (int m = 0; m < MT; m++) {
            u32 a[4];
            load_a(a, stage.x, row + m * 16, half);
            const int at = row + m * 16 + lane / 4;
            const RowScales x[2] = {RowScales(stage.x_scales[half][at]), RowScales(stage.x_scales[half][at + 8])};
#pragma unroll
            for (int n = 0; n < NT; n++) {
                const u32* w = &b[n / 2][n % 2 * 2];
                int c[SCALES][4];
#pragma unroll
                for (int i = 0; i < SCALES * 4; i++) c[i / 4][i % 4] = MAGIC;
                if constexpr (SCALES == 1) {
                    mma_s8(c[0], a, w[0], w[1]);
                } else {
                    mma_s8_half(c[0], a[0], a[1], w[0]);
                    mma_s8_half(c[1], a[2], a[3], w[1]);
                }
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float sum = scaled(c[0][i], of(scale[n][0], i));
                    if constexpr (SCALES == 2) sum = __fadd_rn(sum, scaled(c[1][i], of(scale[n][1], i)));
                    float& result = results[m][n][i];
                    result = fmaf(x[i / 2].d, sum, result);
#pragma unroll
                    for (int s = 0; s < OFFSETS; s++) result = fmaf(of(offset[n][s], i), x[i / 2].sums[s], result);
                }
            }
        }
    }
}

// All of a tile: `weights` has fetched stage 0.
template <class Row>
__device__ __forceinline__ void multiply(u8* shared, const Activations& x, Row x_row, Weights& weights, int k, Results& results) {
    Stage* stages = reinterpret_cast<Stage*>(shared);
    const int count = (k + 63) / 64;
    clear(results);
    Rounded rows(x, x_row, count);
    rows.start(stages[0]);
    weights.store(stages[0], 0);
    for (int s = 0; s < count; s++) {
        Stage& next = stages[(s + 1) % 2];
        copies_wait();
        // Stage s is there, and nobody reads what stage s + 1 overwrites.
        __syncthreads();
        if (s + 1 < count) {
            rows.start(next);
            weights.fetch(s + 1);
        }
        multiply_stage(stages[s % 2], results);
        if (s + 1 < count) weights.store(next, s + 1);
    }
}
