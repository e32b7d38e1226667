// The 4-bit types whose codes name a level: IQ4_NL, IQ4_XS. Meaning: quant/src/iq4.rs; levels: IQ4_LEVELS in quant/src/tables.rs.
#pragma once
#include "blocks/legacy.cuh"

// -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113
constexpr Levels IQ4_LEVELS = {{0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u}};

__device__ __forceinline__ void levels32(const Levels& t, const u32* nibbles, u32* q) {
#pragma unroll
    for (int i = 0; i < 4; i++) levels8(t, nibbles[i], q[i], q[i + 4]);
}

// Planes: q[16], d.
struct IQ4_NL {
    static constexpr int ELEMS = 32, BYTES = 18, SCALES = 1, OFFSETS = 0;
    static constexpr bool INTEGER = true;
    typedef Nibbles Raw;
    static __device__ __forceinline__ void load(Raw& r, const u8* w, u64 n, u64 i, int sub) { Q4_0::load(r, w, n, i, sub); }
    static __device__ __forceinline__ void expand(const Raw& r, int, Sub& out) {
        levels32(IQ4_LEVELS, r.q, out.q);
        scale_of(out, h2f(u16(r.d)), 0.0f);
    }
};

// Planes: q[128], {d, scales_h (u16), scales_l[4]}.
struct IQ4_XS {
    static constexpr int ELEMS = 256, BYTES = 136, SCALES = 1, OFFSETS = 0;
    static constexpr bool INTEGER = true;
    struct Raw {
        u32 q[4];
        uint2 head;
    };
    static __device__ __forceinline__ void load(Raw& r, const u8* w, u64 n, u64 i, int sub) {
        put16(r.q, load16(field(w, n, i, 0, 128) + 16 * sub));
        r.head = load8(field(w, n, i, 128, 8));
    }
    static __device__ __forceinline__ void expand(const Raw& r, int sub, Sub& out) {
        levels32(IQ4_LEVELS, r.q, out.q);
        int low = r.head.y >> (4 * sub) & 15, high = r.head.x >> (16 + 2 * sub) & 3;
        scale_of(out, h2f(u16(r.head.x)) * float((low | high << 4) - 32), 0.0f);
    }
};
