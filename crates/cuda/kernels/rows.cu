// Operations on elements: caches, sums, SwiGlu, choice of rows. Each element is computed by one thread, as the
// reference does it, so there is no order to speak of.
#include "q8.cuh"
#include "silu.cuh"

// Grid: (parts of a row, rows). Block: 256 threads, EACH elements a thread, which are blockDim.x apart.
constexpr int EACH = 4;

// The elements of a row that a thread has: f(index in the row).
template <class F> __device__ __forceinline__ void for_each(int width, F f) {
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int at = (blockIdx.x * EACH + i) * blockDim.x + threadIdx.x;
        if (at < width) f(at);
    }
}

KERNEL(256) add(const float* a, const float* b, float* out, int width, Rows rows) {
    pdl_wait();
    pdl_go();
    int r = blockIdx.y;
    if (!is_live(rows, r)) return;
    u64 first = u64(r) * width;
    for_each(width, [&](int i) { out[first + i] = a[first + i] + b[first + i]; });
}

// A thread has four elements in a row, so that they can be rounded for a product (q8.cuh). Grid as above.
KERNEL(256) swiglu(const float* gate, const float* up, float* out, int width, u8* q, float* d, float* s, Rows rows) {
    pdl_wait();
    pdl_go();
    const int r = blockIdx.y, at = EACH * int(blockIdx.x * blockDim.x + threadIdx.x);
    if (!is_computed(rows, r)) return;
    const u64 first = u64(r) * width + at;
    float v[EACH] = {};
    if (at < width && width % EACH == 0) {
        const float4 g = *reinterpret_cast<const float4*>(gate + first), u = *reinterpret_cast<const float4*>(up + first);
        const float4 h = gated(g, u);
        v[0] = h.x, v[1] = h.y, v[2] = h.z, v[3] = h.w;
        *reinterpret_cast<float4*>(out + first) = h;
    } else {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            if (at + i < width) out[first + i] = v[i] = silu(gate[first + i]) * up[first + i];
        }
    }
    if (q) Rounding{q, d, s}.put(r, width, at, make_float4(v[0], v[1], v[2], v[3]));
}

// Pads are skipped: they come from nowhere.
KERNEL(256) select_rows(const float* x, const int* output_rows, float* out, int width) {
    pdl_wait();
    pdl_go();
    int n = blockIdx.y, from = output_rows[n];
    if (from < 0) return;
    for_each(width, [&](int i) { out[u64(n) * width + i] = x[u64(from) * width + i]; });
}

// Columns start.. of rows of `stride` elements go to columns `to`.. of the state's row in the token's slot; -1: nowhere.
KERNEL(256) append(const float* x, int stride, int start, int len, float* state, int width, int to, const int* slots, Rows rows) {
    pdl_wait();
    pdl_go();
    int r = blockIdx.y;
    if (!is_live(rows, r)) return;
    int slot = slots[r];
    if (slot < 0) return;
    for_each(len, [&](int i) { state[u64(slot) * width + to + i] = x[u64(r) * stride + start + i]; });
}

// The same for two parts: the latent and its rotated key.
KERNEL(256) append_two(const float* x, int x_stride, int x_start, int x_len, const float* y, int y_stride, int y_start, int y_len, float* state, int width, const int* slots, Rows rows) {
    pdl_wait();
    pdl_go();
    int r = blockIdx.y;
    if (!is_live(rows, r)) return;
    int slot = slots[r];
    if (slot < 0) return;
    for_each(x_len + y_len, [&](int i) {
        float v = i < x_len ? x[u64(r) * x_stride + x_start + i] : y[u64(r) * y_stride + y_start + i - x_len];
        state[u64(slot) * width + i] = v;
    });
}
