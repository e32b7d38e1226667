// Words between the GPU and pinned memory of the host, in the stream: a step's inputs on their way in, its results on their way out.
//
// A kernel, and not a copy of the driver's. Copies of one direction may share a queue of a copy engine, whichever stream they are of; one that
// stands behind a kernel that waits for another rank then holds up that rank's own, and the two wait for each other.
#include "common.cuh"

constexpr int MAX_PIECES = 8;

// As `src/run/transfer.rs` packs them.
struct Piece {
    const u32* from;
    u32* to;
    u64 words;
};
struct Pieces {
    Piece pieces[MAX_PIECES];
    u64 count;
};

// Grid: a few blocks, all of which take every gridDim-th part of each piece. Block: 256 threads. Loads from the host take over a microsecond: each
// thread has several on their way.
KERNEL(256) transfer(const __grid_constant__ Pieces all) {
    pdl_wait();
    pdl_go();
    constexpr int EACH = 4;
    const u64 step = u64(gridDim.x) * blockDim.x;
    for (u64 p = 0; p < all.count; p++) {
        const Piece piece = all.pieces[p];
        for (u64 at = u64(blockIdx.x) * blockDim.x + threadIdx.x; at < piece.words; at += EACH * step) {
            u32 v[EACH] = {};
#pragma unroll
            for (int i = 0; i < EACH; i++)
                if (at + i * step < piece.words) v[i] = piece.from[at + i * step];
#pragma unroll
            for (int i = 0; i < EACH; i++)
                if (at + i * step < piece.words) piece.to[at + i * step] = v[i];
        }
    }
}
