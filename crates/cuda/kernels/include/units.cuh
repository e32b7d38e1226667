// Units: what a warp reads of 16 weight rows at a time, and how it lies in the operands of a tensor core (sums.cuh multiplies).
//
// The product is `mma.m16n8k32` of bytes (mma.cuh): 16 weight rows are A, activations are B, sums are exact integers. Lane (g, p) holds
// parts of rows `tile_row(g)` and eight further. Which elements stand at which depth of the product does not matter as long as both sides
// agree, so nothing is moved between lanes.
//
// But the four lanes of a row then hold elements of several blocks of 32, each with a scale of its own, and one product would mix
// them. The eight columns keep them apart: a step is 128 elements, four blocks; column 4·t + j is block j of the pass's row t of
// activations, and zero wherever a lane holds another block. So a pass has two rows of activations, and weights are unpacked once
// for all passes. That takes more products than needed, of which a tensor
// core has plenty to spare.
//
//   SPAN, STEPS  elements of a unit: 128 for each step
//   FLIGHT       units that a warp requests before it uses the first. Host: `flight` in program/linear.rs
//   UNSIGNED     whether `q` are unsigned bytes
//   SLOT         bytes of shared memory that a unit takes on its way; 0: it goes to registers
//   From, from   where a lane reads a tile
//   copy         a unit into its slot, in the background, in whole rows of the unit. A lane that asks for its own
//                words asks for 64 bytes of a row, and for sectors of the second-level cache twice
//   load         or the words of a lane, into registers
//   Raw, read    the words of one row that a lane holds, from the slot: no arithmetic on them
//   expand       Raw to integers and scales, once for all rows of activations; for units of two steps in two parts, `ints` of a step and
//                `scales` of a pair of neighbouring blocks
//   block, half  which block of the step a lane's words 4·h .. 4·h + 3 belong to, and which half of it
//   SPLIT        whether halves, with scales of their own, are in different lanes: then each half is multiplied for itself
#pragma once
#include "blocks.cuh"
#include "mma.cuh"
#include "staged.cuh"

// Whether a block can have 227 KB of shared memory: many units can be on their way.
#if defined(GLIM_EMULATED) || __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000
constexpr bool ROOMY = true;
#else
constexpr bool ROOMY = false;
#endif

// Where 16 weight rows lie: their weight, the blocks of the whole weight, the first row's first block, the blocks of a row, and how many
// rows there are. What is beyond the last may be anything. 16 rows have less than 4 GB.
struct TileAt {
    const u8* weight;
    u64 blocks, first;
    u32 per_row;
    int rows;
};

// The row of a tile that lane (g, p) holds, besides the one eight further: rows of neighbouring g are four apart, which puts them into
// different banks in a slot of any type.
__device__ __forceinline__ int tile_row(int g) { return g / 2 + g % 2 * 4; }

// A place in a weight: its address, the blocks of the whole weight, a block.
struct WeightRow {
    const u8* weight;
    u64 blocks, first;
};

// A lane's words of a step of one weight row; scales and offsets are those of the blocks whose sums it gets, 2·(p % 2) and the next.
template <class B> struct Wide {
    u32 q[8];
    float scale[2][B::SCALES];
    float offset[2][B::OFFSETS > 0 ? B::OFFSETS : 1];
};

// Any type: lane p holds the whole block p of the step.
template <class B> struct Unit {
    static constexpr int SPAN = 128, STEPS = 1;
    static constexpr int FLIGHT = sizeof(typename B::Raw) <= 28 ? 4 : 2;
    static constexpr bool UNSIGNED = false, SPLIT = false;
    static constexpr int PER_BLOCK = B::ELEMS / 32;
    static constexpr int SLOT = 0;
    typedef typename B::Raw Raw;
    struct From {
        WeightRow row[2];
    };
    static __device__ __forceinline__ int block(int, int p) { return p; }
    static __device__ __forceinline__ int half(int h, int) { return h; }
    static __device__ __forceinline__ From from(const TileAt& t, int lane) {
        From out;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            out.row[r] = {t.weight, t.blocks, t.first + u32(min(tile_row(lane / 4) + 8 * r, t.rows - 1)) * t.per_row};
        }
        return out;
    }
    static __device__ __forceinline__ void load(Raw (&raw)[2], const From& from, int unit, int lane, int k) {
        int i = 4 * unit + lane % 4;
        if (32 * i >= k) return;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const WeightRow& row = from.row[r];
            B::load(raw[r], row.weight, row.blocks, row.first + i / PER_BLOCK, i % PER_BLOCK);
        }
    }
    static __device__ __forceinline__ void expand(Wide<B>& w, const Raw& r, int unit, int p, int k) {
        Sub s;
        B::expand(r, (4 * unit + p) % PER_BLOCK, s);
        // Nothing was loaded beyond the row's end.
        bool is_there = 32 * (4 * unit + p) < k;
#pragma unroll
        for (int i = 0; i < 8; i++) w.q[i] = s.q[i];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int from = int(threadIdx.x % WARP / 4 * 4) + p % 2 * 2 + i;
#pragma unroll
            for (int h = 0; h < B::SCALES; h++) w.scale[i][h] = __shfl_sync(FULL, is_there ? s.scale[h] : 0.0f, from);
#pragma unroll
            for (int h = 0; h < B::OFFSETS; h++) w.offset[i][h] = __shfl_sync(FULL, is_there ? s.offset[h] : 0.0f, from);
        }
    }
};

// 256 elements: eight blocks. Lane p holds half a block of each half of a step. A row of a slot: integers, then scales.
template <> struct Unit<Q8_0> {
    static constexpr int SPAN = 256, STEPS = 2, FLIGHT = ROOMY ? 2 : 1;
    static constexpr bool UNSIGNED = false, SPLIT = false;
    static constexpr int ROW = 272, SLOT = 16 * ROW;
    struct Raw {
        uint4 q[4];
        u32 d[2];
    };
    // 16 lanes copy a row's integers, two rows at a time, and each lane the scales of one.
    struct From {
        const u8 *q, *d;
        u32 step;
        int rows, rows_of_d;
    };
    static __device__ __forceinline__ int block(int h, int p) { return 2 * h + p / 2; }
    static __device__ __forceinline__ int half(int, int p) { return p % 2; }
    static __device__ __forceinline__ From from(const TileAt& t, int lane) {
        const u8* q = t.weight + t.first * 32 + u32(lane / 16) * t.per_row * 32 + 16 * (lane % 16);
        const u8* d = t.weight + t.blocks * 32 + t.first * 2 + u32(lane % 16) * t.per_row * 2;
        return {q, d, 2 * t.per_row * 32, (t.rows - lane / 16 + 1) / 2, lane < 16 ? t.rows - lane : 0};
    }
    static __device__ __forceinline__ void copy(u8* slot, const From& from, int unit, int lane, int k) {
        const int at = lane % 16 * 16;
        if (256 * unit + at < k) {
            const u8* q = from.q + 256 * unit;
            u8* to = slot + lane / 16 * ROW + at;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                if (i < from.rows) copy16(to + 2 * i * ROW, q + i * from.step);
            }
        }
        if (from.rows_of_d <= 0) return;
        u8* d = slot + lane * ROW + 256;
        if (k % 256 == 0) {
            copy16(d, from.d + 16 * unit);
        } else {
            // A row of scales begins anywhere.
#pragma unroll
            for (int i = 0; i < 8; i++) {
                reinterpret_cast<u16*>(d)[i] = 32 * (8 * unit + i) < k ? load2(from.d + 16 * unit + 2 * i) : 0;
            }
        }
    }
    static __device__ __forceinline__ void read(Raw& r, const u8* row, int p) {
#pragma unroll
        for (int i = 0; i < 4; i++) r.q[i] = *reinterpret_cast<const uint4*>(row + 64 * i + 16 * p);
#pragma unroll
        for (int i = 0; i < 2; i++) r.d[i] = *reinterpret_cast<const u32*>(row + 256 + 8 * i + 4 * (p % 2));
    }
    static __device__ __forceinline__ void ints(u32* q, const Raw& r, int step, int) {
        put16(q, r.q[2 * step]), put16(q + 4, r.q[2 * step + 1]);
    }
    static __device__ __forceinline__ void scales(Wide<Q8_0>& w, const Raw& r, int pair) {
        const u32 d = pair < 2 ? r.d[0] : r.d[1];
        w.scale[0][0] = h2f(u16(d)), w.scale[1][0] = h2f(u16(d >> 16));
    }
};

// Super-blocks of BYTES that lie as stored: ACROSS of them are copied at a time, one of each row, by as many lanes as have 16 bytes.
template <int BYTES> struct StoredUnit {
    static constexpr int SPAN = 256, STEPS = 2, FLIGHT = ROOMY ? 3 : 2;
    static constexpr int SLOT = 16 * BYTES, LANES = BYTES / 16, ACROSS = WARP / LANES;
    // The lane's first row, the bytes to its next, and how many it has.
    struct From {
        const u8* at;
        u32 step;
        int rows;
    };
    static __device__ __forceinline__ int block(int h, int p) { return p / 2 * 2 + h; }
    static __device__ __forceinline__ int half(int, int p) { return p % 2; }
    static __device__ __forceinline__ From from(const TileAt& t, int lane) {
        const u32 row = u32(lane) / LANES, bytes = t.per_row * BYTES;
        const u8* at = t.weight + t.first * BYTES + row * bytes + 16 * (lane % LANES);
        return {at, ACROSS * bytes, row < ACROSS ? (t.rows - int(row) + ACROSS - 1) / ACROSS : 0};
    }
    static __device__ __forceinline__ void copy(u8* slot, const From& from, int unit, int lane, int) {
        const u8* at = from.at + unit * BYTES;
        slot += 16 * lane;
#pragma unroll
        for (int i = 0; i < (16 + ACROSS - 1) / ACROSS; i++) {
            if (i < from.rows) copy16(slot + i * ACROSS * BYTES, at + i * from.step);
        }
    }
};

// Scales and offsets of blocks 2·pair and the next of a super-block, from the 16 bytes that Q4_K and Q5_K begin with; see `k_scales`. `odd`,
// a power of two, is a factor of the odd blocks' scales.
template <class B> __device__ __forceinline__ void k_pair(Wide<B>& w, const uint4& head, int pair, float odd) {
    const int shift = pair % 2 * 16;
    u32 scales = head.y >> shift, minima = head.z >> shift;
    if (pair >= 2) {
        const u32 low = head.w >> shift;
        scales = (low & 0x0f0f) | (scales >> 2 & 0x3030);
        minima = (low >> 4 & 0x0f0f) | (minima >> 2 & 0x3030);
    }
    const float d = h2f(u16(head.x)), least = -h2f(u16(head.x >> 16));
    w.scale[0][0] = d * float(scales & 63), w.scale[1][0] = d * odd * float(scales >> 8 & 63);
    w.offset[0][0] = least * float(minima & 63), w.offset[1][0] = least * float(minima >> 8 & 63);
}

// A super-block. Lane p holds 16 bytes of each step: half of two neighbouring blocks, one in low nibbles, one in high ones. The high ones
// stay where they are, so the sums of odd blocks are 16 times too large.
template <> struct Unit<Q4_K> : StoredUnit<144> {
    static constexpr bool UNSIGNED = true, SPLIT = false;
    static constexpr int ROW = 144;
    struct Raw {
        uint4 q[2], head;
    };
    static __device__ __forceinline__ void read(Raw& r, const u8* row, int p) {
        r.head = *reinterpret_cast<const uint4*>(row);
#pragma unroll
        for (int i = 0; i < 2; i++) r.q[i] = *reinterpret_cast<const uint4*>(row + 16 + 64 * i + 16 * p);
    }
    static __device__ __forceinline__ void ints(u32* q, const Raw& r, int step, int) {
        u32 both[4];
        put16(both, r.q[step]);
#pragma unroll
        for (int i = 0; i < 4; i++) q[i] = both[i] & 0x0f0f0f0fu, q[i + 4] = both[i] & 0xf0f0f0f0u;
    }
    static __device__ __forceinline__ void scales(Wide<Q4_K>& w, const Raw& r, int pair) { k_pair(w, r.head, pair, 0.0625f); }
};

// As Q4_K, with a fifth bit.
template <> struct Unit<Q5_K> : StoredUnit<176> {
    static constexpr bool UNSIGNED = false, SPLIT = false;
    static constexpr int ROW = 176;
    struct Raw {
        uint4 q[2], high, head;
    };
    static __device__ __forceinline__ void read(Raw& r, const u8* row, int p) {
        r.head = *reinterpret_cast<const uint4*>(row);
        r.high = *reinterpret_cast<const uint4*>(row + 16 + 16 * (p % 2));
#pragma unroll
        for (int i = 0; i < 2; i++) r.q[i] = *reinterpret_cast<const uint4*>(row + 48 + 64 * i + 16 * p);
    }
    static __device__ __forceinline__ void ints(u32* q, const Raw& r, int step, int p) {
        u32 both[4], high[4];
        put16(both, r.q[step]), put16(high, r.high);
        const int bit = 4 * step + p / 2 * 2;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            q[i] = (both[i] & 0x0f0f0f0fu) | (high[i] >> bit & 0x01010101u) << 4;
            q[i + 4] = (both[i] >> 4 & 0x0f0f0f0fu) | (high[i] >> (bit + 1) & 0x01010101u) << 4;
        }
    }
    static __device__ __forceinline__ void scales(Wide<Q5_K>& w, const Raw& r, int pair) { k_pair(w, r.head, pair, 1.0f); }
};

// Half of a super-block, which is four runs of 32 whose codes share bytes. Lane p holds half a run in low nibbles and half of the run
// after the next in high ones.
template <> struct Unit<Q6_K> {
    static constexpr int SPAN = 128, STEPS = 1, FLIGHT = 3;
    static constexpr bool UNSIGNED = false, SPLIT = true;
    struct Raw {
        uint4 low, high;
        u32 scales;
        u16 d;
    };
    static constexpr int SLOT = 0;
    struct From {
        const u8 *low[2], *high[2], *scales[2], *d[2];
    };
    static __device__ __forceinline__ int block(int h, int p) { return 2 * h + p / 2; }
    static __device__ __forceinline__ int half(int, int p) { return p % 2; }
    static __device__ __forceinline__ From from(const TileAt& t, int lane) {
        const int p = lane % 4;
        From out;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const u64 first = t.first + u32(min(tile_row(lane / 4) + 8 * r, t.rows - 1)) * t.per_row;
            out.low[r] = field(t.weight, t.blocks, first, 0, 128) + 16 * p;
            out.high[r] = field(t.weight, t.blocks, first, 128, 64) + 16 * (p % 2);
            out.scales[r] = field(t.weight, t.blocks, first, 192, 16) + 4 * (p % 2);
            out.d[r] = field(t.weight, t.blocks, first, 208, 2);
        }
        return out;
    }
    static __device__ __forceinline__ void load(Raw (&raw)[2], const From& from, int unit, int, int) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            raw[r].low = load16(from.low[r] + 64 * unit), raw[r].high = load16(from.high[r] + 32 * unit);
            raw[r].scales = load4(from.scales[r] + 8 * unit);
            raw[r].d = load2(from.d[r] + 2 * (unit / 2));
        }
    }
    static __device__ __forceinline__ void expand(Wide<Q6_K>& w, const Raw& r, int, int p, int) {
        u32 low[4], high[4];
        put16(low, r.low), put16(high, r.high);
        int bit = 2 * (p / 2);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            w.q[i] = minus4((low[i] & 0x0f0f0f0fu) | (high[i] >> bit & 0x03030303u) << 4, 0x20202020u);
            w.q[i + 4] = minus4((low[i] >> 4 & 0x0f0f0f0fu) | (high[i] >> (bit + 4) & 0x03030303u) << 4, 0x20202020u);
        }
        float d = h2f(r.d);
#pragma unroll
        for (int i = 0; i < 4; i++) w.scale[i / 2][i % 2] = d * float(i8(r.scales >> (8 * i)));
    }
};
