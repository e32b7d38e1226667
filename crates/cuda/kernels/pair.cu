// What one GPU finds in another's memory: bytes, how fast they come and go, how long a flag takes (`src/pair.rs`, `glim doctor --probe`).
#include "mix.cuh"
#include "system.cuh"

// Word `i` of a pattern: one in a wrong place, or of an earlier pass, is another.
__device__ __forceinline__ u32 pattern(u64 i, u32 seed) { return u32(mix((i + 1) * GAMMA ^ seed)); }

__device__ __forceinline__ uint4 pattern4(u64 i, u32 seed) {
    return make_uint4(pattern(4 * i, seed), pattern(4 * i + 1, seed), pattern(4 * i + 2, seed), pattern(4 * i + 3, seed));
}

// Grid: any; 256 threads. `pieces` of 16 bytes.
KERNEL(256) pair_fill(uint4* to, u64 pieces, u32 seed) {
    pdl_wait();
    pdl_go();
    const u64 step = u64(gridDim.x) * blockDim.x;
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < pieces; i += step) to[i] = pattern4(i, seed);
}

__device__ __forceinline__ int differing_bytes(u32 a, u32 b) {
    const u32 x = a ^ b;
    return ((x & 0xff) != 0) + ((x & 0xff00) != 0) + ((x & 0xff0000) != 0) + ((x & 0xff000000) != 0);
}

// Adds the bytes that are not the pattern's to `wrong`.
KERNEL(256) pair_check(const uint4* data, u64 pieces, u32 seed, u64* wrong) {
    pdl_wait();
    pdl_go();
    const u64 step = u64(gridDim.x) * blockDim.x;
    u64 found = 0;
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < pieces; i += step) {
        const uint4 v = load16_system(data + i), p = pattern4(i, seed);
        found += differing_bytes(v.x, p.x) + differing_bytes(v.y, p.y) + differing_bytes(v.z, p.z) + differing_bytes(v.w, p.w);
    }
    if (found) atomicAdd(wrong, found);
}

// Copies by loads and stores of this GPU, whichever side is the other's. Eight loads of a thread are on their way: one over a link takes
// over a microsecond.
KERNEL(256) pair_move(const uint4* from, uint4* to, u64 pieces) {
    pdl_wait();
    pdl_go();
    constexpr int EACH = 8;
    const u64 step = u64(gridDim.x) * blockDim.x;
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < pieces; i += EACH * step) {
        uint4 v[EACH] = {};
#pragma unroll
        for (int e = 0; e < EACH; e++)
            if (i + e * step < pieces) v[e] = load16_system(from + i + e * step);
#pragma unroll
        for (int e = 0; e < EACH; e++)
            if (i + e * step < pieces) to[i + e * step] = v[e];
    }
}

// A flag there and back, `rounds` times: one thread on each GPU, each of which waits on its own memory. `leads` begins. What took
// `ns` is left there; 0 if the other did not answer within `limit_ns`.
KERNEL(32) pair_flag(u32* mine, u32* theirs, u32 rounds, int leads, u64 limit_ns, u64* ns) {
    pdl_wait();
    pdl_go();
    if (threadIdx.x) return;
    // The first round is the other's start, which does not count.
    u64 begin = nanoseconds(), start = begin;
    for (u32 round = 1; round <= rounds + 1; round++) {
        if (leads) store_release(theirs, round);
        for (u32 n = 1; int(load_acquire(mine) - round) < 0; n++) {
            spin();
            if (n % 1024 == 0 && nanoseconds() - begin > limit_ns) {
                *ns = 0;
                return;
            }
        }
        if (!leads) store_release(theirs, round);
        if (round == 1) start = nanoseconds();
    }
    *ns = nanoseconds() - start;
}
