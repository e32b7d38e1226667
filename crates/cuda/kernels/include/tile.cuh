// The geometry that the tensor-core products share: a block computes TILE_M rows × TILE_N outputs, in stages of 64 bytes of depth.
//
// -DTILE chooses the tile (with -DFLOATS, since the float path takes other shapes); a block has 2 · TILE_N threads: one for each 32
// weights of a stage. The choice changes no bit of any result, an element is always the same sums in the same order: the host takes
// the tile that fills the device (src/program/gemm/tiles.rs).
//
// A stage holds rows of 64 bytes: 64 integers, or 32 bf16. They are stored in four chunks of 16 bytes, permuted by the row, so that
// neither `ldmatrix` (eight rows, one chunk) nor the stores (whole rows) meet a bank twice.
#pragma once
#include "mma.cuh"

// Rows and outputs of a block, how its warps divide them, and blocks that a multiprocessor holds, which bounds registers.
#if TILE == 128 && !FLOATS
constexpr int TILE_M = 128, TILE_N = 64, WARPS_M = 2, WARPS_N = 2, RESIDENT = 3;
#elif TILE == 64 && FLOATS
constexpr int TILE_M = 64, TILE_N = 128, WARPS_M = 2, WARPS_N = 4, RESIDENT = 2;
#elif TILE == 64 && !FLOATS
constexpr int TILE_M = 64, TILE_N = 64, WARPS_M = 2, WARPS_N = 2, RESIDENT = 3;
#elif TILE == 16
constexpr int TILE_M = 16, TILE_N = 64, WARPS_M = 1, WARPS_N = 4, RESIDENT = 4;
#else
#error "there is no such tile"
#endif

constexpr int THREADS = 2 * TILE_N;
// Products of 16 × 8 that a warp has in each direction.
constexpr int MT = TILE_M / WARPS_M / 16;
constexpr int NT = TILE_N / WARPS_N / 8;
constexpr int ROW_BYTES = 64;
constexpr int ROW_CHUNKS = ROW_BYTES / 16;
static_assert(WARPS_M * WARPS_N * WARP == THREADS, "a block's warps are those of its outputs");
static_assert(MT >= 1 && NT >= 2 && NT % 2 == 0, "weights are loaded for two products at a time");

// Results of a thread: rows and columns as in mma.cuh.
typedef float Results[MT][NT][4];

// Chunk `c` of a row.
__device__ __forceinline__ u8* chunk(u8* rows, int row, int c) { return rows + row * ROW_BYTES + ((c ^ row >> 1) & 3) * 16; }

// A of the 16 rows from `row`, at depth `half` of the stage.
__device__ __forceinline__ void load_a(u32 (&a)[4], u8* rows, int row, int half) {
    const int lane = threadIdx.x % WARP;
    load_matrices(a, chunk(rows, row + lane % 16, 2 * half + lane / 16));
}

// B of the 16 outputs from `row`: b0 and b1 of the first eight, then of the second.
__device__ __forceinline__ void load_b(u32 (&b)[4], u8* rows, int row, int half) {
    const int lane = threadIdx.x % WARP;
    load_matrices(b, chunk(rows, row + lane / 16 * 8 + lane % 8, 2 * half + lane / 8 % 2));
}

// Where the warp's results begin in the tile.
__device__ __forceinline__ int warp_row() { return threadIdx.x / WARP / WARPS_N * (MT * 16); }
__device__ __forceinline__ int warp_column() { return threadIdx.x / WARP % WARPS_N * (NT * 8); }

// Stores two neighbours of a row of `columns`, as far as they exist; in one piece where rows are even.
__device__ __forceinline__ void store_pair(float* row, int column, int columns, float value, float next) {
    if (columns % 2 == 0) {
        if (column < columns) *reinterpret_cast<float2*>(row + column) = make_float2(value, next);
        return;
    }
    if (column < columns) row[column] = value;
    if (column + 1 < columns) row[column + 1] = next;
}

// Stores the results whose columns, from `first` on, are below `columns`. `where(row)`: where a row of the tile goes, null if nowhere.
template <class Where>
__device__ __forceinline__ void store_results(const Results& results, int first, int columns, Where where) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            float* to = where(warp_row() + m * 16 + i * 4 + lane / 4);
            if (to == nullptr) continue;
#pragma unroll
            for (int n = 0; n < NT; n++)
                store_pair(to, first + warp_column() + n * 8 + lane % 4 * 2, columns, results[m][n][i], results[m][n][i + 1]);
        }
}

__device__ __forceinline__ void clear(Results& results) {
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) results[m][n][i] = 0.0f;
}

// Copies of 16 bytes that a thread makes in every stage, if a block makes COUNT: of rows that have PER_ROW of them each, the thread's
// rows are STEP apart, and it always brings the same piece of a row. Where the pieces lie, a thread finds out once.
template <int COUNT, int PER_ROW> struct Copies {
    static constexpr int EACH = (COUNT + THREADS - 1) / THREADS, STEP = THREADS / PER_ROW;
    static_assert(COUNT % THREADS == 0 || COUNT < THREADS, "threads bring as much as each other, or some of them nothing");
    static_assert(STEP % 8 == 0, "chunks of a thread's rows are permuted alike");
    // In units of 16 bytes, of the next stage.
    u32 from[EACH];

    static __device__ __forceinline__ bool takes_part() { return COUNT >= THREADS || threadIdx.x < COUNT; }
    static __device__ __forceinline__ int row() { return threadIdx.x / PER_ROW; }
    static __device__ __forceinline__ int piece() { return threadIdx.x % PER_ROW; }

    // `x_row(row)`: where a row of the tile lies, in rows of so many stages.
    template <class Row> __device__ __forceinline__ Copies(Row x_row, int stages) {
#pragma unroll
        for (int i = 0; i < EACH; i++) from[i] = takes_part() ? u32(x_row(row() + i * STEP)) * u32(stages * PER_ROW) + piece() : 0;
    }

    // Starts those of the next stage, each to `to`, which is where the first goes, and `bytes` further.
    __device__ __forceinline__ void start(u8* to, int bytes, const void* x) {
        if (!takes_part()) return;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            copy16(to + i * bytes, static_cast<const uint4*>(x) + from[i]);
            from[i] += PER_ROW;
        }
    }
};
