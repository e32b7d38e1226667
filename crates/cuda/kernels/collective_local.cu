// What a rank does by itself around a collective: the whole of it when there is nobody to meet, and packing for a library that moves bytes.
//
// Grid: any, each block takes every gridDim-th piece; at most as many blocks as are resident at once, so that a stated latency passes
// once and not once a wave. Block: 256 threads. No shared memory; no order of reduction, since nothing is reduced.
//
// WIRE is the wire's type (16: bf16, 32: f32), UNIT the words of a unit of gathers.
// variants: WIRE = 16 32; UNIT = 4 1
#include "common.cuh"
#include "ranks.cuh"

__device__ __forceinline__ u64 first_of_grid() { return u64(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ __forceinline__ u64 grid_threads() { return u64(gridDim.x) * blockDim.x; }

// Stays until `ns` have passed since `start`.
__device__ __forceinline__ void stay(u64 start, u64 ns) {
    while (ns && nanoseconds() - start < ns) spin();
}

// ---- alone -----------------------------------------------------------------------------------------------------------------------
// A rank without others, or one of several whose others are only a latency: it takes itself for the sum, and for every other rank.

KERNEL(256) all_reduce_alone(const float* x, float* out, Rows rows, int width, u64 latency_ns) {
    pdl_wait();
    pdl_go();
    u64 start = nanoseconds(), n = u64(used_rows(rows)) * width;
    for (u64 i = first_of_grid(); i < n; i += grid_threads()) out[i] = wired(x[i]);
    stay(start, latency_ns);
}

KERNEL(256) all_gather_alone(const __grid_constant__ Parts parts, Rows rows, int rank, int world, u64 latency_ns) {
    pdl_wait();
    pdl_go();
    u64 start = nanoseconds();
    u32 n = u32(used_rows(rows)), own = u32(parts.widths[rank]);
    for (int r = 0; r < world; r++) {
        u32 width = u32(parts.widths[r]);
        for (u64 i = first_of_grid(); i < u64(n) * width; i += grid_threads()) {
            // Of another rank's columns: this one's, over and over.
            u32 row = u32(i) / width, column = u32(i) % width;
            place(parts, r, world, u32(i), own ? brought(parts, rank, row * own + column % own) : nothing());
        }
    }
    stay(start, latency_ns);
}

// ---- packing ---------------------------------------------------------------------------------------------------------------------

// f32 to the wire's 16 bits, and back. All rows of the capacity, since a library is told a constant count.
KERNEL(256) wire_pack(const float* x, u16* out, u64 n) {
    pdl_wait();
    pdl_go();
    for (u64 i = first_of_grid(); i < n; i += grid_threads()) out[i] = f2bf(x[i]);
}

KERNEL(256) wire_unpack(const u16* x, float* out, u64 n) {
    pdl_wait();
    pdl_go();
    for (u64 i = first_of_grid(); i < n; i += grid_threads()) out[i] = bf2f(x[i]);
}

// This rank's stream, for a gather of equal lengths: live rows only, what lies behind is nobody's.
KERNEL(256) gather_pack(const __grid_constant__ Parts parts, Rows rows, int rank, u8* stream) {
    pdl_wait();
    pdl_go();
    u64 n = u64(used_rows(rows)) * parts.widths[rank];
    for (u64 i = first_of_grid(); i < n; i += grid_threads())
        reinterpret_cast<Unit*>(stream)[i] = brought(parts, rank, u32(i));
}

// The ranks' streams, one every `stride` bytes, put in their places.
KERNEL(256) gather_unpack(const __grid_constant__ Parts parts, Rows rows, int world, const u8* streams, u64 stride) {
    pdl_wait();
    pdl_go();
    u32 live = u32(used_rows(rows));
    for (int r = 0; r < world; r++) {
        const Unit* stream = reinterpret_cast<const Unit*>(streams + r * stride);
        u64 n = u64(live) * parts.widths[r];
        for (u64 i = first_of_grid(); i < n; i += grid_threads()) place(parts, r, world, u32(i), stream[i]);
    }
}
