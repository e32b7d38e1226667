// Blocks of 4-bit floats (E2M1): MXFP4, NVFP4. Meaning: quant/src/fp4.rs; levels: FP4_LEVELS in quant/src/tables.rs.
#pragma once
#include "blocks/iq4.cuh"

// 0, 1, 2, 3, 4, 6, 8, 12, and their negatives.
constexpr Levels FP4_LEVELS = {{0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu}};

// 2^(e - 128): half of what an E8M0 says. The two smallest are subnormal.
__device__ __forceinline__ float half_e8m0(u32 e) { return __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23); }

// Half of what an unsigned E4M3 says; 0x7f, its NaN, is 0. The eighth bit is ignored, except that 0xff is then a number.
__device__ __forceinline__ float half_ue4m3(u32 x) {
    u32 exponent = x >> 3 & 15;
    float mantissa = float(x & 7);
    if (x == 0x7f) return 0.0f;
    if (exponent == 0) return mantissa * (1.0f / 1024.0f);
    return (1.0f + mantissa * 0.125f) * __uint_as_float((exponent + 127 - 7 - 1) << 23);
}

// Planes: q[16], e.
struct MXFP4 {
    static constexpr int ELEMS = 32, BYTES = 17, SCALES = 1, OFFSETS = 0;
    static constexpr bool INTEGER = true;
    struct Raw {
        u32 q[4];
        u8 e;
    };
    static __device__ __forceinline__ void load(Raw& r, const u8* w, u64 n, u64 i, int) {
        put16(r.q, load16(field(w, n, i, 0, 16)));
        r.e = load1(field(w, n, i, 16, 1));
    }
    static __device__ __forceinline__ void expand(const Raw& r, int, Sub& out) {
        levels32(FP4_LEVELS, r.q, out.q);
        scale_of(out, half_e8m0(r.e), 0.0f);
    }
};

// Planes: q[32], scales[4]. Of 16 elements the first eight are low nibbles, the others the high ones of the same bytes.
struct NVFP4 {
    static constexpr int ELEMS = 64, BYTES = 36, SCALES = 2, OFFSETS = 0;
    static constexpr bool INTEGER = true;
    struct Raw {
        u32 q[4];
        u16 scales;
    };
    static __device__ __forceinline__ void load(Raw& r, const u8* w, u64 n, u64 i, int sub) {
        put16(r.q, load16(field(w, n, i, 0, 32) + 16 * sub));
        r.scales = load2(field(w, n, i, 32, 4) + 2 * sub);
    }
    static __device__ __forceinline__ void expand(const Raw& r, int, Sub& out) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32* q = out.q + 4 * half;
            levels8(FP4_LEVELS, r.q[2 * half], q[0], q[2]);
            levels8(FP4_LEVELS, r.q[2 * half + 1], q[1], q[3]);
            out.scale[half] = half_ue4m3(r.scales >> (8 * half) & 0xff);
            out.offset[half] = 0.0f;
        }
    }
};
