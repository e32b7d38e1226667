// The experts' products for many rows, on tensor cores: pairs of a row and an expert, gathered by expert (experts_sort.cu).
//
//     grid   (outputs of a block, pieces); 2 · TILE_N threads; two stages of dynamic shared memory
//     -D TYPE, FLOATS, TILE as in gemm.cu
//
// A piece is up to TILE_M pairs of one expert; the grid holds as many as there can be, and blocks without one end. A pair's results
// are the same bits in any company: rows of a tile do not mix.
// variants: TYPE = Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ2_S IQ4_XS IQ1_M TQ1_0 TQ2_0 MXFP4 NVFP4; FLOATS = 0; TILE = 128 64 16
// variants: TYPE = F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ2_S IQ4_XS IQ1_M TQ1_0 TQ2_0 MXFP4 NVFP4; FLOATS = 1; TILE = 64 16
// spills: experts_down experts_up
#include "blocks.cuh"
#include "tile.cuh"
#if FLOATS
#include "tile_float.cuh"
#else
#include "tile_int.cuh"
#endif

struct Piece {
    int expert, first, count, reserved;
};

__device__ __forceinline__ float swiglu(float gate, float up) { return gate * (1.0f / (1.0f + expf(-gate))) * up; }

// hidden[place] = silu(gate x) · up x, for TILE_N / 2 outputs a block: half of a warp's columns are the gate's, the other half the same
// of `up`, so that a thread has both. `x`, `scales`: all `rows` rows, prepared; `hidden`: [pairs][inner].
KERNEL(THREADS, RESIDENT)
experts_up(const u8* x, const float4* scales, const u8* gate, const u8* up, const int* order, const Piece* pieces, float* hidden,
           int experts, int d, int inner, int k, int rows) {
    SHARED(u8, shared);
    __shared__ int x_rows[TILE_M];
    constexpr int WIDTH = NT * 8, COLUMNS = WIDTH / 2;
    pdl_wait();
    pdl_go();
    const Piece piece = pieces[blockIdx.y];
    if (piece.count == 0) return;
    // The first pair stands in for those that a tile lacks.
    for (int i = threadIdx.x; i < TILE_M; i += THREADS) x_rows[i] = order[piece.first + (i < piece.count ? i : 0)] / k;
    const int first = blockIdx.x * (TILE_N / 2), mine = threadIdx.x / 2;
    const int output = first + mine / WIDTH * COLUMNS + mine % COLUMNS;
    Weights weights(mine % WIDTH < COLUMNS ? gate : up, u64(experts) * inner, u64(piece.expert) * inner + min(output, inner - 1), d);
    weights.fetch(0);
    __syncthreads();
    Results results;
    multiply(shared, activations(x, scales, rows, d), [&](int row) { return x_rows[row]; }, weights, d, results);
    // A thread's products: those of the gate in the lower half of its columns, of the same outputs of `up` in the upper.
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            const int row = warp_row() + m * 16 + i * 4 + lane / 4;
            if (row >= piece.count) continue;
            float* to = hidden + u64(piece.first + row) * inner;
#pragma unroll
            for (int n = 0; n < NT / 2; n++) {
                const float* g = &results[m][n][i];
                const float* u = &results[m][n + NT / 2][i];
                store_pair(to, first + warp_column() / 2 + n * 8 + lane % 4 * 2, inner, swiglu(g[0], u[0]), swiglu(g[1], u[1]));
            }
        }
}

// down[place] = `columns` columns from `first_column` of the down product. `x`, `scales`: hidden rows, prepared; there are `rows`, and
// at least TILE_M behind the last pair's.
KERNEL(THREADS, RESIDENT)
experts_down(const u8* x, const float4* scales, const u8* weight, const Piece* pieces, float* down, int experts, int inner, int d,
             int first_column, int columns, int rows) {
    SHARED(u8, shared);
    pdl_wait();
    pdl_go();
    const Piece piece = pieces[blockIdx.y];
    if (piece.count == 0) return;
    const int first = blockIdx.x * TILE_N, output = min(first + int(threadIdx.x) / 2, columns - 1);
    Weights weights(weight, u64(experts) * d, u64(piece.expert) * d + first_column + output, inner);
    weights.fetch(0);
    Results results;
    multiply(shared, activations(x, scales, rows, inner), [&](int row) { return piece.first + row; }, weights, inner, results);
    store_results(results, first, columns, [&](int row) { return row < piece.count ? down + u64(piece.first + row) * columns : nullptr; });
}
