// Products for many rows on tensor cores: out[t, h, n] = Σ_k x[t, h, k] · w[h, n, k], for Linear, LmHead (one head) and HeadProject.
//
//     grid   (outputs / TILE_N, rows / TILE_M, heads), rounded up; 2 · TILE_N threads; two stages of dynamic shared memory
//     -DTYPE of the weights; -DFLOATS=1 for f32 activations (tile_float.cuh), 0 for 8-bit integers (tile_int.cuh); -DTILE (tile.cuh)
//
// Blocks that run at the same time share a row tile's activations and neighbouring weights through the second-level cache. A tile
// beyond the live rows exits; rows of a tile that are not live are computed with the rest, from zeros, and not stored.
// variants: TYPE = Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ2_S IQ4_XS IQ1_M TQ1_0 TQ2_0 MXFP4 NVFP4; FLOATS = 0; TILE = 128 64 16
// variants: TYPE = F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ2_S IQ4_XS IQ1_M TQ1_0 TQ2_0 MXFP4 NVFP4; FLOATS = 1; TILE = 64 16
// spills: gemm
#include "blocks.cuh"
#include "tile.cuh"
#if FLOATS
#include "tile_float.cuh"
#else
#include "tile_int.cuh"
#endif

// `x` and `scales` as `quantise` wrote them, or `x` as `split` did: [heads][padded rows][…]. `out`: [rows][heads][n].
KERNEL(THREADS, RESIDENT)
gemm(const u8* x, const float4* scales, const u8* w, float* out, Rows rows, int k, int n, int heads, int padded) {
    SHARED(u8, shared);
    const int head = blockIdx.z, first_row = blockIdx.y * TILE_M, first = blockIdx.x * TILE_N;
    // The last row of a head's weights stands in for those behind it; what comes of them is not stored.
    Weights weights(w, u64(heads) * n, u64(head) * n + min(first + int(threadIdx.x) / 2, n - 1), k);
    weights.fetch(0);
    pdl_wait();
    pdl_go();
    const int live = rows.live ? min(*rows.live, rows.capacity) : rows.capacity;
    if (first_row >= live) return;
    Results results;
    const auto x_row = [&](int row) { return head * padded + first_row + row; };
    multiply(shared, activations(x, scales, u64(heads) * padded, k), x_row, weights, k, results);
    store_results(results, first, n, [&](int row) {
        const int t = first_row + row;
        const bool given = t < live && (!rows.output_rows || rows.output_rows[t] >= 0);
        return given ? out + (u64(t) * heads + head) * n : nullptr;
    });
}
