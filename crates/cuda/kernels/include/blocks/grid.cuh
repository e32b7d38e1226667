// The types whose codes name rows of a grid: IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ1_S, IQ1_M. Meaning: quant/src/grid.rs.
//
// 32 elements are four runs of eight, each one row of eight entries (IQ1, IQ2) or two rows of four (IQ3). A row is 16 bits: two
// bits an entry, or four, which name levels. The grids together are 9 KB that way, and stay in the nearest cache.
#pragma once
#include "blocks/bits.cuh"
#include "blocks/iq_grids.cuh"

// Where each grid begins, in rows.
constexpr int IQ2_XXS_AT = 0, IQ2_XS_AT = 256, IQ2_S_AT = 768, IQ3_XXS_AT = 1792, IQ3_S_AT = 2048, IQ1_AT = 2560;

// Entries of the IQ2 grids: 8, 25, 43. Those of the IQ1 grid, in eighths and shifted by one: -7, 1, 9 and -9, -1, 7.
constexpr u32 IQ2_LEVELS = 0x002b1908u, IQ1_UP = 0x000901f9u, IQ1_DOWN = 0x0007fff7u;

// A row of eight entries: two words of signed bytes.
__device__ __forceinline__ uint2 row8(int row, u32 levels) {
    u32 x = IQ_GRIDS[row];
    // Eight pairs of bits to eight nibbles, which select bytes.
    x = (x | x << 8) & 0x00ff00ffu;
    x = (x | x << 4) & 0x0f0f0f0fu;
    x = (x | x << 2) & 0x33333333u;
    return make_uint2(pick4(levels, 0, x), pick4(levels, 0, x >> 16));
}

// A row of four entries of IQ3_XXS: 4, 12, 20, 28, 36, 44, 52, 62.
__device__ __forceinline__ u32 row_iq3_xxs(int row) { return pick4(0x1c140c04u, 0x3e342c24u, IQ_GRIDS[IQ3_XXS_AT + row]); }

// A row of four entries of IQ3_S: 1, 3, 5, 7, 9, 11, 13, 15.
__device__ __forceinline__ u32 row_iq3_s(int row) { return pick4(0x07050301u, 0x0f0d0b09u, IQ_GRIDS[IQ3_S_AT + row]); }

// Eight sign bits of seven: the number of minus signs is even.
__device__ __forceinline__ u32 even_signs(u32 code) {
    code &= 0x7f;
    return code | (u32(__popc(code)) & 1) << 7;
}

// Run `l` of a Sub: two words of magnitudes, negative where a bit of `signs` is set.
__device__ __forceinline__ void put_run(Sub& out, int l, uint2 words, u32 signs) {
    out.q[2 * l] = signed4(words.x, signs);
    out.q[2 * l + 1] = signed4(words.y, signs >> 4);
}

__device__ __forceinline__ void scales_of(Sub& out, float first, float second) {
    out.scale[0] = first, out.scale[1] = second;
    out.offset[0] = out.offset[1] = 0.0f;
}

__device__ __forceinline__ float iq2_scale(float d, u32 code) { return d * (0.5f + float(code & 15)) * 0.25f; }

// Planes: {rows, rest}[8] (u32), d.
struct IQ2_XXS {
    static constexpr int ELEMS = 256, BYTES = 66, SCALES = 1, OFFSETS = 0;
    static constexpr bool INTEGER = true;
    struct Raw {
        uint2 group;
        u16 d;
    };
    static __device__ __forceinline__ void load(Raw& r, const u8* w, u64 n, u64 i, int sub) {
        r.group = load8(field(w, n, i, 0, 64) + 8 * sub);
        r.d = load2(field(w, n, i, 64, 2));
    }
    static __device__ __forceinline__ void expand(const Raw& r, int, Sub& out) {
#pragma unroll
        for (int l = 0; l < 4; l++) {
            int row = int(r.group.x >> (8 * l) & 0xff);
            put_run(out, l, row8(IQ2_XXS_AT + row, IQ2_LEVELS), even_signs(r.group.y >> (7 * l)));
        }
        float scale = iq2_scale(h2f(r.d), r.group.y >> 28);
        scales_of(out, scale, scale);
    }
};

// Planes: q[32] (u16: nine bits of row, seven of signs), scales[8], d.
struct IQ2_XS {
    static constexpr int ELEMS = 256, BYTES = 74, SCALES = 2, OFFSETS = 0;
    static constexpr bool INTEGER = true;
    struct Raw {
        uint2 q;
        u8 scales;
        u16 d;
    };
    static __device__ __forceinline__ void load(Raw& r, const u8* w, u64 n, u64 i, int sub) {
        r.q = load8(field(w, n, i, 0, 64) + 8 * sub);
        r.scales = load1(field(w, n, i, 64, 8) + sub);
        r.d = load2(field(w, n, i, 72, 2));
    }
    static __device__ __forceinline__ void expand(const Raw& r, int, Sub& out) {
#pragma unroll
        for (int l = 0; l < 4; l++) {
            u32 q = (l < 2 ? r.q.x : r.q.y) >> (16 * (l % 2)) & 0xffff;
            put_run(out, l, row8(IQ2_XS_AT + int(q & 0x1ff), IQ2_LEVELS), even_signs(q >> 9));
        }
        float d = h2f(r.d);
        scales_of(out, iq2_scale(d, r.scales), iq2_scale(d, r.scales >> 4));
    }
};

// Planes: q[32], signs[32]; high[8], scales[8]; d.
struct IQ2_S {
    static constexpr int ELEMS = 256, BYTES = 82, SCALES = 2, OFFSETS = 0;
    static constexpr bool INTEGER = true;
    struct Raw {
        u32 q;
        u32 signs;
        u8 high;
        u8 scales;
        u16 d;
    };
    static __device__ __forceinline__ void load(Raw& r, const u8* w, u64 n, u64 i, int sub) {
        const u8* q = field(w, n, i, 0, 64) + 4 * sub;
        const u8* tail = field(w, n, i, 64, 16) + sub;
        r.q = load4(q), r.signs = load4(q + 32);
        r.high = load1(tail), r.scales = load1(tail + 8);
        r.d = load2(field(w, n, i, 80, 2));
    }
    static __device__ __forceinline__ void expand(const Raw& r, int, Sub& out) {
#pragma unroll
        for (int l = 0; l < 4; l++) {
            u32 row = (r.q >> (8 * l) & 0xff) | (u32(r.high) >> (2 * l) & 3) << 8;
            put_run(out, l, row8(IQ2_S_AT + int(row), IQ2_LEVELS), r.signs >> (8 * l));
        }
        float d = h2f(r.d);
        scales_of(out, iq2_scale(d, r.scales), iq2_scale(d, r.scales >> 4));
    }
};

// Planes: q[64], rest[8] (u32: signs and scale as in IQ2_XXS); d.
struct IQ3_XXS {
    static constexpr int ELEMS = 256, BYTES = 98, SCALES = 1, OFFSETS = 0;
    static constexpr bool INTEGER = true;
    struct Raw {
        uint2 q;
        u32 rest;
        u16 d;
    };
    static __device__ __forceinline__ void load(Raw& r, const u8* w, u64 n, u64 i, int sub) {
        const u8* block = field(w, n, i, 0, 96);
        r.q = load8(block + 8 * sub);
        r.rest = load4(block + 64 + 4 * sub);
        r.d = load2(field(w, n, i, 96, 2));
    }
    static __device__ __forceinline__ void expand(const Raw& r, int, Sub& out) {
#pragma unroll
        for (int l = 0; l < 4; l++) {
            u32 q = (l < 2 ? r.q.x : r.q.y) >> (16 * (l % 2));
            uint2 rows = make_uint2(row_iq3_xxs(int(q & 0xff)), row_iq3_xxs(int(q >> 8 & 0xff)));
            put_run(out, l, rows, even_signs(r.rest >> (7 * l)));
        }
        float scale = h2f(r.d) * (0.5f + float(r.rest >> 28)) * 0.5f;
        scales_of(out, scale, scale);
    }
};

// Planes: q[64], signs[32], high[8], scales[4], d.
struct IQ3_S {
    static constexpr int ELEMS = 256, BYTES = 110, SCALES = 1, OFFSETS = 0;
    static constexpr bool INTEGER = true;
    struct Raw {
        uint2 q;
        u32 signs;
        u8 high;
        u8 scales;
        u16 d;
    };
    static __device__ __forceinline__ void load(Raw& r, const u8* w, u64 n, u64 i, int sub) {
        r.q = load8(field(w, n, i, 0, 64) + 8 * sub);
        r.signs = load4(field(w, n, i, 64, 32) + 4 * sub);
        r.high = load1(field(w, n, i, 96, 8) + sub);
        r.scales = load1(field(w, n, i, 104, 4) + sub / 2);
        r.d = load2(field(w, n, i, 108, 2));
    }
    static __device__ __forceinline__ void expand(const Raw& r, int sub, Sub& out) {
#pragma unroll
        for (int l = 0; l < 4; l++) {
            u32 q = (l < 2 ? r.q.x : r.q.y) >> (16 * (l % 2)), high = u32(r.high) >> (2 * l);
            u32 first = (q & 0xff) | (high & 1) << 8, second = (q >> 8 & 0xff) | (high & 2) << 7;
            put_run(out, l, make_uint2(row_iq3_s(int(first)), row_iq3_s(int(second))), r.signs >> (8 * l));
        }
        float scale = h2f(r.d) * float(1 + 2 * (r.scales >> (4 * (sub % 2)) & 15));
        scales_of(out, scale, scale);
    }
};

// A run of IQ1: its entries are shifted up or down by an eighth, so they are 8 · entry ± 1 eighths.
__device__ __forceinline__ void put_iq1(Sub& out, int l, u32 row, bool down) {
    uint2 words = row8(IQ1_AT + int(row), down ? IQ1_DOWN : IQ1_UP);
    out.q[2 * l] = words.x;
    out.q[2 * l + 1] = words.y;
}

// Planes: q[32], high[8] (u16: three bits of row for each run, three of scale, one that shifts down); d.
struct IQ1_S {
    static constexpr int ELEMS = 256, BYTES = 50, SCALES = 1, OFFSETS = 0;
    static constexpr bool INTEGER = true;
    struct Raw {
        u32 q;
        u16 high;
        u16 d;
    };
    static __device__ __forceinline__ void load(Raw& r, const u8* w, u64 n, u64 i, int sub) {
        const u8* block = field(w, n, i, 0, 48);
        r.q = load4(block + 4 * sub);
        r.high = load2(block + 32 + 2 * sub);
        r.d = load2(field(w, n, i, 48, 2));
    }
    static __device__ __forceinline__ void expand(const Raw& r, int, Sub& out) {
#pragma unroll
        for (int l = 0; l < 4; l++) {
            u32 row = (r.q >> (8 * l) & 0xff) | (u32(r.high) >> (3 * l) & 7) << 8;
            put_iq1(out, l, row, r.high & 0x8000);
        }
        float scale = h2f(r.d) * float(2 * (r.high >> 12 & 7) + 1) * 0.125f;
        scales_of(out, scale, scale);
    }
};

// As stored: q[32], high[16] (a nibble for each run: three bits of row, one that shifts down), scales[4] (u16). The top nibbles of
// `scales` are d, the lowest first; below them are three bits of scale for each of four pairs of runs.
struct IQ1_M {
    static constexpr int ELEMS = 256, BYTES = 56, SCALES = 2, OFFSETS = 0;
    static constexpr bool INTEGER = true;
    struct Raw {
        u32 q;
        u16 high;
        uint2 scales;
    };
    static __device__ __forceinline__ void load(Raw& r, const u8* w, u64, u64 i, int sub) {
        const u8* block = w + i * BYTES;
        r.q = load4(block + 4 * sub);
        r.high = load2(block + 32 + 2 * sub);
        r.scales = load8(block + 48);
    }
    static __device__ __forceinline__ void expand(const Raw& r, int sub, Sub& out) {
#pragma unroll
        for (int l = 0; l < 4; l++) {
            u32 high = u32(r.high) >> (4 * l);
            put_iq1(out, l, (r.q >> (8 * l) & 0xff) | (high & 7) << 8, high & 8);
        }
        u32 x = r.scales.x, y = r.scales.y;
        float d = h2f(u16((x >> 12 & 0xf) | (x >> 24 & 0xf0) | (y >> 4 & 0xf00) | (y >> 16 & 0xf000)));
        u32 codes = (sub < 4 ? x : y) >> (16 * (sub / 2 % 2) + 6 * (sub % 2));
        scales_of(out, d * float(2 * (codes & 7) + 1) * 0.125f, d * float(2 * (codes >> 3 & 7) + 1) * 0.125f);
    }
};
