// Tiles of 16 weight rows: which tile is whose, and how the sums of the warps that share one are added up.
#pragma once
#include "gemv.cuh"
#include "units.cuh"

// Weight rows that a warp multiplies at a time.
constexpr int TILE = 16;

// 16 rows of a weight, the last of which may be fewer.
struct GemvTile {
    const u8* w;
    float* y;
    // Rows of the whole weight, which is also the distance of two rows of results.
    u64 rows;
    // The first row of this head, and of these 16 in the head; rows of the head.
    u64 head;
    int first, m;
    // A tile that is not there is the first one, for nobody to use.
    bool is_there;

    // `per_row` blocks a row.
    __device__ __forceinline__ TileAt at(u64 per_row) const {
        return {w, rows * per_row, (head + u64(first)) * per_row, per_row, min(TILE, m - first)};
    }
};

__device__ __forceinline__ int gemv_tiles(const GemvTargets& t) {
    int all = 0;
#pragma unroll
    for (int i = 0; i < GEMV_WEIGHTS; i++) all += (t.m[i] + TILE - 1) / TILE;
    return all;
}

// Tile `v` of all weights, for one head. No weight begins within a tile.
__device__ __forceinline__ GemvTile gemv_tile(const GemvTargets& t, int v) {
    GemvTile out = {t.w[0], t.y[0], u64(t.m[0]) * gridDim.z, 0, 0, t.m[0], false};
#pragma unroll
    for (int i = 0; i < GEMV_WEIGHTS; i++) {
        const int tiles = (t.m[i] + TILE - 1) / TILE;
        if (v >= 0 && v < tiles) {
            out = {t.w[i], t.y[i], u64(t.m[i]) * gridDim.z, u64(blockIdx.z) * u64(t.m[i]), v * TILE, t.m[i], true};
        }
        v -= tiles;
    }
    return out;
}

// Puts a warp's sums of its tile, of R rows of activations, where others of the block find them; `acc` is zero then. `sums` holds
// R · TILE floats for each warp, and must not be that of the call before. All threads of the block call.
template <int R> __device__ __forceinline__ void put_sums(float (&acc)[R / 2][2], float* sums) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, p = lane % 4;
#pragma unroll
    for (int pass = 0; pass < R / 2; pass++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float sum = acc[pass][r] + __shfl_xor_sync(FULL, acc[pass][r], 1);
            if (p % 2 == 0) sums[(warp * R + 2 * pass + p / 2) * TILE + tile_row(g) + 8 * r] = sum;
            acc[pass][r] = 0.0f;
        }
    }
    __syncthreads();
}

// The sum of `ways` warps from `warp` on, in their order: row `t` of the activations, row `i` of the tile.
template <int R> __device__ __forceinline__ float sum_of(const float* sums, int warp, int ways, int t, int i) {
    float sum = 0.0f;
    for (int w = warp; w < warp + ways; w++) sum += sums[(w * R + t) * TILE + i];
    return sum;
}

// Writes tiles `v .. v + at_once`, of `ways` warps each, for `count` rows of activations from row `first` on; as `put_sums`.
template <int R>
__device__ __forceinline__ void gemv_tile_store(float (&acc)[R / 2][2], const GemvTargets& targets, int v, int at_once, int ways,
                                                int first, int count, float* sums) {
    put_sums<R>(acc, sums);
    for (u32 i = threadIdx.x; i < u32(at_once * R * TILE); i += blockDim.x) {
        const int row = i % TILE, t = i / TILE % R, j = i / TILE / R;
        const GemvTile tile = gemv_tile(targets, v + j);
        if (t >= count || !tile.is_there || tile.first + row >= tile.m) continue;
        tile.y[u64(first + t) * tile.rows + tile.head + u64(tile.first + row)] = sum_of<R>(sums, j * ways, ways, t, row);
    }
}
