// Activations in the form that tensor cores take: 8-bit integers for quantised weights, three bf16 parts for all others.
//
//     grid   (padded rows, elements / 1024, heads), 256 threads, four elements each
//
// A row t of head h begins at x + t · row_stride + h · head_stride; it goes to row h · padded + t of the result. Rows that are not live
// become zeros: nothing of what they hold reaches a product, and there is nothing that was never written.
#include "common.cuh"

struct Source {
    const float* x;
    u64 row_stride, head_stride;
    // Where not null, rows below *count are live, whatever `rows` says.
    const int* count;
};

// Four elements from `at`, a multiple of four; zeros behind the end and in rows that are not live.
__device__ __forceinline__ float4 four(const Source& from, const Rows& rows, int t, int head, int at, int k) {
    const bool live = from.count ? t < *from.count : is_live(rows, t);
    if (!live || at >= k) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const float* x = from.x + t * from.row_stride + head * from.head_stride + at;
    if (at + 4 <= k && reinterpret_cast<u64>(x) % 16 == 0) return *reinterpret_cast<const float4*>(x);
    return make_float4(x[0], at + 1 < k ? x[1] : 0.0f, at + 2 < k ? x[2] : 0.0f, at + 3 < k ? x[3] : 0.0f);
}

// Blocks of 32: d = max |x| / 127, p = round(x / d), as the CPU backend rounds (cpu/src/matmul/q8.rs). A block that is not finite gets
// NaN for its scale. `q`: [heads][padded][k, rounded up to 64]; `scales`, for each block: d, d · Σ p, and the same over either half.
KERNEL(256)
quantise(const float* x, u32* q, float4* scales, Rows rows, const int* count, u64 row_stride, u64 head_stride, int k, int padded) {
    pdl_wait();
    pdl_go();
    const int t = blockIdx.x, head = blockIdx.z, at = (blockIdx.y * 256 + threadIdx.x) * 4;
    const float4 v = four({x, row_stride, head_stride, count}, rows, t, head, at, k);
    const float values[4] = {v.x, v.y, v.z, v.w};
    // Bits without the sign order as the magnitudes do, infinity above all numbers and NaN above infinity.
    u32 most = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) most = max(most, __float_as_uint(values[i]) & 0x7fffffffu);
#pragma unroll
    for (int step = 4; step; step >>= 1) most = max(most, __shfl_xor_sync(FULL, most, step));
    float d = __uint_as_float(most) / 127.0f, inverse = 0.0f;
    if (most >= 0x7f800000u) {
        d = __uint_as_float(0x7fc00000u);
    } else if (d < 1.17549435e-38f) {
        // Its inverse would be infinite.
        d = 0.0f;
    } else {
        inverse = 1.0f / d;
    }
    // Adding 1.5 · 2^23 rounds to an integer, ties to even, and leaves it in the low bits.
    u32 word = 0;
    int sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const i8 p = i8(__float_as_int(__fadd_rn(__fmul_rn(values[i], inverse), 12582912.0f)));
        word |= u32(u8(p)) << (8 * i);
        sum += p;
    }
    sum += __shfl_xor_sync(FULL, sum, 1);
    sum += __shfl_xor_sync(FULL, sum, 2);
    const int other = __shfl_xor_sync(FULL, sum, 4);
    const int blocks = (k / 32 + 1) & ~1;
    if (at >= blocks * 32) return;
    const u64 row = u64(head) * padded + t;
    q[(row * blocks * 32 + at) / 4] = word;
    if (at % 32 == 0) scales[row * blocks + at / 32] = make_float4(d, d * float(sum + other), d * float(sum), d * float(other));
}

// Three bf16 whose exact sum is the element, cut off and not rounded: [3][heads][padded][k, rounded up to 32, zeros behind the end].
KERNEL(256)
split(const float* x, u32* parts, Rows rows, const int* count, u64 row_stride, u64 head_stride, int k, int padded) {
    pdl_wait();
    pdl_go();
    const int t = blockIdx.x, head = blockIdx.z, at = (blockIdx.y * 256 + threadIdx.x) * 4, width = (k + 31) / 32 * 32;
    if (at >= width) return;
    const float4 v = four({x, row_stride, head_stride, count}, rows, t, head, at, k);
    float values[4] = {v.x, v.y, v.z, v.w};
    const u64 row = u64(head) * padded + t, part = u64(gridDim.z) * padded * width;
#pragma unroll
    for (int p = 0; p < 3; p++) {
        u32 bits[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            bits[i] = __float_as_uint(values[i]) & 0xffff0000u;
            values[i] -= __uint_as_float(bits[i]);
        }
        *reinterpret_cast<uint2*>(parts + (p * part + row * width + at) / 2) = make_uint2(bits[0] >> 16 | bits[1], bits[2] >> 16 | bits[3]);
    }
}
