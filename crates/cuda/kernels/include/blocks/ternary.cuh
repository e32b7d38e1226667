// Types with three levels: TQ1_0, TQ2_0. Meaning: quant/src/ternary.rs.
#pragma once
#include "blocks/legacy.cuh"

// Planes: q[48], high[4], d.
struct TQ1_0 {
    static constexpr int ELEMS = 256, BYTES = 54, SCALES = 1, OFFSETS = 0;
    static constexpr bool INTEGER = true;
    // 32 elements are one digit of 32 bytes (sub-blocks 0 to 4), two digits of 16 (5 and 6); the last takes a digit of 16 bytes
    // and four digits of `high`.
    struct Raw {
        u32 q[8];
        u32 high;
        u16 d;
    };
    static __device__ __forceinline__ void load(Raw& r, const u8* w, u64 n, u64 i, int sub) {
        const u8* q = field(w, n, i, 0, 48);
        put16(r.q, load16(q + (sub < 5 ? 0 : 32)));
        if (sub < 5) put16(r.q + 4, load16(q + 16));
        r.high = load4(field(w, n, i, 48, 4));
        r.d = load2(field(w, n, i, 52, 2));
    }
    // Digit `t` of four bytes, less one: the byte times 3^t, without what overflows, is a fraction whose first digit it is.
    static __device__ __forceinline__ u32 digits(u32 bytes, int t) {
        u32 power = t == 0 ? 1 : t == 1 ? 3 : t == 2 ? 9 : t == 3 ? 27 : 81, out = 0;
#pragma unroll
        for (int b = 0; b < 4; b++) {
            u32 fraction = (bytes >> (8 * b) & 0xff) * power & 0xff;
            out |= (fraction * 3 >> 8) << (8 * b);
        }
        return minus4(out, 0x01010101u);
    }
    static __device__ __forceinline__ void expand(const Raw& r, int sub, Sub& out) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
            int second = j / 4;
            if (sub < 5) {
                out.q[j] = digits(r.q[j], sub);
            } else if (sub == 7 && second) {
                out.q[j] = digits(r.high, j % 4);
            } else {
                out.q[j] = digits(r.q[j % 4], 2 * (sub - 5) + second);
            }
        }
        scale_of(out, h2f(r.d), 0.0f);
    }
};

// Planes: q[64], d.
struct TQ2_0 {
    static constexpr int ELEMS = 256, BYTES = 66, SCALES = 1, OFFSETS = 0;
    static constexpr bool INTEGER = true;
    typedef Q8_0::Raw Raw;
    static __device__ __forceinline__ void load(Raw& r, const u8* w, u64 n, u64 i, int sub) {
        const u8* q = field(w, n, i, 0, 64) + 32 * (sub / 4);
        put16(r.q, load16(q));
        put16(r.q + 4, load16(q + 16));
        r.d = load2(field(w, n, i, 64, 2));
    }
    static __device__ __forceinline__ void expand(const Raw& r, int sub, Sub& out) {
#pragma unroll
        for (int j = 0; j < 8; j++) out.q[j] = minus4(r.q[j] >> (2 * (sub % 4)) & 0x03030303u, 0x01010101u);
        scale_of(out, h2f(r.d), 0.0f);
    }
};
