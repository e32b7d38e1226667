// Rows of f32 activations in shared memory, and the pieces of a weight row that one lane multiplies with them.
//
// A piece is what a lane loads at once, and later multiplies: loading apart from multiplying puts several loads in flight, and lets them
// start before the activations are there.
#pragma once
#include "common.cuh"
#include "blocks.cuh"

template <bool WHICH, class A, class B> struct Choose { typedef A T; };
template <class A, class B> struct Choose<false, A, B> { typedef B T; };
template <class A, class B> struct Same { static const bool VALUE = false; };
template <class A> struct Same<A, A> { static const bool VALUE = true; };

// ---- four floats -----------------------------------------------------------------------------------------------------------------

// Weights `i..i + 4` of a row of `n` floats, 0 beyond its end. `i` is a multiple of 4.
template <class B> __device__ __forceinline__ float4 weights4(const u8* row, int i, int n) {
    static_assert(B::ELEMS == 1, "a float type");
    float4 w = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (i >= n) return w;
    if (n % 4 == 0) {
        if constexpr (Same<B, F32>::VALUE) return load_floats(reinterpret_cast<const float*>(row) + i);
        if constexpr (Same<B, F16>::VALUE) {
            uint2 v = load8(row + u64(i) * 2);
            return make_float4(h2f(u16(v.x)), h2f(u16(v.x >> 16)), h2f(u16(v.y)), h2f(u16(v.y >> 16)));
        }
        if constexpr (Same<B, BF16>::VALUE) {
            uint2 v = load8(row + u64(i) * 2);
            return make_float4(bf2f(u16(v.x)), bf2f(u16(v.x >> 16)), bf2f(u16(v.y)), bf2f(u16(v.y >> 16)));
        }
    }
    w.x = load_f<B>(row, i);
    if (i + 1 < n) w.y = load_f<B>(row, i + 1);
    if (i + 2 < n) w.z = load_f<B>(row, i + 2);
    if (i + 3 < n) w.w = load_f<B>(row, i + 3);
    return w;
}

// Activations `i..i + 4` of a row of `n`, 0 beyond its end.
__device__ __forceinline__ float4 inputs4(const float* row, int i, int n) {
    float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (i >= n) return x;
    if (n % 4 == 0) return *reinterpret_cast<const float4*>(row + i);
    x.x = row[i];
    if (i + 1 < n) x.y = row[i + 1];
    if (i + 2 < n) x.z = row[i + 2];
    if (i + 3 < n) x.w = row[i + 3];
    return x;
}

__device__ __forceinline__ float dot4(float4 a, float4 b, float sum) {
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

// ---- f32 activations -----------------------------------------------------------------------------------------------------------------

// Rows of activations as they are, each filled up with zeros to whole float4.
struct Floats {
    float* x;

    static __device__ __forceinline__ int width(int k) { return (k + 3) / 4 * 4; }

    __device__ __forceinline__ explicit Floats(float* room) : x(room) {}

    // Copies `count` rows of `k`: all threads of the block. The reader's barrier comes after.
    __device__ __forceinline__ void fill(const float* from, int k, int count) const {
        for (int r = 0; r < count; r++) {
            float4* row = reinterpret_cast<float4*>(x + r * width(k));
            for (int i = threadIdx.x * 4; i < k; i += blockDim.x * 4) row[i / 4] = inputs4(from + u64(r) * k, i, k);
        }
    }
};

// Where a row of a weight lies: the weight, its blocks in all, and the row's first block.
struct RowAt {
    const u8* weight;
    u64 blocks, first;
};

// Any quantised type: 32 weights, decoded when they are multiplied.
template <class B> struct DecodedPiece {
    static const int SPAN = 32;
    typename B::Raw raw;

    __device__ __forceinline__ void load(const RowAt& row, int piece, int) {
        B::load(raw, row.weight, row.blocks, row.first + piece / (B::ELEMS / 32), piece % (B::ELEMS / 32));
    }

    // The sum with the products with a row of activations added.
    __device__ __forceinline__ float dot(const Floats& x, int piece, float sum) const {
        Sub codes;
        B::expand(raw, piece % (B::ELEMS / 32), codes);
        float w[32];
        values32<B>(codes, w);
        const float4* v = reinterpret_cast<const float4*>(x.x + 32 * piece);
#pragma unroll
        for (int i = 0; i < 8; i++) sum = dot4(make_float4(w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3]), v[i], sum);
        return sum;
    }
};

// Floats: four weights.
template <class B> struct FloatPiece {
    static const int SPAN = 4;
    float4 w;

    __device__ __forceinline__ void load(const RowAt& row, int piece, int k) {
        w = weights4<B>(row.weight + row.first * B::BYTES, 4 * piece, k);
    }

    __device__ __forceinline__ float dot(const Floats& x, int piece, float sum) const {
        return dot4(w, reinterpret_cast<const float4*>(x.x)[piece], sum);
    }
};

// The pieces of a type.
template <class B> struct Pieces {
    typedef typename Choose<B::ELEMS == 1, FloatPiece<B>, DecodedPiece<B>>::T T;

    static __device__ __forceinline__ int count(int k) { return (k + T::SPAN - 1) / T::SPAN; }
    static __device__ __forceinline__ u64 blocks(int k) { return k / B::ELEMS; }
};
