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
    int t = int(blockIdx.y), at = 4 * int(blockIdx.x * blockDim.x + threadIdx.x);
    if (!is_computed(rows, t)) return;
    x += u64(t) * x_row + u64(blockIdx.z) * x_head;
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (at < k) v = four(x + at, is_aligned16(x));
    Rounding{q, d, s}.put(u64(t) * gridDim.z + blockIdx.z, k, at, v);
}
