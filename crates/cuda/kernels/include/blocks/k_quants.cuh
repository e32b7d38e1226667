// The 256-element super-blocks: Q2_K to Q6_K, and Q8_K. Meaning: quant/src/k_quants.rs.
#pragma once
#include "blocks/bits.cuh"

// Planes: q[64], scales[16], {d, dmin}. A byte of `scales` is scale and minimum of 16 elements.
struct Q2_K {
    static constexpr int ELEMS = 256, BYTES = 84, SCALES = 2, OFFSETS = 2;
    static constexpr bool INTEGER = true;
    struct Raw {
        u32 q[8];
        u32 d;
        u16 scales;
    };
    static __device__ __forceinline__ void load(Raw& r, const u8* w, u64 n, u64 i, int sub) {
        const u8* q = field(w, n, i, 0, 64) + 32 * (sub / 4);
        put16(r.q, load16(q));
        put16(r.q + 4, load16(q + 16));
        r.scales = load2(field(w, n, i, 64, 16) + 2 * sub);
        r.d = load4(field(w, n, i, 80, 4));
    }
    static __device__ __forceinline__ void expand(const Raw& r, int sub, Sub& out) {
#pragma unroll
        for (int j = 0; j < 8; j++) out.q[j] = r.q[j] >> (2 * (sub % 4)) & 0x03030303u;
        float d = h2f(u16(r.d)), dmin = h2f(u16(r.d >> 16));
#pragma unroll
        for (int half = 0; half < 2; half++) {
            out.scale[half] = d * float(r.scales >> (8 * half) & 15);
            out.offset[half] = -(dmin * float(r.scales >> (8 * half + 4) & 15));
        }
    }
};

// Planes: q[64], hmask[32], scales[12], d. Bit `sub` of `hmask` is a code's third bit; where it is clear, 4 is subtracted.
struct Q3_K {
    static constexpr int ELEMS = 256, BYTES = 110, SCALES = 2, OFFSETS = 0;
    static constexpr bool INTEGER = true;
    struct Raw {
        u32 q[8];
        u32 high[8];
        u32 scales[3];
        u16 d;
    };
    static __device__ __forceinline__ void load(Raw& r, const u8* w, u64 n, u64 i, int sub) {
        const u8* q = field(w, n, i, 0, 64) + 32 * (sub / 4);
        const u8* high = field(w, n, i, 64, 32);
        const u8* scales = field(w, n, i, 96, 12);
        put16(r.q, load16(q));
        put16(r.q + 4, load16(q + 16));
        put16(r.high, load16(high));
        put16(r.high + 4, load16(high + 16));
        r.scales[0] = load4(scales), r.scales[1] = load4(scales + 4), r.scales[2] = load4(scales + 8);
        r.d = load2(field(w, n, i, 108, 2));
    }
    static __device__ __forceinline__ void expand(const Raw& r, int sub, Sub& out) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
            u32 low = r.q[j] >> (2 * (sub % 4)) & 0x03030303u, high = r.high[j] >> sub & 0x01010101u;
            out.q[j] = minus4(low | high << 2, 0x04040404u);
        }
        float d = h2f(r.d);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            // Scale i: four bits in a nibble of the first eight bytes, two in the last four.
            int i = 2 * sub + half;
            u32 word = sub % 4 < 2 ? r.scales[0] : r.scales[1];
            u32 low = word >> (8 * (i % 4) + 4 * (i / 8)) & 15;
            u32 high = r.scales[2] >> (8 * (i % 4) + 2 * (i / 4)) & 3;
            out.scale[half] = d * float(int(low | high << 4) - 32);
            out.offset[half] = 0.0f;
        }
    }
};

// What the first 16 bytes of Q4_K and Q5_K say of a sub-block. Words 1 to 3 hold scales and minima of six bits: those of
// sub-blocks 0 to 3 in the low six of words 1 and 2; of 4 to 7 the low four in the nibbles of word 3, the top two above the others.
__device__ __forceinline__ void k_scales(const uint4& head, int sub, Sub& out) {
    int shift = 8 * (sub % 4);
    u32 a = head.y >> shift, b = head.z >> shift, c = head.w >> shift;
    u32 scale = sub < 4 ? a & 63 : (c & 15) | (a >> 6 & 3) << 4;
    u32 min = sub < 4 ? b & 63 : (c >> 4 & 15) | (b >> 6 & 3) << 4;
    out.scale[0] = out.scale[1] = h2f(u16(head.x)) * float(scale);
    out.offset[0] = out.offset[1] = -(h2f(u16(head.x >> 16)) * float(min));
}

// As stored: {d, dmin, scales[12]}, q[128]. 32 bytes are sub-blocks 2g (low nibbles) and 2g + 1.
struct Q4_K {
    static constexpr int ELEMS = 256, BYTES = 144, SCALES = 1, OFFSETS = 1;
    static constexpr bool INTEGER = true;
    struct Raw {
        u32 q[8];
        uint4 head;
    };
    static __device__ __forceinline__ void load(Raw& r, const u8* w, u64, u64 i, int sub) {
        const u8* block = w + i * BYTES;
        const u8* q = block + 16 + 32 * (sub / 2);
        put16(r.q, load16(q));
        put16(r.q + 4, load16(q + 16));
        r.head = load16(block);
    }
    static __device__ __forceinline__ void expand(const Raw& r, int sub, Sub& out) {
#pragma unroll
        for (int j = 0; j < 8; j++) out.q[j] = r.q[j] >> (4 * (sub % 2)) & 0x0f0f0f0fu;
        k_scales(r.head, sub, out);
    }
};

// As stored: {d, dmin, scales[12]}, high[32], q[128]. As Q4_K, and bit `sub` of `high` is the fifth bit of a code.
struct Q5_K {
    static constexpr int ELEMS = 256, BYTES = 176, SCALES = 1, OFFSETS = 1;
    static constexpr bool INTEGER = true;
    struct Raw {
        u32 q[8];
        u32 high[8];
        uint4 head;
    };
    static __device__ __forceinline__ void load(Raw& r, const u8* w, u64, u64 i, int sub) {
        const u8* block = w + i * BYTES;
        const u8* q = block + 48 + 32 * (sub / 2);
        put16(r.q, load16(q));
        put16(r.q + 4, load16(q + 16));
        put16(r.high, load16(block + 16));
        put16(r.high + 4, load16(block + 32));
        r.head = load16(block);
    }
    static __device__ __forceinline__ void expand(const Raw& r, int sub, Sub& out) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
            out.q[j] = (r.q[j] >> (4 * (sub % 2)) & 0x0f0f0f0fu) | (r.high[j] >> sub & 0x01010101u) << 4;
        }
        k_scales(r.head, sub, out);
    }
};

// Planes: low[128], high[64], i8 scales[16], d. Each half of 128 elements is four runs of 32: low bits in 64 bytes (runs 0 and 1
// in low nibbles), two bits each in 32 bytes of `high`.
struct Q6_K {
    static constexpr int ELEMS = 256, BYTES = 210, SCALES = 2, OFFSETS = 0;
    static constexpr bool INTEGER = true;
    struct Raw {
        u32 q[8];
        u32 high[8];
        u16 scales;
        u16 d;
    };
    static __device__ __forceinline__ void load(Raw& r, const u8* w, u64 n, u64 i, int sub) {
        const u8* q = field(w, n, i, 0, 128) + 64 * (sub / 4) + 32 * (sub % 2);
        const u8* high = field(w, n, i, 128, 64) + 32 * (sub / 4);
        put16(r.q, load16(q));
        put16(r.q + 4, load16(q + 16));
        put16(r.high, load16(high));
        put16(r.high + 4, load16(high + 16));
        r.scales = load2(field(w, n, i, 192, 16) + 2 * sub);
        r.d = load2(field(w, n, i, 208, 2));
    }
    static __device__ __forceinline__ void expand(const Raw& r, int sub, Sub& out) {
        int run = sub % 4;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            u32 low = r.q[j] >> (4 * (run / 2)) & 0x0f0f0f0fu, high = r.high[j] >> (2 * run) & 0x03030303u;
            out.q[j] = minus4(low | high << 4, 0x20202020u);
        }
        float d = h2f(r.d);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            out.scale[half] = d * float(i8(r.scales >> (8 * half)));
            out.offset[half] = 0.0f;
        }
    }
};

// Planes: q[256], bsums[32], d (f32). The sums are for products with types that have minima, and not needed here.
struct Q8_K {
    static constexpr int ELEMS = 256, BYTES = 292, SCALES = 1, OFFSETS = 0;
    static constexpr bool INTEGER = true;
    struct Raw {
        u32 q[8];
        u32 d;
    };
    static __device__ __forceinline__ void load(Raw& r, const u8* w, u64 n, u64 i, int sub) {
        const u8* q = field(w, n, i, 0, 256) + 32 * sub;
        put16(r.q, load16(q));
        put16(r.q + 4, load16(q + 16));
        r.d = load4(field(w, n, i, 288, 4));
    }
    static __device__ __forceinline__ void expand(const Raw& r, int, Sub& out) {
#pragma unroll
        for (int j = 0; j < 8; j++) out.q[j] = r.q[j];
        out.scale[0] = out.scale[1] = __uint_as_float(r.d);
        out.offset[0] = out.offset[1] = 0.0f;
    }
};
