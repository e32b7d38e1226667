// Finds poison (NaN, or the smallest i32) in the live rows of a buffer, after the operation that should have written it.
#include "common.cuh"

// One block of 256 threads: a debugging aid, not a path that is timed. The first element in row order is the one that is
// raised, so that the message does not depend on the order of threads.
// `positions`: rows are written up to their own position only; null: to the end.
KERNEL(256) poison_check(const u32* data, Rows rows, int width, int is_float, const int* positions, Fault* fault, int op) {
    pdl_wait();
    pdl_go();
    __shared__ u64 first[256];
    u64 mine = ~0ull;
    for (int r = 0; r < rows.capacity && mine == ~0ull; r++) {
        if (!is_live(rows, r)) break;
        int written = positions ? min(positions[r] + 1, width) : width;
        for (int i = threadIdx.x; i < written; i += blockDim.x) {
            u32 word = data[u64(r) * width + i];
            bool poison = is_float ? (word & 0x7fffffffu) > 0x7f800000u : word == 0x80000000u;
            if (poison) {
                mine = u64(r) * width + i;
                break;
            }
        }
    }
    first[threadIdx.x] = mine;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int t = 1; t < int(blockDim.x); t++) mine = first[t] < mine ? first[t] : mine;
        if (mine != ~0ull) raise(fault, FAULT_POISON, op, mine, int(mine / width), int(mine % width));
    }
}
