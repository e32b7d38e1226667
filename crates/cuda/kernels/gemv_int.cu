// Matrix-vector products of quantised weights with activations of 8 bits: Linear, LmHead and HeadProject of a few rows.
//
//   y_i[t, h, j] = w_i[h, j] · x[t, h]      TYPE: type of the weights, ROWS: rows of activations in a pass (1, 2, 4, 8)
//
// Activations are rounded by q8.cu. Grid: (groups of weight rows, passes, heads), see gemv.cuh. Block: up to 512 threads; no dynamic
// shared memory: every block reads all of the rounded activations, which the blocks of a multiprocessor find in its cache.
// Each thread requests the units that it begins with, and waits only then for the kernel before; the units of the next row are
// requested before the sum of this one. A row's bits do not depend on ROWS, grid or block.
//
// variants: TYPE = Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_NL IQ4_XS TQ1_0 TQ2_0 MXFP4 NVFP4; ROWS = 1 2 4 8
// prefetches: gemv_int
// spills: gemv_int
#include "gemv.cuh"
#include "units.cuh"

typedef Unit<TYPE> U;

KERNEL(512)
gemv_int(Rows rows, const u8* q, const float* d, const float* s, int k, int lanes_log, const u8* w0, const u8* w1, const u8* w2,
         const u8* w3, float* y0, float* y1, float* y2, float* y3, int m0, int m1, int m2, int m3) {
    __shared__ float room[GEMV_THREADS / WARP * ROWS];
    const GemvTargets targets = {{w0, w1, w2, w3}, {y0, y1, y2, y3}, {m0, m1, m2, m3}};
    const int units = k / TYPE::ELEMS * U::PER_BLOCK, blocks = k / TYPE::ELEMS;
    const int lanes = 1 << lanes_log, lane = int(threadIdx.x) & (lanes - 1), in_group = int(blockDim.x) >> lanes_log;
    const int first = int(blockIdx.y) * ROWS, count = min(ROWS, rows.capacity - first);

    typename U::Raw raw[U::FLIGHT];
    int v = int(blockIdx.x) * in_group, unit = 0;
    GemvRow row = gemv_row(targets, v + (int(threadIdx.x) >> lanes_log));
    auto fetch = [&]() {
#pragma unroll
        for (int f = 0; f < U::FLIGHT; f++) {
            int i = unit + (f << lanes_log) + lane;
            if (row.is_there && i < units) U::load(raw[f], row.w, row.rows * u64(blocks), row.row * u64(units) + u64(i));
        }
    };
    fetch();
    pdl_wait();
    pdl_go();
    // Row 0 is computed, live or not: see q8.cu.
    if (first > 0 && !is_live(rows, first)) return;

    float acc[ROWS] = {};
    while (v < targets.all()) {
#pragma unroll
        for (int f = 0; f < U::FLIGHT; f++) {
            int i = unit + (f << lanes_log) + lane;
            if (!row.is_there || i >= units) continue;
            typename U::Wide w;
            U::expand(w, raw[f], i);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if (r < count) U::add(acc[r], w, i, q8_row(q, d, s, k, u64(first + r) * gridDim.z + blockIdx.z));
            }
        }
        GemvRow done = row;
        unit += U::FLIGHT << lanes_log;
        bool is_end = unit >= units;
        if (is_end) {
            v += int(gridDim.x) * in_group, unit = 0;
            row = gemv_row(targets, v + (int(threadIdx.x) >> lanes_log));
        }
        fetch();
        if (!is_end) continue;
        gemv_sum(acc, lanes, room);
        gemv_store(acc, done, lane, first, count);
#pragma unroll
        for (int r = 0; r < ROWS; r++) acc[r] = 0.0f;
    }
}
