// Tiles of 16 weight rows: which tile is whose, and how the sums of the warps that share one are added up.
#pragma once
#include "gemv.cuh"
#include "sums.cuh"

// Weight rows that a warp multiplies at a time.
constexpr int TILE = 16;

// 16 rows of a weight, the last of which may be fewer.
struct GemvTile {
    const u8* w;
    float* y;
    // Rows of a head, and the first of these 16 among them.
    int m, first;
    // A tile that is not there is the first one, for nobody to use.
    bool is_there;

    // Rows of the whole weight, which is also the distance of two rows of results; those before this tile.
    __device__ __forceinline__ u32 rows() const { return u32(m) * gridDim.z; }
    __device__ __forceinline__ u32 before() const { return blockIdx.z * u32(m) + u32(first); }

    // `per_row` blocks a row.
    __device__ __forceinline__ TileAt at(u32 per_row) const {
        return {w, u64(rows()) * per_row, u64(before()) * per_row, per_row, min(TILE, m - first)};
    }
};

// Tile `v` of all weights, for one head. No weight begins within a tile.
__device__ __forceinline__ GemvTile gemv_tile(const GemvTargets& t, int v) {
    const int i = t.weight_of(v);
    const bool is_there = v < t.all;
    return {t.w[i], t.y[i], t.m[i], is_there ? (v - t.before[i]) * TILE : 0, is_there};
}

// The sum of `ways` warps from `warp` on, in their order: row `t` of the activations, row `i` of the tile.
template <int R> __device__ __forceinline__ float sum_of(const float* sums, int warp, int ways, int t, int i) {
    float sum = 0.0f;
#pragma unroll 4
    for (int w = warp; w < warp + ways; w++) sum += sums[(w * R + t) * TILE + i];
    return sum;
}

// Writes tiles `v .. v + at_once`, of `ways` warps each, for `count` rows of activations from row `first` on, when all sums are there.
template <int R>
__device__ __forceinline__ void gemv_tile_store(const float* sums, const GemvTargets& targets, int v, int at_once, int ways, int first,
                                                int count) {
#pragma unroll 1
    for (u32 i = threadIdx.x; i < u32(at_once * R * TILE); i += blockDim.x) {
        const int row = i % TILE, t = i / TILE % R, j = i / TILE / R;
        const GemvTile tile = gemv_tile(targets, v + j);
        if (t >= count || !tile.is_there || tile.first + row >= tile.m) continue;
        tile.y[u64(first + t) * tile.rows() + tile.before() + u32(row)] = sum_of<R>(sums, j * ways, ways, t, row);
    }
}
