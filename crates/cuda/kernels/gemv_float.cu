// Matrix-vector products with activations of f32: float weights always; quantised ones in exact math, and where an operation asks for
// f32 (router, head weights of the indexer).
//
//   y_i[t, h, j] = w_i[h, j] · x[t, h]      TYPE, ROWS as in gemv_int.cu; WHOLE: 1 if rows of float weights are whole 16-byte pieces
//
// Grid and block as in gemv_int.cu; no dynamic shared memory: activations are read where they lie, and come from the nearest cache
// for all weight rows but the first. Weights are requested before the wait. `early`: the kernel before does not write `x`, so that only
// results wait for it; `x` lies in whole 16-byte pieces then, and does not come through L1. Every product is one fused multiply-add, in the order
// of gemv.cuh. Rows of floats that are not whole 16-byte pieces are read one element at a time.
//
// variants: TYPE = F32 F16 BF16; ROWS = 1 2 4 8; WHOLE = 0 1
// variants: TYPE = Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_NL IQ4_XS TQ1_0 TQ2_0 MXFP4 NVFP4; ROWS = 1 4; WHOLE = 1
// prefetches: gemv_float
// spills: gemv_float
#include "blocks.cuh"
#include "gemv.cuh"
#include "q8.cuh"

// What a thread multiplies at a time: N elements. Quantised: 32.
template <class B, bool ALIGNED> struct Unit {
    static constexpr int N = 32, FLIGHT = 2;
    typedef typename B::Raw Raw;
    static __device__ __forceinline__ void load(Raw& r, const u8* w, u64 blocks, u64 unit) {
        B::load(r, w, blocks, unit / (B::ELEMS / 32), int(unit % (B::ELEMS / 32)));
    }
    static __device__ __forceinline__ void expand(float* w, const Raw& r, int unit) {
        Sub s;
        B::expand(r, unit % (B::ELEMS / 32), s);
        values32<B>(s, w);
    }
};
struct Bits16 {
    uint4 v;
};
template <> struct Unit<F32, true> {
    static constexpr int N = 4, FLIGHT = 4;
    typedef Bits16 Raw;
    static __device__ __forceinline__ void load(Raw& r, const u8* w, u64, u64 unit) { r.v = load16(w + 16 * unit); }
    static __device__ __forceinline__ void expand(float* w, const Raw& r, int) {
        w[0] = __uint_as_float(r.v.x), w[1] = __uint_as_float(r.v.y), w[2] = __uint_as_float(r.v.z), w[3] = __uint_as_float(r.v.w);
    }
};
template <class B> struct Pairs {
    static constexpr int N = 8, FLIGHT = 4;
    typedef Bits16 Raw;
    static __device__ __forceinline__ float widen(u16 h);
    static __device__ __forceinline__ void load(Raw& r, const u8* w, u64, u64 unit) { r.v = load16(w + 16 * unit); }
    static __device__ __forceinline__ void expand(float* w, const Raw& r, int) {
        const u32 words[4] = {r.v.x, r.v.y, r.v.z, r.v.w};
#pragma unroll
        for (int i = 0; i < 4; i++) w[2 * i] = widen(u16(words[i])), w[2 * i + 1] = widen(u16(words[i] >> 16));
    }
};
template <> __device__ __forceinline__ float Pairs<F16>::widen(u16 h) { return h2f(h); }
template <> __device__ __forceinline__ float Pairs<BF16>::widen(u16 h) { return bf2f(h); }
template <> struct Unit<F16, true> : Pairs<F16> {};
template <> struct Unit<BF16, true> : Pairs<BF16> {};
// One element.
template <class B> struct Single {
    static constexpr int N = 1, FLIGHT = 4;
    struct Raw {
        float v;
    };
    static __device__ __forceinline__ void load(Raw& r, const u8* w, u64, u64 unit) { r.v = load_f<B>(w, unit); }
    static __device__ __forceinline__ void expand(float* w, const Raw& r, int) { w[0] = r.v; }
};
template <> struct Unit<F32, false> : Single<F32> {};
template <> struct Unit<F16, false> : Single<F16> {};
template <> struct Unit<BF16, false> : Single<BF16> {};

// acc += w · x, N elements in order.
template <int N> __device__ __forceinline__ void multiply(float& acc, const float* w, const float* x, bool aligned, bool early) {
    if constexpr (N == 1) {
        acc = fmaf(w[0], x[0], acc);
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            float4 v = early ? load_floats(x + i) : four(x + i, aligned);
            acc = fmaf(w[i], v.x, acc);
            acc = fmaf(w[i + 1], v.y, acc);
            acc = fmaf(w[i + 2], v.z, acc);
            acc = fmaf(w[i + 3], v.w, acc);
        }
    }
}

typedef Unit<TYPE, WHOLE> U;

KERNEL(512)
gemv_float(Rows rows, const float* x, u32 x_row, u32 x_head, int k, int early, int lanes_log,
           const __grid_constant__ GemvTargets targets) {
    __shared__ float room[GEMV_THREADS / WARP * ROWS];
    const int units = k / U::N, blocks = k / TYPE::ELEMS;
    const int lanes = 1 << lanes_log, lane = int(threadIdx.x) & (lanes - 1), in_group = int(blockDim.x) >> lanes_log;
    const int first = int(blockIdx.y) * ROWS, count = min(ROWS, rows.capacity - first);

    typename U::Raw raw[U::FLIGHT];
    int v = int(blockIdx.x) * in_group, unit = 0;
    GemvRow row = gemv_row(targets, v + (int(threadIdx.x) >> lanes_log));
    auto fetch = [&]() {
#pragma unroll
        for (int f = 0; f < U::FLIGHT; f++) {
            int i = unit + (f << lanes_log) + lane;
            if (row.is_there && i < units) U::load(raw[f], row.w, row.rows * u64(blocks), row.row * u64(units) + u64(i));
        }
    };
    fetch();
    LateWait wait;
    if (!early) wait.now();
    // Row 0 is computed, live or not: see q8.cu. (What is early has no other pass.)
    if (first > 0 && !is_live(rows, first)) return;
    x += u64(first) * x_row + u64(blockIdx.z) * x_head;
    const bool aligned = is_aligned16(x) && x_row % 4 == 0;

    float acc[ROWS] = {};
    while (v < targets.all) {
#pragma unroll
        for (int f = 0; f < U::FLIGHT; f++) {
            int i = unit + (f << lanes_log) + lane;
            if (!row.is_there || i >= units) continue;
            float w[U::N];
            U::expand(w, raw[f], i);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if (r < count) multiply<U::N>(acc[r], w, x + u64(r) * x_row + u64(i) * U::N, aligned, early);
            }
        }
        GemvRow done = row;
        unit += U::FLIGHT << lanes_log;
        bool is_end = unit >= units;
        if (is_end) {
            v += int(gridDim.x) * in_group, unit = 0;
            row = gemv_row(targets, v + (int(threadIdx.x) >> lanes_log));
        }
        fetch();
        if (!is_end) continue;
        gemv_sum(acc, lanes, room);
        wait.now();
        gemv_store(acc, done, lane, first, count);
#pragma unroll
        for (int r = 0; r < ROWS; r++) acc[r] = 0.0f;
    }
    // A block without rows.
    wait.now();
}
