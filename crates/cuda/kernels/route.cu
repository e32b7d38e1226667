// The router, in f32 whatever the step's arithmetic: logits, then the choice of experts (plan/src/reference/moe.rs).
//
// Two kernels: a kernel boundary costs less than a last block that waits for all others. Decode reads each weight once for all
// rows, with its loads in flight before the wait; prefill is a tiled product. Both sum in an order that depends on nothing but D,
// and every rank computes the same bits, so all ranks choose the same experts.
//
// Defines: TYPE, the weight's type.
// variants: TYPE = F32 F16 BF16 Q8_0 Q8_1 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K
// variants: TYPE = IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_NL IQ4_XS TQ1_0 TQ2_0 MXFP4 NVFP4
// prefetches: route_logits
#include "common.cuh"
#include "paged.cuh"
#include "pieces.cuh"

// Weights `i..i + 4` of row `row`, 0 beyond its end. `i` is a multiple of 4.
template <class B> __device__ __forceinline__ float4 router4(const u8* weight, int rows, int row, int i, int d) {
    if constexpr (B::ELEMS == 1) {
        return weights4<B>(weight + u64(row) * d * B::BYTES, i, d);
    } else {
        float4 w = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (i >= d) return w;
        // A router is rarely quantised: each lane decodes the 32 weights of which it needs four.
        float all[32];
        const u64 blocks = d / B::ELEMS;
        decode32<B>(weight, rows * blocks, row * blocks + i / B::ELEMS, i % B::ELEMS / 32, all);
#pragma unroll
        for (int q = 0; q < 8; q++) {
            if (q == i % 32 / 4) w = make_float4(all[4 * q], all[4 * q + 1], all[4 * q + 2], all[4 * q + 3]);
        }
        return w;
    }
}

__device__ __forceinline__ int live_tokens(const Rows& rows) {
    return rows.live ? min(*rows.live, rows.capacity) : rows.capacity;
}

// Four activations as `inputs4` has them, but not through L1: they may be read before the wait.
__device__ __forceinline__ float4 settled4(const float* row, int i, int n) {
    float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (i >= n) return x;
    if (n % 4 == 0) return load_floats(row + i);
    x.x = __uint_as_float(load4(row + i));
    if (i + 1 < n) x.y = __uint_as_float(load4(row + i + 1));
    if (i + 2 < n) x.z = __uint_as_float(load4(row + i + 2));
    if (i + 3 < n) x.w = __uint_as_float(load4(row + i + 3));
    return x;
}

// ---- logits ----------------------------------------------------------------------------------------------------------------------

// Inputs that one warp multiplies: six loads of 16 bytes a lane for each expert. Host: program/moe.rs.
constexpr int SLICE = 768;
constexpr int STEPS = SLICE / (4 * WARP);
constexpr int EXPERTS_A_WARP = 2;
constexpr int ROWS_AT_ONCE = 2;
constexpr int WARPS = 8;

// Decode: `parts[row, slice, expert]`. Grid (experts / 16, D / SLICE): 16 × 8 blocks for 256 experts of 6144 inputs, each weight in
// a register from before the wait on. `early`: the kernel before does not write `x`, so that only results wait for it. A lane sums its 24 products in order, the warp by a butterfly.
KERNEL(256) route_logits(const u8* weight, const float* x, float* parts, int experts, int d, int early, Rows rows) {
    const int lane = threadIdx.x % WARP, first = (blockIdx.x * WARPS + threadIdx.x / WARP) * EXPERTS_A_WARP;
    const int start = blockIdx.y * SLICE + lane * 4;
    float4 w[EXPERTS_A_WARP][STEPS];
#pragma unroll
    for (int e = 0; e < EXPERTS_A_WARP; e++) {
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            // An expert too many repeats the last.
            w[e][s] = router4<TYPE>(weight, experts, min(first + e, experts - 1), start + s * 4 * WARP, d);
        }
    }
    LateWait wait;
    if (!early) wait.now();
    // `route_select`, which reads nothing but the bias before its wait, may come.
    else wait.go_early();
    // Row 0 is computed, live or not, and does not wait to hear how many are.
    const int live = rows.live ? min(load_input(rows.live), rows.capacity) : rows.capacity;
    for (int first_row = 0; first_row == 0 || first_row < live; first_row += ROWS_AT_ONCE) {
        float4 v[ROWS_AT_ONCE][STEPS];
#pragma unroll
        for (int r = 0; r < ROWS_AT_ONCE; r++) {
            if (first_row + r >= rows.capacity) break;
#pragma unroll
            for (int s = 0; s < STEPS; s++) v[r][s] = settled4(x + u64(first_row + r) * d, start + s * 4 * WARP, d);
        }
#pragma unroll
        for (int r = 0; r < ROWS_AT_ONCE; r++) {
            if (first_row + r >= rows.capacity) break;
#pragma unroll
            for (int e = 0; e < EXPERTS_A_WARP; e++) {
                float sum = 0.0f;
#pragma unroll
                for (int s = 0; s < STEPS; s++) sum = dot4(w[e][s], v[r][s], sum);
                sum = warp_sum(sum);
                wait.now();
                if (lane == 0 && first + e < experts) parts[(u64(first_row + r) * gridDim.y + blockIdx.y) * experts + first + e] = sum;
            }
        }
    }
}

// Rows and experts of a tile, and inputs of one step over it.
constexpr int TILE_ROWS = 64;
constexpr int TILE_EXPERTS = 32;
constexpr int TILE_INPUTS = 32;

// Prefill: `parts[row, expert]`. Grid (experts / 32, rows / 64), a thread 4 × 4 of a tile, whose inputs pass through shared memory
// 32 at a time. Each sum is one chain of fused multiply-adds over D.
KERNEL(128) route_logits_tiled(const u8* weight, const float* x, float* parts, int experts, int d, Rows rows) {
    // Padded to whole float4, and so that a column of a tile is spread over banks.
    __shared__ __align__(16) float xs[TILE_INPUTS][TILE_ROWS + 4];
    __shared__ __align__(16) float ws[TILE_INPUTS][TILE_EXPERTS + 4];
    pdl_wait();
    pdl_go();
    const int live = live_tokens(rows), first_row = blockIdx.y * TILE_ROWS, first_expert = blockIdx.x * TILE_EXPERTS;
    if (first_row >= live) return;
    const int t = threadIdx.x;
    float sum[4][4] = {};
    for (int start = 0; start < d; start += TILE_INPUTS) {
        for (int i = t; i < TILE_ROWS * TILE_INPUTS / 4; i += 128) {
            const int r = i / 8, c = i % 8 * 4;
            float4 v = first_row + r < live ? inputs4(x + u64(first_row + r) * d, start + c, d) : make_float4(0, 0, 0, 0);
            xs[c][r] = v.x, xs[c + 1][r] = v.y, xs[c + 2][r] = v.z, xs[c + 3][r] = v.w;
        }
        if constexpr (TYPE::ELEMS > 1) {
            if (t < TILE_EXPERTS) {
                float all[32];
                const u64 blocks = d / TYPE::ELEMS, block = min(first_expert + t, experts - 1) * blocks + start / TYPE::ELEMS;
                decode32<TYPE>(weight, experts * blocks, block, start % TYPE::ELEMS / 32, all);
#pragma unroll
                for (int c = 0; c < 32; c++) ws[c][t] = all[c];
            }
        } else {
            for (int i = t; i < TILE_EXPERTS * TILE_INPUTS / 4; i += 128) {
                const int e = i / 8, c = i % 8 * 4;
                float4 v = router4<TYPE>(weight, experts, min(first_expert + e, experts - 1), start + c, d);
                ws[c][e] = v.x, ws[c + 1][e] = v.y, ws[c + 2][e] = v.z, ws[c + 3][e] = v.w;
            }
        }
        __syncthreads();
#pragma unroll
        for (int c = 0; c < TILE_INPUTS; c++) {
            float4 a = *reinterpret_cast<float4*>(&xs[c][t / 8 * 4]), b = *reinterpret_cast<float4*>(&ws[c][t % 8 * 4]);
            const float av[4] = {a.x, a.y, a.z, a.w}, bv[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) sum[i][j] = fmaf(av[i], bv[j], sum[i][j]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int r = first_row + t / 8 * 4 + i, e = first_expert + t % 8 * 4 + j;
            if (r < live && e < experts) parts[u64(r) * experts + e] = sum[i][j];
        }
    }
}
