// Rounds activations to signed bytes (q8.cuh), for the products that follow.
//
// Grid: (parts of a row, rows of the step, heads). Block: 256 threads, four elements each. Row t, head h becomes row t · heads + h.
// A kernel of its own: rounded, a row is a third of its bytes, and every block of a product reads all of it; the products of one
// input share it. It costs about what reading f32 in each of them would.
#include "q8.cuh"

KERNEL(256)
q8(Rows rows, const float* x, u32 x_row, u32 x_head, int k, u8* q, float* d, float* s) {
    pdl_wait();
    pdl_go();
    int t = int(blockIdx.y), i = int(blockIdx.x * blockDim.x + threadIdx.x);
    // Row 0 is rounded, live or not: most steps have one row, which need not wait to hear that it is live.
    if (t > 0 && !is_live(rows, t)) return;
    x += u64(t) * x_row + u64(blockIdx.z) * x_head;
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (4 * i < k) v = four(x + 4 * i, is_aligned16(x));
    float scale, sum;
    u32 bytes = q8_four(v, scale, sum);
    if (4 * i >= k) return;
    u64 row = u64(t) * gridDim.z + blockIdx.z;
    reinterpret_cast<u32*>(q + row * u64(k))[i] = bytes;
    if (i % 8 == 0) d[row * u64(k / 32) + u64(i / 8)] = scale;
    if (i % 4 == 0) s[row * u64(k / 16) + u64(i / 4)] = sum;
}
