// Units: what one thread of a matrix-vector product reads of a weight row at a time, and multiplies.
//
// Any type has a unit of 32 elements, made of `load` and `expand` of blocks.cuh. The types that most weights have get units of their
// own, cut so that neighbouring threads read neighbouring 16 bytes: of a 32-byte piece that one thread reads in two loads, each
// load would fetch the other half from the second-level cache again.
//
//   PER_BLOCK  units of a block
//   FLIGHT     units that a thread requests before it uses the first
//   load       the words of unit `unit` (row · units a row + unit of the row): no arithmetic on them
//   expand     to integers and scales, once for all rows of activations
//   add        acc += unit · x, for one row of activations; `unit` counts from the row's beginning
#pragma once
#include "blocks.cuh"
#include "q8.cuh"

__device__ __forceinline__ int dot4(const u32* w, uint4 x) {
    int dot = __dp4a(int(w[0]), int(x.x), 0);
    dot = __dp4a(int(w[1]), int(x.y), dot);
    dot = __dp4a(int(w[2]), int(x.z), dot);
    return __dp4a(int(w[3]), int(x.w), dot);
}

// 16 activations: piece `i` of a row.
__device__ __forceinline__ uint4 piece(const Q8& x, int i) { return reinterpret_cast<const uint4*>(x.q)[i]; }

template <class B> struct Unit {
    static constexpr int PER_BLOCK = B::ELEMS / 32;
    static constexpr int FLIGHT = sizeof(typename B::Raw) <= 28 ? 4 : 2;
    typedef typename B::Raw Raw;
    typedef Sub Wide;
    static __device__ __forceinline__ void load(Raw& r, const u8* w, u64 blocks, u64 unit) {
        B::load(r, w, blocks, unit / PER_BLOCK, int(unit % PER_BLOCK));
    }
    static __device__ __forceinline__ void expand(Wide& w, const Raw& r, int unit) { B::expand(r, unit % PER_BLOCK, w); }
    static __device__ __forceinline__ void add(float& acc, const Wide& w, int unit, const Q8& x) {
        int first = dot4(w.q, piece(x, 2 * unit)), second = dot4(w.q + 4, piece(x, 2 * unit + 1));
        float d = x.d[unit];
        if constexpr (B::SCALES == 1) {
            acc = fmaf(w.scale[0] * d, float(first + second), acc);
        } else {
            acc = fmaf(w.scale[0] * d, float(first), acc);
            acc = fmaf(w.scale[1] * d, float(second), acc);
        }
        if constexpr (B::OFFSETS > 0) {
            acc = fmaf(w.offset[0], x.s[2 * unit], acc);
            acc = fmaf(w.offset[1], x.s[2 * unit + 1], acc);
        }
    }
};

// 16 elements: 16 bytes.
template <> struct Unit<Q8_0> {
    static constexpr int PER_BLOCK = 2, FLIGHT = 4;
    struct Raw {
        uint4 q;
        u16 d;
    };
    struct Wide {
        u32 q[4];
        float d;
    };
    static __device__ __forceinline__ void load(Raw& r, const u8* w, u64 blocks, u64 unit) {
        r.q = load16(w + 16 * unit);
        r.d = load2(field(w, blocks, unit / 2, 32, 2));
    }
    static __device__ __forceinline__ void expand(Wide& w, const Raw& r, int) {
        put16(w.q, r.q);
        w.d = h2f(r.d);
    }
    static __device__ __forceinline__ void add(float& acc, const Wide& w, int unit, const Q8& x) {
        acc = fmaf(w.d * x.d[unit / 2], float(dot4(w.q, piece(x, unit))), acc);
    }
};

// Two pieces of 16 elements with scale and offset: what a unit of Q4_K and of Q5_K becomes.
struct KWide {
    u32 q[8];
    float scale[2];
    float offset[2];
};

// Scales of the sub-blocks whose nibbles the unit holds: units 2g and 2g + 1 are the halves of sub-blocks 2g and 2g + 1.
__device__ __forceinline__ void k_unit_scales(KWide& w, const uint4& head, int unit) {
    Sub s;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        k_scales(head, (unit & 6) + i, s);
        w.scale[i] = s.scale[0];
        w.offset[i] = s.offset[0];
    }
}

__device__ __forceinline__ void k_unit_add(float& acc, const KWide& w, int unit, const Q8& x) {
    // The unit's first piece of 16; the second is 32 elements later.
    int i = unit / 2 * 4 + unit % 2;
    acc = fmaf(w.scale[0] * x.d[i / 2], float(dot4(w.q, piece(x, i))), acc);
    acc = fmaf(w.scale[1] * x.d[i / 2 + 1], float(dot4(w.q + 4, piece(x, i + 2))), acc);
    acc = fmaf(w.offset[0], x.s[i], acc);
    acc = fmaf(w.offset[1], x.s[i + 2], acc);
}

// 2 · 16 elements: 16 bytes, low nibbles and high ones; the head is the same 16 bytes for eight neighbours.
template <> struct Unit<Q4_K> {
    static constexpr int PER_BLOCK = 8, FLIGHT = 3;
    struct Raw {
        uint4 q, head;
    };
    typedef KWide Wide;
    static __device__ __forceinline__ void load(Raw& r, const u8* w, u64, u64 unit) {
        const u8* block = w + unit / 8 * Q4_K::BYTES;
        r.q = load16(block + 16 + 16 * (unit % 8));
        r.head = load16(block);
    }
    static __device__ __forceinline__ void expand(Wide& w, const Raw& r, int unit) {
        u32 q[4];
        put16(q, r.q);
#pragma unroll
        for (int i = 0; i < 4; i++) w.q[i] = q[i] & 0x0f0f0f0fu, w.q[i + 4] = q[i] >> 4 & 0x0f0f0f0fu;
        k_unit_scales(w, r.head, unit);
    }
    static __device__ __forceinline__ void add(float& acc, const Wide& w, int unit, const Q8& x) { k_unit_add(acc, w, unit, x); }
};

template <> struct Unit<Q5_K> {
    static constexpr int PER_BLOCK = 8, FLIGHT = 2;
    struct Raw {
        uint4 q, high, head;
    };
    typedef KWide Wide;
    static __device__ __forceinline__ void load(Raw& r, const u8* w, u64, u64 unit) {
        const u8* block = w + unit / 8 * Q5_K::BYTES;
        r.q = load16(block + 48 + 16 * (unit % 8));
        r.high = load16(block + 16 + 16 * (unit % 2));
        r.head = load16(block);
    }
    static __device__ __forceinline__ void expand(Wide& w, const Raw& r, int unit) {
        u32 q[4], high[4];
        put16(q, r.q), put16(high, r.high);
        int sub = unit & 6;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            w.q[i] = (q[i] & 0x0f0f0f0fu) | (high[i] >> sub & 0x01010101u) << 4;
            w.q[i + 4] = (q[i] >> 4 & 0x0f0f0f0fu) | (high[i] >> (sub + 1) & 0x01010101u) << 4;
        }
        k_unit_scales(w, r.head, unit);
    }
    static __device__ __forceinline__ void add(float& acc, const Wide& w, int unit, const Q8& x) { k_unit_add(acc, w, unit, x); }
};

// 4 · 16 elements, one piece of each run of a half of a block: 32 bytes of low bits, 16 of high ones.
template <> struct Unit<Q6_K> {
    static constexpr int PER_BLOCK = 4, FLIGHT = 2;
    struct Raw {
        uint4 low[2], high;
        u32 scales[2];
        u16 d;
    };
    struct Wide {
        u32 q[16];
        float scale[4];
    };
    static __device__ __forceinline__ void load(Raw& r, const u8* w, u64 blocks, u64 unit) {
        u64 block = unit / 4;
        int half = int(unit / 2 % 2), part = int(unit % 2);
        const u8* low = field(w, blocks, block, 0, 128) + 64 * half + 16 * part;
        const u8* scales = field(w, blocks, block, 192, 16) + 8 * half;
        r.low[0] = load16(low), r.low[1] = load16(low + 32);
        r.high = load16(field(w, blocks, block, 128, 64) + 32 * half + 16 * part);
        r.scales[0] = load4(scales), r.scales[1] = load4(scales + 4);
        r.d = load2(field(w, blocks, block, 208, 2));
    }
    static __device__ __forceinline__ void expand(Wide& w, const Raw& r, int unit) {
        u32 low[8], high[4];
        put16(low, r.low[0]), put16(low + 4, r.low[1]), put16(high, r.high);
        float d = h2f(r.d);
#pragma unroll
        for (int run = 0; run < 4; run++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 code = low[4 * (run % 2) + i] >> (4 * (run / 2)) & 0x0f0f0f0fu;
                w.q[4 * run + i] = minus4(code | (high[i] >> (2 * run) & 0x03030303u) << 4, 0x20202020u);
            }
            // Scale 2 · run + part of the half's eight.
            w.scale[run] = d * float(i8(r.scales[run / 2] >> (16 * (run % 2) + 8 * (unit % 2))));
        }
    }
    static __device__ __forceinline__ void add(float& acc, const Wide& w, int unit, const Q8& x) {
        int first = unit / 2 * 8 + unit % 2;
#pragma unroll
        for (int run = 0; run < 4; run++) {
            int i = first + 2 * run;
            acc = fmaf(w.scale[run] * x.d[i / 2], float(dot4(w.q + 4 * run, piece(x, i))), acc);
        }
    }
};
