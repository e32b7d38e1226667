// Reads memory as fast as it comes: the figure that steps are held against.
#include "common.cuh"

// Grid: a few blocks for each multiprocessor; each warp reads 2 KiB at a time (four loads of 16 bytes a thread in flight), a grid's width
// apart. `chunks` counts 16-byte words, a multiple of 4 · 1024. The sum is kept alive by a store that as good as never happens.
KERNEL(1024) read_all(const uint4* data, u64 chunks, u32* out) {
    pdl_wait();
    pdl_go();
    const u64 step = u64(gridDim.x) * blockDim.x * 4;
    u32 sum = 0;
    for (u64 at = u64(blockIdx.x) * blockDim.x * 4 + threadIdx.x; at + 3 * blockDim.x < chunks; at += step) {
        uint4 v[4];
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = load16(data + at + i * blockDim.x);
#pragma unroll
        for (int i = 0; i < 4; i++) sum ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
    }
    if (sum == 0x9e3779b9u) *out = sum;
}
