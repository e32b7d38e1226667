// RmsNorm, LayerNorm, and the residual sum with the RmsNorm behind it.
//
// Grid: (innermost rows: rows of the step, or heads of them; parts of a row). Block: whole warps that give a thread PIECES pieces of
// four elements, by the width alone: piece i of a thread begins at element 4 · (threadIdx.x + i · blockDim.x). It keeps them in
// registers. Sums: a thread's own elements ascending, a butterfly over the warp, then the warps in order: the same for every row
// of a width, and for the fused forms, whose results have the bits of their parts.
//
// All blocks of a row read and sum the whole of it, and each writes its part: what limits a step of one row is how fast a single
// multiprocessor writes. Where products take a row as 8-bit integers, it is written in that form too (q8.cuh).
// variants: PIECES = 1 2 4
// prefetches: rms_norm add_rms_norm layer_norm norms
// spills: add_rms_norm layer_norm norms
// (with four pieces: rows wider than 8192, of which a thread's share is wider than its registers)
#include "norm.cuh"
#include "rope.cuh"

// `x`: the first normed element of row 0; `inner` rows of `stride` elements to a row of the step.
KERNEL(1024) rms_norm(const float* x, int stride, int inner, const void* weight, int type, float eps, int width, float* out, u8* q, float* d, float* s, Rows rows) {
    __shared__ float room[WARP];
    const Pieces w = weights(weight, type, width, blockDim.x);
    pdl_wait();
    pdl_go();
    const int r = blockIdx.x;
    const Share share = share_of(width, blockIdx.y, gridDim.y);
    Pieces v = elements(x + u64(r) * stride, width, blockDim.x);
    if (!is_computed(rows, r / inner)) return;
    scale_rms(v, w, eps, width, blockDim.x, room);
    store(v, out + u64(r) * width, share, width, blockDim.x);
    store_rounded(v, {q, d, s}, r, share, width, blockDim.x);
}

// `sum = a + b`, `out = RmsNorm(sum)`.
KERNEL(1024) add_rms_norm(const float* a, const float* b, const void* weight, int type, float eps, int width, float* sum, float* out, u8* q, float* d, float* s, Rows rows) {
    __shared__ float room[WARP];
    const Pieces w = weights(weight, type, width, blockDim.x);
    pdl_wait();
    pdl_go();
    const int r = blockIdx.x;
    const Share share = share_of(width, blockIdx.y, gridDim.y);
    Pieces v = elements(a + u64(r) * width, width, blockDim.x);
    const Pieces addend = elements(b + u64(r) * width, width, blockDim.x);
    if (!is_computed(rows, r)) return;
#pragma unroll
    for (int i = 0; i < 4 * PIECES; i++) v.v[i] += addend.v[i];
    store(v, sum + u64(r) * width, share, width, blockDim.x);
    scale_rms(v, w, eps, width, blockDim.x, room);
    store(v, out + u64(r) * width, share, width, blockDim.x);
    store_rounded(v, {q, d, s}, r, share, width, blockDim.x);
}

KERNEL(1024) layer_norm(const float* x, int stride, int inner, const void* weight, int type, const void* bias, int bias_type, float eps, int width, float* out, u8* q, float* d, float* s, Rows rows) {
    __shared__ float room[2 * WARP];
    const Pieces w = weights(weight, type, width, blockDim.x);
    pdl_wait();
    pdl_go();
    const int r = blockIdx.x;
    const Share share = share_of(width, blockIdx.y, gridDim.y);
    Pieces v = elements(x + u64(r) * stride, width, blockDim.x);
    const Pieces b = weights(bias, bias_type, width, blockDim.x);
    if (!is_computed(rows, r / inner)) return;
    scale_centred(v, w, b, eps, width, blockDim.x, room);
    store(v, out + u64(r) * width, share, width, blockDim.x);
    store_rounded(v, {q, d, s}, r, share, width, blockDim.x);
}

// A norm, and what becomes of its result: `norms` in src/program/norms.rs fills it in.
struct Chain {
    // As of the kernels above; `bias` null: RmsNorm. `x` is the first normed element of row 0.
    const float* x;
    const void* weight;
    const void* bias;
    float* out;
    Rounding rounded;
    // The first rotated column of row 0, of `out` or of what `x` points into; and the angles of each row. Null: none.
    float* turned;
    const float2* angles;
    // Paged state that the row is appended to, and the slot of each row. Null: none.
    float* state;
    const int* slots;
    int stride, width, threads, type, bias_type;
    float eps;
    // Elements from one rotated row to the next; its first column in `out`, or -1 if it is not there.
    int turned_stride, turned_from;
    int pairs, half_split;
    // Elements of a row of the state; columns of it that the result begins at, and the rotated ones if they are not part of it.
    int state_width, out_to, turned_to;
};
constexpr int CHAINS = 3;
struct Chains {
    Chain chain[CHAINS];
};

// Norms of the same rows, each with the rotation of its result, or of other columns of what it read, and the append of both to a
// state. Grid: (rows of the step, chains). Block: as many threads as the widest row needs, at least one for each pair. The bits are
// those of the operations one by one. Shared: the widest row that is itself rotated.
KERNEL(1024) norms(const __grid_constant__ Chains chains, Rows rows) {
    __shared__ float room[2 * WARP];
    SHARED(float, row);
    const Chain& c = chains.chain[blockIdx.y];
    const int width = c.width, threads = c.threads, tid = threadIdx.x, r = blockIdx.x;
    const Pieces w = weights(c.weight, c.type, width, threads);
    Pieces b = {};
    if (c.bias) b = weights(c.bias, c.bias_type, width, threads);
    pdl_wait();
    pdl_go();
    // All that the row needs is asked for at once.
    Pieces v = elements(c.x + u64(r) * c.stride, width, threads);
    const int slot = c.state ? c.slots[r] : -1;
    const bool turns = c.angles && tid < c.pairs, turns_result = c.angles && c.turned_from >= 0;
    const float2 angle = turns ? c.angles[u64(r) * c.pairs + tid] : make_float2(1.0f, 0.0f);
    const Pair pair = pair_of(tid, c.pairs, c.half_split);
    float* turned = c.turned + u64(r) * c.turned_stride;
    float2 other = make_float2(0.0f, 0.0f);
    if (turns && !turns_result) other = make_float2(turned[pair.a], turned[pair.b]);
    if (!is_live(rows, r)) return;
    if (c.bias) scale_centred(v, w, b, c.eps, width, threads, room);
    else scale_rms(v, w, c.eps, width, threads, room);
    if (turns_result) {
        store(v, row, {0, width}, width, threads);
        __syncthreads();
        if (turns) turn(row + c.turned_from, pair, angle, make_float2(row[c.turned_from + pair.a], row[c.turned_from + pair.b]));
        __syncthreads();
        v = elements(row, width, threads);
    }
    float* state = c.state + u64(max(slot, 0)) * c.state_width;
    store(v, c.out + u64(r) * width, {0, width}, width, threads);
    store_rounded(v, c.rounded, r, {0, width}, width, threads);
    if (slot >= 0) store(v, state + c.out_to, {0, width}, width, threads);
    if (turns && !turns_result) {
        turn(turned, pair, angle, other);
        if (slot >= 0) turn(state + c.turned_to, pair, angle, other);
    }
}
