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
// prefetches: rms_norm add_rms_norm layer_norm
// spills: add_rms_norm layer_norm
// (with four pieces: rows wider than 8192, of which a thread's share is wider than its registers)
#include "norm.cuh"

// `x`: the first normed element of row 0; `inner` rows of `stride` elements to a row of the step.
KERNEL(1024) rms_norm(const float* x, int stride, int inner, const void* weight, int type, float eps, int width, float* out, u8* q, float* d, float* s, Rows rows) {
    __shared__ float room[WARP];
    const Pieces w = weights(weight, type, width, blockDim.x);
    pdl_wait();
    pdl_go();
    const int r = blockIdx.x;
    Pieces v = elements(x + u64(r) * stride, width, blockDim.x);
    if (!is_computed(rows, r / inner)) return;
    scale_rms(v, w, eps, width, blockDim.x, room);
    store(v, out, r, width, blockDim.x);
    store_rounded(v, {q, d, s}, r, width, blockDim.x);
}

// `sum = a + b`, `out = RmsNorm(sum)`.
KERNEL(1024) add_rms_norm(const float* a, const float* b, const void* weight, int type, float eps, int width, float* sum, float* out, u8* q, float* d, float* s, Rows rows) {
    __shared__ float room[WARP];
    const Pieces w = weights(weight, type, width, blockDim.x);
    pdl_wait();
    pdl_go();
    const int r = blockIdx.x;
    Pieces v = elements(a + u64(r) * width, width, blockDim.x);
    const Pieces addend = elements(b + u64(r) * width, width, blockDim.x);
    if (!is_computed(rows, r)) return;
#pragma unroll
    for (int i = 0; i < 4 * PIECES; i++) v.v[i] += addend.v[i];
    store(v, sum, r, width, blockDim.x);
    scale_rms(v, w, eps, width, blockDim.x, room);
    store(v, out, r, width, blockDim.x);
    store_rounded(v, {q, d, s}, r, width, blockDim.x);
}

KERNEL(1024) layer_norm(const float* x, int stride, int inner, const void* weight, int type, const void* bias, int bias_type, float eps, int width, float* out, u8* q, float* d, float* s, Rows rows) {
    __shared__ float room[2 * WARP];
    const Pieces w = weights(weight, type, width, blockDim.x);
    pdl_wait();
    pdl_go();
    const int r = blockIdx.x;
    Pieces v = elements(x + u64(r) * stride, width, blockDim.x);
    const Pieces b = weights(bias, bias_type, width, blockDim.x);
    if (!is_computed(rows, r / inner)) return;
    scale_centred(v, w, b, eps, width, blockDim.x, room);
    store(v, out, r, width, blockDim.x);
    store_rounded(v, {q, d, s}, r, width, blockDim.x);
}
