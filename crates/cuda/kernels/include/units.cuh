// Units: what a warp reads of 16 weight rows at a time, and multiplies with up to ROWS rows of activations on tensor cores.
//
// The product is `mma.m16n8k32` of bytes (mma.cuh): 16 weight rows are A, activations are B, sums are exact integers. Lane (g, p) holds
// parts of rows `tile_row(g)` and eight further. Which elements stand at which depth of the product does not matter as long as both sides
// agree, so nothing is moved between lanes.
//
// But the four lanes of a row then hold elements of several blocks of 32, each with a scale of its own, and one product would mix
// them. The eight columns keep them apart: a step is 128 elements, four blocks; column 4·t + j is block j of the pass's row t of
// activations, and zero wherever a lane holds another block. So a pass has two rows of activations, and weights are unpacked once
// for all passes. A tensor core has room for that: at full bandwidth, 16 rows of activations keep it busy half of the time.
//
//   SPAN, STEPS  elements of a unit: 128 for each step
//   FLIGHT       units that a warp requests before it uses the first. Host: `flight` in program/linear.rs
//   UNSIGNED     whether `q` are unsigned bytes
//   SLOT         bytes of shared memory that a unit takes on its way; 0: it goes to registers
//   From, from   where a lane reads a tile
//   copy         a unit into its slot, in the background: a warp's requests are long pieces of rows then. A lane that asks for its own
//                words asks for 64 bytes a row, and the path to the second-level cache is full with half of the bandwidth
//   load         or the words of a lane, into registers
//   Raw, read    the words of one row that a lane holds, from the slot: no arithmetic on them
//   expand       Raw to integers and scales, once for all rows of activations
//   block, half  which block of the step a lane's words 4·h .. 4·h + 3 belong to, and which half of it
//   SPLIT        whether halves, with scales of their own, are in different lanes: then each half is multiplied for itself
//
// Order of summation, for each weight row and row of activations: the lane of blocks 0 and 1 of each step, and the lane of 2 and 3, add
// up their blocks unit by unit, scaled integers before offsets; then the two are added. No form of the kernel has another order.
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
// rows there are. What is beyond the last may be anything.
struct TileAt {
    const u8* weight;
    u64 blocks, first, per_row;
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
            out.row[r] = {t.weight, t.blocks, t.first + u64(min(tile_row(lane / 4) + 8 * r, t.rows - 1)) * t.per_row};
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
    static __device__ __forceinline__ void expand(Wide<B>& w, const Raw& r, int unit, int, int p, int k) {
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
    // Two lanes' rows at a time: 16 lanes copy a row's integers.
    struct From {
        const u8 *q, *d;
        u64 step;
        int rows;
    };
    static __device__ __forceinline__ int block(int h, int p) { return 2 * h + p / 2; }
    static __device__ __forceinline__ int half(int, int p) { return p % 2; }
    static __device__ __forceinline__ From from(const TileAt& t, int lane) {
        return {field(t.weight, t.blocks, t.first + u64(lane / 16) * t.per_row, 0, 32) + 16 * (lane % 16),
                field(t.weight, t.blocks, t.first + u64(lane % 16) * t.per_row, 32, 2), 2 * t.per_row * 32, t.rows};
    }
    static __device__ __forceinline__ void copy(u8* slot, const From& from, int unit, int lane, int k) {
        const int row = lane / 16, at = lane % 16 * 16;
        if (256 * unit + at < k) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                if (row + 2 * i < from.rows) copy16(slot + (row + 2 * i) * ROW + at, from.q + u64(i) * from.step + 256 * unit);
            }
        }
        if (lane >= min(from.rows, 16)) return;
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
    static __device__ __forceinline__ void expand(Wide<Q8_0>& w, const Raw& r, int, int step, int, int) {
        put16(w.q, r.q[2 * step]), put16(w.q + 4, r.q[2 * step + 1]);
        w.scale[0][0] = h2f(u16(r.d[step])), w.scale[1][0] = h2f(u16(r.d[step] >> 16));
    }
};

// Super-blocks of BYTES that lie as stored: ACROSS of them are copied at a time, one of each row, by as many lanes as have 16 bytes.
template <int BYTES> struct StoredUnit {
    static constexpr int SPAN = 256, STEPS = 2, FLIGHT = ROOMY ? 3 : 2;
    static constexpr int SLOT = 16 * BYTES, LANES = BYTES / 16, ACROSS = WARP / LANES;
    struct From {
        const u8* at;
        u64 step;
        int rows;
    };
    static __device__ __forceinline__ int block(int h, int p) { return p / 2 * 2 + h; }
    static __device__ __forceinline__ int half(int, int p) { return p % 2; }
    static __device__ __forceinline__ From from(const TileAt& t, int lane) {
        const u64 row = t.per_row * BYTES;
        return {t.weight + t.first * BYTES + u64(lane / LANES) * row + 16 * (lane % LANES), ACROSS * row, t.rows};
    }
    static __device__ __forceinline__ void copy(u8* slot, const From& from, int unit, int lane, int) {
        const int row = lane / LANES;
        if (row >= ACROSS) return;
#pragma unroll
        for (int i = 0; i < (16 + ACROSS - 1) / ACROSS; i++) {
            const int r = row + i * ACROSS;
            if (r < from.rows) copy16(slot + i * ACROSS * BYTES + 16 * lane, from.at + u64(i) * from.step + unit * BYTES);
        }
    }
};

// Scales and offsets of the blocks 2·(p % 2) and the next of a step (half of a super-block), from the 16 bytes that Q4_K and Q5_K
// begin with; see `k_scales`. `odd`, a power of two, is a factor of the odd blocks' scales.
template <class B> __device__ __forceinline__ void k_pair(Wide<B>& w, const uint4& head, int step, int p, float odd) {
    int shift = p % 2 * 16;
    u32 scales = head.y >> shift, minima = head.z >> shift;
    if (step == 1) {
        u32 low = head.w >> shift;
        scales = (low & 0x0f0f) | (scales >> 2 & 0x3030);
        minima = (low >> 4 & 0x0f0f) | (minima >> 2 & 0x3030);
    }
    float d = h2f(u16(head.x)), least = -h2f(u16(head.x >> 16));
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
    static __device__ __forceinline__ void expand(Wide<Q4_K>& w, const Raw& r, int, int step, int p, int) {
        u32 q[4];
        put16(q, r.q[step]);
#pragma unroll
        for (int i = 0; i < 4; i++) w.q[i] = q[i] & 0x0f0f0f0fu, w.q[i + 4] = q[i] & 0xf0f0f0f0u;
        k_pair(w, r.head, step, p, 0.0625f);
    }
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
    static __device__ __forceinline__ void expand(Wide<Q5_K>& w, const Raw& r, int, int step, int p, int) {
        u32 q[4], high[4];
        put16(q, r.q[step]), put16(high, r.high);
        int bit = 4 * step + p / 2 * 2;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            w.q[i] = (q[i] & 0x0f0f0f0fu) | (high[i] >> bit & 0x01010101u) << 4;
            w.q[i + 4] = (q[i] >> 4 & 0x0f0f0f0fu) | (high[i] >> (bit + 1) & 0x01010101u) << 4;
        }
        k_pair(w, r.head, step, p, 1.0f);
    }
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
            const u64 first = t.first + u64(min(tile_row(lane / 4) + 8 * r, t.rows - 1)) * t.per_row;
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
    static __device__ __forceinline__ void expand(Wide<Q6_K>& w, const Raw& r, int, int, int p, int) {
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

// What lane (g, p) reads of the activations: 16 bytes of its column for each half of its words, or zeros where that column is another
// block's; scales and sums for the two columns that it gets sums of.
template <class B> struct Columns {
    const u8* q[2];
    // All ones, or zero for a lane that reads zeros.
    u32 mask[2];
    const float *d, *s;
    // From one pass, of two rows, to the next.
    u32 q_pass, d_pass, s_pass;

    __device__ __forceinline__ explicit Columns(const Staged& x) : q_pass(2 * x.span), d_pass(2 * x.row_of_d()), s_pass(2 * x.row_of_s()) {
        const int lane = threadIdx.x % WARP, g = lane / 4, p = lane % 4;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const bool mine = Unit<B>::block(h, p) == g % 4;
            mask[h] = mine ? 0xffffffffu : 0;
            q[h] = mine ? x.q(x.row(g / 4)) + 32 * (g % 4) + 16 * Unit<B>::half(h, p) : x.zero;
        }
        d = x.d(x.row(p / 2)) + 2 * (p % 2);
        s = x.s(x.row(p / 2)) + 4 * (p % 2);
    }
};

// acc[pass][0 and 1] += unit `unit` of weight rows g and g + 8, times row 2·pass + p / 2 of `count` rows of activations, from element `at`
// on. `k` is the weight rows' length. All lanes of a warp call.
template <class B, int PASSES>
__device__ __forceinline__ void multiply(float (&acc)[PASSES][2], const typename Unit<B>::Raw (&raw)[2], int unit, int k, u32 at,
                                         const Columns<B>& x, int count) {
    typedef Unit<B> U;
    const int p = threadIdx.x % 4;
#pragma unroll
    for (int step = 0; step < U::STEPS; step++) {
        Wide<B> w[2];
        U::expand(w[0], raw[0], unit, step, p, k);
        U::expand(w[1], raw[1], unit, step, p, k);
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++) {
            if (pass > 0 && 2 * pass >= count) break;
            int c[B::SCALES][4] = {};
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint4 b = *reinterpret_cast<const uint4*>(x.q[h] + (at + 128 * step + pass * x.q_pass & x.mask[h]));
                const u32 first[4] = {w[0].q[4 * h], w[1].q[4 * h], w[0].q[4 * h + 1], w[1].q[4 * h + 1]};
                const u32 second[4] = {w[0].q[4 * h + 2], w[1].q[4 * h + 2], w[0].q[4 * h + 3], w[1].q[4 * h + 3]};
                if constexpr (U::UNSIGNED) {
                    mma_u8(c[0], first, b.x, b.y), mma_u8(c[0], second, b.z, b.w);
                } else if constexpr (U::SPLIT) {
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        const u32 mine = U::half(h, p) == half ? 0xffffffffu : 0;
                        mma_s8(c[half], first, b.x & mine, b.y & mine), mma_s8(c[half], second, b.z & mine, b.w & mine);
                    }
                } else {
                    mma_s8(c[B::SCALES == 2 ? h : 0], first, b.x, b.y), mma_s8(c[B::SCALES == 2 ? h : 0], second, b.z, b.w);
                }
            }
            const float2 d = *reinterpret_cast<const float2*>(x.d + at / 32 + 4 * step + pass * x.d_pass);
            float4 s = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if constexpr (B::OFFSETS > 0) s = *reinterpret_cast<const float4*>(x.s + at / 16 + 8 * step + pass * x.s_pass);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float sum = acc[pass][r];
#pragma unroll
                for (int h = 0; h < B::SCALES; h++) sum = fmaf(w[r].scale[0][h] * d.x, float(c[h][2 * r]), sum);
#pragma unroll
                for (int h = 0; h < B::SCALES; h++) sum = fmaf(w[r].scale[1][h] * d.y, float(c[h][2 * r + 1]), sum);
                if constexpr (B::OFFSETS == 1) {
                    sum = fmaf(w[r].offset[0][0], s.x + s.y, sum);
                    sum = fmaf(w[r].offset[1][0], s.z + s.w, sum);
                }
                if constexpr (B::OFFSETS == 2) {
                    sum = fmaf(w[r].offset[0][0], s.x, sum), sum = fmaf(w[r].offset[0][1], s.y, sum);
                    sum = fmaf(w[r].offset[1][0], s.z, sum), sum = fmaf(w[r].offset[1][1], s.w, sum);
                }
                acc[pass][r] = sum;
            }
        }
    }
}

// A warp's units on their way, FLIGHT of them: in registers, or in slots of shared memory (FLIGHT · SLOT bytes at `slots`).
template <class B, int FLIGHT> struct Ring {
    typedef Unit<B> U;
    typename U::Raw raw[U::SLOT > 0 ? 1 : FLIGHT][2];
    u8* slots;

    // Requests a unit, or nothing if it is not there. All lanes.
    __device__ __forceinline__ void load(int f, const typename U::From& from, int unit, int units, int k) {
        const int lane = threadIdx.x % WARP;
        if constexpr (U::SLOT > 0) {
            if (unit < units) U::copy(slots + f * U::SLOT, from, unit, lane, k);
            copies_end();
        } else {
            if (unit < units) U::load(raw[f], from, unit, lane, k);
        }
    }

    // The oldest unit, if others are on their way behind it.
    __device__ __forceinline__ const typename U::Raw (&take(int f))[2] {
        if constexpr (U::SLOT > 0) {
            const int g = threadIdx.x % WARP / 4, p = threadIdx.x % 4;
            copies_wait_but<FLIGHT - 1>();
            __syncwarp();
#pragma unroll
            for (int r = 0; r < 2; r++) U::read(raw[0][r], slots + f * U::SLOT + (tile_row(g) + 8 * r) * U::ROW, p);
            // The slot may be written again.
            __syncwarp();
            return raw[0];
        } else {
            return raw[f];
        }
    }
};

// Goes through `total` units, `items` of each tile, the first FLIGHT of which are on their way: `load` requests the next, `use` multiplies
// one (the `i`th of its tile), `finish` takes a tile's sums. The same sequence in all warps of a block.
template <int FLIGHT, class Load, class Use, class Finish>
__device__ __forceinline__ void in_flight(int total, int items, Load load, Use use, Finish finish) {
    int i = 0;
    for (int first = 0; first < total; first += FLIGHT) {
#pragma unroll
        for (int f = 0; f < FLIGHT; f++) {
            if (first + f >= total) break;
            use(f, i);
            load(f, first + f + FLIGHT < total);
            if (++i < items) continue;
            finish();
            i = 0;
        }
    }
}
