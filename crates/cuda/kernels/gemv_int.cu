// Matrix-vector products of quantised weights with activations of 8 bits: Linear, LmHead and HeadProject of a few rows.
//
//   y_i[t, h, j] = w_i[h, j] · x[t, h]      TYPE: type of the weights, ROWS: most rows of activations in a pass (1, 4, 8, 16)
//
// Activations are rounded by q8.cu, or here if `x` is given: short rows are not worth a kernel of their own. With `up` they are silu(x) · up,
// which then go to `out` too. A warp multiplies 16 weight rows with all rows of activations on tensor cores (sums.cuh); `ways` warps
// share out the units of a tile of 16 rows, unit by unit, and their sums are added in the order of the warps. A block of
// blockDim.x / 32 / ways tiles takes every gridDim.x-th such group of tiles of up to four weights, one weight after the other, `turns` groups at most;
// blockIdx.y is a pass over ROWS rows of activations, blockIdx.z a head.
// Shared memory: the warps' sums, twice; their units on the way, unless in registers; the activations (staged.cuh).
//
// Each warp requests the units that it begins with, and waits only then for the kernel before; from then on FLIGHT units are on
// their way, across tiles. `early`: that kernel does not write the activations, so that only results wait for it. A row's bits do not depend on ROWS, grid or block; `ways` follows from the weights' shape and type.
//
// variants: TYPE = Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_NL IQ4_XS TQ1_0 TQ2_0 MXFP4 NVFP4; ROWS = 1 4 8 16
// prefetches: gemv_int
// spills: gemv_int
#include "gemv_tile.cuh"
#include "sums.cuh"

typedef Unit<TYPE> U;

constexpr int FLIGHT = ROWS <= 4 || U::SLOT > 0 ? U::FLIGHT : 2;

// Blocks of one row leave registers for those of the kernel behind, which then has its weights on their way early.
constexpr int THREADS = ROWS <= 4 ? 256 : 512;
constexpr int RESIDENT = ROWS > 4 ? 1 : U::SLOT > 0 && ROWS == 1 ? 3 : 2;

KERNEL(THREADS, RESIDENT)
gemv_int(Rows rows, const float* x, u32 x_row, u32 x_head, const float* up, float* out, const u8* q, const float* d, const float* s, int k, int ways_log, int turns, int early,
         const __grid_constant__ GemvTargets targets) {
    SHARED(float, room);
    const int warps = blockDim.x / WARP, ways = 1 << ways_log, at_once = warps >> ways_log;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int way = warp & (ways - 1), tile = warp >> ways_log;
    const int first = int(blockIdx.y) * ROWS, count = min(ROWS, rows.capacity - first);
    const int units = (k + U::SPAN - 1) / U::SPAN, items = (units + ways - 1) >> ways_log;
    const u32 blocks = u32(k) / TYPE::ELEMS;

    u8* const slots = reinterpret_cast<u8*>(room + 2 * warps * ROWS * TILE);
    u8* const staged = slots + warps * FLIGHT * U::SLOT;

    // What is loaded next: unit `ahead` of tile `next`.
    int next = int(blockIdx.x) * at_once + tile, ahead = way;
    typename U::From from = U::from(gemv_tile(targets, next).at(blocks), lane);
    Ring<TYPE, FLIGHT> ring;
    ring.slots = slots + warp * FLIGHT * U::SLOT;
    auto load = [&](int f, bool is_there) {
        if (!is_there) return ring.skip();
        ring.load(f, from, ahead, units, k);
        ahead += ways;
        if (ahead < items * ways) return;
        ahead = way, next += int(gridDim.x) * at_once;
        from = U::from(gemv_tile(targets, next).at(blocks), lane);
    };
    int v = int(blockIdx.x) * at_once;
    const int stride = int(gridDim.x) * at_once, all = targets.all;
    while (turns > 0 && v + (turns - 1) * stride >= all) turns--;
    const int total = turns * items;
    begin_flight<TYPE, FLIGHT>(total, load);
    LateWait wait;
    if (!early) wait.now();
    // Row 0 is computed, live or not: see q8.cu. (What is early has no other pass.)
    if (!is_computed(rows, first)) return;

    const Staged activations(staged, units * U::SPAN, count);
    activations.clear();
#pragma unroll 1
    for (int r = 0; r < count; r++) {
        if (x) {
            const u64 from = u64(first + r) * x_row + u64(blockIdx.z) * x_head;
            activations.round(r, x + from, up ? up + from : nullptr, k);
        } else {
            activations.fill(r, q8_row(q, d, s, k, u64(first + r) * gridDim.z + blockIdx.z), k, TYPE::OFFSETS > 0);
        }
    }
    __syncthreads();

    Sums<TYPE, ROWS> sums(activations);
    int turn = 0;
    auto use = [&](int f, int i) {
        const int unit = way + (i << ways_log);
        const auto& raw = ring.take(f);
        if (unit < units) sums.multiply(raw, unit, k, unit * U::SPAN);
    };
    in_flight<TYPE, FLIGHT>(total, items, load, use, [&] {
        float* const at = room + turn * warps * ROWS * TILE;
        sums.put(at);
        wait.now();
        gemv_tile_store<ROWS>(at, targets, v, at_once, ways, first, count);
        v += stride, turn ^= 1;
    });
    // A block without tiles.
    wait.now();
    if (!out || blockIdx.x) return;
#pragma unroll 1
    for (int i = 4 * int(threadIdx.x); i < count * k; i += 4 * int(blockDim.x)) {
        const u64 at = u64(first) * x_row + u64(i);
        *reinterpret_cast<float4*>(out + at) = gated(load_floats(x + at), load_floats(up + at));
    }
}
