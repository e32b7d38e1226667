// The 32-element formats without sub-scales: Q8_0, Q8_1, Q4_0, Q4_1, Q5_0, Q5_1. Meaning: quant/src/legacy.rs.
#pragma once
#include "blocks/bits.cuh"

// Planes: q[32], d.
struct Q8_0 {
    static constexpr int ELEMS = 32, BYTES = 34, SCALES = 1, OFFSETS = 0;
    static constexpr bool INTEGER = true;
    struct Raw {
        u32 q[8];
        u16 d;
    };
    static __device__ __forceinline__ void load(Raw& r, const u8* w, u64 n, u64 i, int) {
        const u8* q = field(w, n, i, 0, 32);
        put16(r.q, load16(q));
        put16(r.q + 4, load16(q + 16));
        r.d = load2(field(w, n, i, 32, 2));
    }
    static __device__ __forceinline__ void expand(const Raw& r, int, Sub& out) {
#pragma unroll
        for (int i = 0; i < 8; i++) out.q[i] = r.q[i];
        out.scale[0] = out.scale[1] = h2f(r.d);
        out.offset[0] = out.offset[1] = 0.0f;
    }
};

// Planes: q[32], {d, s}. `s` is for products with another such block, and not needed here.
struct Q8_1 {
    static constexpr int ELEMS = 32, BYTES = 36, SCALES = 1, OFFSETS = 0;
    static constexpr bool INTEGER = true;
    typedef Q8_0::Raw Raw;
    static __device__ __forceinline__ void load(Raw& r, const u8* w, u64 n, u64 i, int) {
        const u8* q = field(w, n, i, 0, 32);
        put16(r.q, load16(q));
        put16(r.q + 4, load16(q + 16));
        r.d = load2(field(w, n, i, 32, 4));
    }
    static __device__ __forceinline__ void expand(const Raw& r, int sub, Sub& out) { Q8_0::expand(r, sub, out); }
};

// Nibbles, perhaps fifth bits, one or two f16: what the 4- and 5-bit types of this family are made of.
struct Nibbles {
    u32 q[4];
    u32 high;
    // d, or d and m.
    u32 d;
};

// Low nibbles are elements 0 to 15, high ones 16 to 31; bit i of `high` is the fifth bit of element i.
template <bool FIFTH> __device__ __forceinline__ void nibbles32(const Nibbles& r, u32* q) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        q[i] = r.q[i] & 0x0f0f0f0fu;
        q[i + 4] = r.q[i] >> 4 & 0x0f0f0f0fu;
        if (FIFTH) {
            q[i] |= spread4(r.high >> (4 * i)) << 4;
            q[i + 4] |= spread4(r.high >> (16 + 4 * i)) << 4;
        }
    }
}

__device__ __forceinline__ void scale_of(Sub& out, float scale, float offset) {
    out.scale[0] = out.scale[1] = scale;
    out.offset[0] = out.offset[1] = offset;
}

// Planes: q[16], d.
struct Q4_0 {
    static constexpr int ELEMS = 32, BYTES = 18, SCALES = 1, OFFSETS = 0;
    static constexpr bool INTEGER = true;
    typedef Nibbles Raw;
    static __device__ __forceinline__ void load(Raw& r, const u8* w, u64 n, u64 i, int) {
        put16(r.q, load16(field(w, n, i, 0, 16)));
        r.d = load2(field(w, n, i, 16, 2));
    }
    static __device__ __forceinline__ void expand(const Raw& r, int, Sub& out) {
        nibbles32<false>(r, out.q);
#pragma unroll
        for (int i = 0; i < 8; i++) out.q[i] = minus4(out.q[i], 0x08080808u);
        scale_of(out, h2f(u16(r.d)), 0.0f);
    }
};

// Planes: q[16], {d, m}.
struct Q4_1 {
    static constexpr int ELEMS = 32, BYTES = 20, SCALES = 1, OFFSETS = 1;
    static constexpr bool INTEGER = true;
    typedef Nibbles Raw;
    static __device__ __forceinline__ void load(Raw& r, const u8* w, u64 n, u64 i, int) {
        put16(r.q, load16(field(w, n, i, 0, 16)));
        r.d = load4(field(w, n, i, 16, 4));
    }
    static __device__ __forceinline__ void expand(const Raw& r, int, Sub& out) {
        nibbles32<false>(r, out.q);
        scale_of(out, h2f(u16(r.d)), h2f(u16(r.d >> 16)));
    }
};

// Planes: q[16], high (u32), d.
struct Q5_0 {
    static constexpr int ELEMS = 32, BYTES = 22, SCALES = 1, OFFSETS = 0;
    static constexpr bool INTEGER = true;
    typedef Nibbles Raw;
    static __device__ __forceinline__ void load(Raw& r, const u8* w, u64 n, u64 i, int) {
        put16(r.q, load16(field(w, n, i, 0, 16)));
        r.high = load4(field(w, n, i, 16, 4));
        r.d = load2(field(w, n, i, 20, 2));
    }
    static __device__ __forceinline__ void expand(const Raw& r, int, Sub& out) {
        nibbles32<true>(r, out.q);
#pragma unroll
        for (int i = 0; i < 8; i++) out.q[i] = minus4(out.q[i], 0x10101010u);
        scale_of(out, h2f(u16(r.d)), 0.0f);
    }
};

// Planes: q[16], high (u32), {d, m}.
struct Q5_1 {
    static constexpr int ELEMS = 32, BYTES = 24, SCALES = 1, OFFSETS = 1;
    static constexpr bool INTEGER = true;
    typedef Nibbles Raw;
    static __device__ __forceinline__ void load(Raw& r, const u8* w, u64 n, u64 i, int) {
        put16(r.q, load16(field(w, n, i, 0, 16)));
        r.high = load4(field(w, n, i, 16, 4));
        r.d = load4(field(w, n, i, 20, 4));
    }
    static __device__ __forceinline__ void expand(const Raw& r, int, Sub& out) {
        nibbles32<true>(r, out.q);
        scale_of(out, h2f(u16(r.d)), h2f(u16(r.d >> 16)));
    }
};
