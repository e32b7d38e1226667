// A tile of products of float weights with f32 activations, and of quantised weights where activations must stay f32.
//
// A float is the exact sum of three bf16 (8 + 8 + 8 bits, each cut off and not rounded, so that the largest number does not become an
// infinity). An F16 weight is the sum of two, a BF16 weight is one. Of the products of parts those are taken that reach 2^-24 of the
// whole: three for a BF16 weight, five for F16, six for F32. An infinity has parts ∞, NaN, NaN: not finite in any sum.
//
// A tensor core cuts its sums off instead of rounding them, always towards zero, and over a long row that would add up. So it sums no
// more than a stage (32 elements, smallest parts first); stages are added in f32, in order.
//
// Stages take turns as in tile_int.cuh. Plain weights are loaded a stage ahead and cut into parts when they are stored; blocks are
// decoded when they are stored.
#pragma once
#include "blocks.cuh"
#include "tile.cuh"

// Activations in parts, as `split` writes them: [3][rows][k, rounded up to 32] bf16.
struct Activations {
    const u8* parts;
    // Bytes of one part.
    u64 part_bytes;
};

__device__ __forceinline__ Activations activations(const u8* x, const float4*, u64 rows, int k) {
    return {x, rows * u64((k + 31) / 32 * ROW_BYTES)};
}

constexpr int X_PARTS = 3;
// Parts that a weight of a type has.
template <class B> constexpr int PARTS = 3;
template <> constexpr int PARTS<F16> = 2;
template <> constexpr int PARTS<BF16> = 1;
constexpr int W_PARTS = PARTS<TYPE>;

struct Stage {
    u8 x[X_PARTS][TILE_M * ROW_BYTES];
    u8 w[W_PARTS][TILE_N * ROW_BYTES];
};

// Cuts two floats into parts: a word of each part.
template <int PARTS>
__device__ __forceinline__ void split_pair(float x, float y, u32 (&parts)[PARTS]) {
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        const u32 a = __float_as_uint(x), b = __float_as_uint(y);
        parts[p] = a >> 16 | (b & 0xffff0000u);
        x -= __uint_as_float(a & 0xffff0000u);
        y -= __uint_as_float(b & 0xffff0000u);
    }
}

// Puts eight weights of output `n` in place: four pairs, in parts.
__device__ __forceinline__ void put(Stage& to, int n, int c, const u32 (&pairs)[4][W_PARTS]) {
#pragma unroll
    for (int p = 0; p < W_PARTS; p++)
        *reinterpret_cast<uint4*>(chunk(to.w[p], n, c)) = make_uint4(pairs[0][p], pairs[1][p], pairs[2][p], pairs[3][p]);
}

// The weights that a thread brings: 16 of output threadIdx.x / 2, in every stage.
template <class B, bool BLOCKS> struct WeightsOf {
    static constexpr int WORDS = 4 * B::BYTES;
    const u8* row;
    int k;
    // As they lie in memory.
    u32 next[WORDS];

    __device__ __forceinline__ WeightsOf(const u8* weight, u64, u64 row, int k) : row(weight + row * k * B::BYTES), k(k) {}

    // Loads those of a stage; zeros behind the end of a row.
    __device__ __forceinline__ void fetch(int stage) {
        const int at = stage * 32 + threadIdx.x % 2 * 16;
        const u8* from = row + u64(at) * B::BYTES;
        if (k % (16 / B::BYTES) == 0 && at + 16 <= k) {
#pragma unroll
            for (int i = 0; i < WORDS; i += 4) {
                const uint4 v = load16(from + i * 4);
                next[i] = v.x, next[i + 1] = v.y, next[i + 2] = v.z, next[i + 3] = v.w;
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            if constexpr (B::BYTES == 4) {
                next[i] = at + i < k ? load4(from + i * 4) : 0;
            } else {
                next[i] = at + 2 * i < k ? load2(from + i * 4) : 0;
                if (at + 2 * i + 1 < k) next[i] |= u32(load2(from + i * 4 + 2)) << 16;
            }
        }
    }

    __device__ __forceinline__ void store(Stage& to, int) const {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            u32 pairs[4][W_PARTS];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int i = c * 4 + j;
                if constexpr (W_PARTS == 1) {
                    pairs[j][0] = next[i];
                } else if constexpr (W_PARTS == 2) {
                    split_pair(h2f(u16(next[i])), h2f(u16(next[i] >> 16)), pairs[j]);
                } else {
                    split_pair(__uint_as_float(next[2 * i]), __uint_as_float(next[2 * i + 1]), pairs[j]);
                }
            }
            put(to, threadIdx.x / 2, threadIdx.x % 2 * 2 + c, pairs);
        }
    }
};

// Blocks: one thread of two brings all 32, since half of them is not decoded for less.
template <class B> struct WeightsOf<B, true> {
    const u8* weight;
    u64 blocks, first;
    typename B::Raw next;

    __device__ __forceinline__ WeightsOf(const u8* weight, u64 rows, u64 row, int k)
        : weight(weight), blocks(rows * (k / B::ELEMS)), first(row * (k / B::ELEMS)) {}

    __device__ __forceinline__ void fetch(int stage) {
        constexpr int SUBS = B::ELEMS / 32;
        if (threadIdx.x % 2 == 0) B::load(next, weight, blocks, first + stage / SUBS, stage % SUBS);
    }

    __device__ __forceinline__ void store(Stage& to, int stage) const {
        if (threadIdx.x % 2) return;
        Sub sub;
        B::expand(next, stage % (B::ELEMS / 32), sub);
        float w[32];
        values32<B>(sub, w);
#pragma unroll
        for (int c = 0; c < ROW_CHUNKS; c++) {
            u32 pairs[4][W_PARTS];
#pragma unroll
            for (int j = 0; j < 4; j++) split_pair(w[c * 8 + 2 * j], w[c * 8 + 2 * j + 1], pairs[j]);
            put(to, threadIdx.x / 2, c, pairs);
        }
    }
};

typedef WeightsOf<TYPE, TYPE::INTEGER> Weights;

// The activations that a thread brings.
struct Split {
    const Activations& x;
    Copies<TILE_M * ROW_CHUNKS, ROW_CHUNKS> first;

    template <class Row>
    __device__ __forceinline__ Split(const Activations& x, Row x_row, int stages) : x(x), first(x_row, stages) {}

    // Starts the copies of the next stage.
    __device__ __forceinline__ void start(Stage& to) {
        const auto at = first;
#pragma unroll
        for (int p = 0; p < X_PARTS; p++) {
            first = at;
            first.start(chunk(to.x[p], first.row(), first.piece()), first.STEP * ROW_BYTES, x.parts + p * x.part_bytes);
        }
    }
};

// Adds one stage to the results.
__device__ __forceinline__ void multiply_stage(Stage& stage, Results& results) {
    const int row = warp_row(), column = warp_column();
    Results sums;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) sums[m][n][i] = 0.0f;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 a[X_PARTS][MT][4], b[W_PARTS][NT / 2][4];
#pragma unroll
        for (int p = 0; p < X_PARTS; p++)
#pragma unroll
            for (int m = 0; m < MT; m++) load_a(a[p][m], stage.x[p], row + m * 16, half);
#pragma unroll
        for (int p = 0; p < W_PARTS; p++)
#pragma unroll
            for (int n = 0; n < NT; n += 2) load_b(b[p][n / 2], stage.w[p], column + n * 8, half);
        // Parts i and j: 2^(-8 (i + j)) of the whole.
#pragma unroll
        for (int order = 2; order >= 0; order--)
#pragma unroll
            for (int j = 0; j < W_PARTS; j++) {
                const int i = order - j;
                if (i < 0) continue;
#pragma unroll
                for (int m = 0; m < MT; m++)
#pragma unroll
                    for (int n = 0; n < NT; n++) mma_bf16(sums[m][n], a[i][m], b[j][n / 2][n % 2 * 2], b[j][n / 2][n % 2 * 2 + 1]);
            }
    }
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) results[m][n][i] += sums[m][n][i];
}

// All of a tile: `weights` has fetched stage 0.
template <class Row>
__device__ __forceinline__ void multiply(u8* shared, const Activations& x, Row x_row, Weights& weights, int k, Results& results) {
    Stage* stages = reinterpret_cast<Stage*>(shared);
    const int count = (k + 31) / 32;
    clear(results);
    Split rows(x, x_row, count);
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
