// Matrix-vector products of quantised weights with activations of 8 bits: Linear, LmHead and HeadProject of a few rows.
//
//   y_i[t, h, j] = w_i[h, j] · x[t, h]      TYPE: type of the weights, ROWS: rows of activations in a pass (1, 2, 4, 8)
//
// Grid: (groups of weight rows, passes, heads), see gemv.cuh. Block: up to 512 threads. Shared memory: q8_bytes for each row of a pass.
// Each thread requests the units that it begins with, and waits only then for the kernel before: while they are on their way the
// block rounds the activations into shared memory (q8.cuh), once for all weight rows that it is to compute. The units of the
// next row are requested before the sum of this one. A row's bits do not depend on ROWS, grid or block.
#include "gemv.cuh"
#include "units.cuh"

typedef Unit<TYPE> U;

KERNEL(512)
gemv_int(Rows rows, const float* x, u32 x_row, u32 x_head, int k, int lanes, const u8* w0, const u8* w1, const u8* w2, const u8* w3,
         float* y0, float* y1, float* y2, float* y3, int m0, int m1, int m2, int m3) {
    SHARED(u8, place);
    __shared__ float room[GEMV_THREADS / WARP * ROWS];
    constexpr bool SUMS = TYPE::OFFSETS > 0;
    const GemvTargets targets = {{w0, w1, w2, w3}, {y0, y1, y2, y3}, {m0, m1, m2, m3}};
    const int units = k / TYPE::ELEMS * U::PER_BLOCK, step = U::FLIGHT * lanes;
    const int lane = int(threadIdx.x) % lanes, in_group = int(blockDim.x) / lanes;
    const int groups = (m0 + m1 + m2 + m3 + in_group - 1) / in_group;
    const int first = int(blockIdx.y) * ROWS, count = min(ROWS, rows.capacity - first);

    typename U::Raw raw[U::FLIGHT];
    GemvPlace at = {int(blockIdx.x), 0};
    GemvRow row = gemv_row(targets, at.group * in_group + int(threadIdx.x) / lanes);
    auto fetch = [&]() {
#pragma unroll
        for (int f = 0; f < U::FLIGHT; f++) {
            int unit = at.unit + f * lanes + lane;
            if (row.is_there && unit < units) {
                U::load(raw[f], row.w, row.rows * u64(k / TYPE::ELEMS), row.row * u64(units) + u64(unit));
            }
        }
    };
    fetch();
    pdl_wait();
    pdl_go();
    bool live = is_live(rows, first);
    q8_rows<SUMS>(x + u64(first) * x_row + u64(blockIdx.z) * x_head, x_row, count, k, place);
    __syncthreads();
    if (!live) return;

    float acc[ROWS] = {};
    while (at.group < groups) {
#pragma unroll
        for (int f = 0; f < U::FLIGHT; f++) {
            int unit = at.unit + f * lanes + lane;
            if (!row.is_there || unit >= units) continue;
            typename U::Wide w;
            U::expand(w, raw[f], unit);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if (r < count) U::add(acc[r], w, unit, q8_row(place, count, k, r, SUMS));
            }
        }
        GemvRow done = row;
        at.unit += step;
        bool is_end = at.unit >= units;
        if (is_end) {
            at.group += int(gridDim.x), at.unit = 0;
            row = gemv_row(targets, at.group * in_group + int(threadIdx.x) / lanes);
        }
        fetch();
        if (!is_end) continue;
        gemv_sum(acc, lanes, room);
        gemv_store(acc, done, lane, first, count);
#pragma unroll
        for (int r = 0; r < ROWS; r++) acc[r] = 0.0f;
    }
}
