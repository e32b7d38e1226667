// RmsNorm, LayerNorm, and the residual sum with the RmsNorm behind it.
//
// Grid: one block for each innermost row (a row of the step, or a head of one). Block: as many whole warps as give a thread
// about four elements, by the width alone. A thread keeps its elements (threadIdx.x + i · blockDim.x) in registers, at most
// PER_THREAD. Sums: a thread's own elements ascending, a butterfly over the warp, then the warps in order: the same for every row
// of a width, and for the fused form, whose results have the bits of its parts.
// prefetches: rms_norm add_rms_norm layer_norm
// spills: layer_norm
#include "common.cuh"

constexpr int PER_THREAD = 16;

// Weight types: norms are F32 in GGUF files, but checkpoints keep them as they were trained.
constexpr int WEIGHT_F32 = 0;
constexpr int WEIGHT_F16 = 1;
constexpr int WEIGHT_BF16 = 2;

__device__ __forceinline__ float weight_at(const void* w, int type, int i) {
    if (type == WEIGHT_F32) return static_cast<const float*>(w)[i];
    u16 h = static_cast<const u16*>(w)[i];
    return type == WEIGHT_F16 ? h2f(h) : bf2f(h);
}

// Weights do not depend on the step: they are on their way while the kernel before this one ends.
__device__ __forceinline__ void load_weight(float (&w)[PER_THREAD], const void* weight, int type, int width) {
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        int at = threadIdx.x + i * blockDim.x;
        w[i] = at < width ? weight_at(weight, type, at) : 0.0f;
    }
}

__device__ __forceinline__ float sum_of_squares(const float (&v)[PER_THREAD], float* room) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) sum = fmaf(v[i], v[i], sum);
    return block_sum(sum, room);
}

__device__ __forceinline__ void write_rms(const float (&v)[PER_THREAD], const float (&w)[PER_THREAD], float eps, int width,
                                          float* out, float* room) {
    float scale = 1.0f / sqrtf(sum_of_squares(v, room) / width + eps);
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        int at = threadIdx.x + i * blockDim.x;
        if (at < width) out[at] = v[i] * scale * w[i];
    }
}

// `x`: rows of `stride` elements, of which those from `start` on are normed; `inner` of them to a row of the step.
KERNEL(1024) rms_norm(const float* x, int stride, int start, int inner, const void* weight, int type, float eps, int width, float* out, Rows rows) {
    __shared__ float room[WARP];
    float v[PER_THREAD], w[PER_THREAD];
    load_weight(w, weight, type, width);
    pdl_wait();
    pdl_go();
    int r = blockIdx.x;
    if (!is_live(rows, r / inner)) return;
    const float* row = x + u64(r) * stride + start;
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        int at = threadIdx.x + i * blockDim.x;
        v[i] = at < width ? row[at] : 0.0f;
    }
    write_rms(v, w, eps, width, out + u64(r) * width, room);
}

// `sum = a + b`, `out = RmsNorm(sum)`.
KERNEL(1024) add_rms_norm(const float* a, const float* b, const void* weight, int type, float eps, int width, float* sum, float* out, Rows rows) {
    __shared__ float room[WARP];
    float v[PER_THREAD], w[PER_THREAD];
    load_weight(w, weight, type, width);
    pdl_wait();
    pdl_go();
    int r = blockIdx.x;
    if (!is_live(rows, r)) return;
    u64 first = u64(r) * width;
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        int at = threadIdx.x + i * blockDim.x;
        v[i] = 0.0f;
        if (at < width) {
            v[i] = a[first + at] + b[first + at];
            sum[first + at] = v[i];
        }
    }
    write_rms(v, w, eps, width, out + first, room);
}

KERNEL(1024) layer_norm(const float* x, int stride, int start, int inner, const void* weight, int type, const void* bias, int bias_type, float eps, int width, float* out, Rows rows) {
    __shared__ float room[WARP];
    float v[PER_THREAD], w[PER_THREAD];
    load_weight(w, weight, type, width);
    pdl_wait();
    pdl_go();
    int r = blockIdx.x;
    if (!is_live(rows, r / inner)) return;
    const float* row = x + u64(r) * stride + start;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        int at = threadIdx.x + i * blockDim.x;
        v[i] = at < width ? row[at] : 0.0f;
        sum += v[i];
    }
    float mean = block_sum(sum, room) / width;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) v[i] = threadIdx.x + i * blockDim.x < u32(width) ? v[i] - mean : 0.0f;
    float scale = 1.0f / sqrtf(sum_of_squares(v, room) / width + eps);
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        int at = threadIdx.x + i * blockDim.x;
        if (at < width) out[u64(r) * width + at] = v[i] * scale * w[i] + weight_at(bias, bias_type, at);
    }
}
