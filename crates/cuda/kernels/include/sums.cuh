// Sums of products of 16 weight rows with up to 16 rows of activations, unit by unit (units.cuh), and units on their way.
//
// With one row of activations, columns 4 to 7 are free for a second step: units of two steps are multiplied at once, and each of the four
// lanes has the sums of two blocks.
//
// Order of summation, for each weight row and row of activations: two neighbouring blocks of each unit are added up unit by unit, scaled
// integers before offsets; then the pairs of a step, then the steps. No form of the kernel has another order.
#pragma once
#include "units.cuh"

// c += the 16 rows' words 4·h .. 4·h + 3 · 16 bytes of each column.
template <class B> __device__ __forceinline__ void multiply_words(int (&c)[4], const u32* q, const u32* below, int h, const uint4& b) {
    const u32 first[4] = {q[4 * h], below[4 * h], q[4 * h + 1], below[4 * h + 1]};
    const u32 second[4] = {q[4 * h + 2], below[4 * h + 2], q[4 * h + 3], below[4 * h + 3]};
    if constexpr (Unit<B>::UNSIGNED) mma_u8(c, first, b.x, b.y), mma_u8(c, second, b.z, b.w);
    else mma_s8(c, first, b.x, b.y), mma_s8(c, second, b.z, b.w);
}

// sum += two blocks' integer sums, scaled, and offsets times the activations' sums. The one place where floats of a product are added.
template <class B>
__device__ __forceinline__ void add_blocks(float& sum, const Wide<B>& w, const int (&c)[B::SCALES][4], int row, float2 d, float4 s) {
#pragma unroll
    for (int h = 0; h < B::SCALES; h++) sum = fmaf(w.scale[0][h] * d.x, float(c[h][2 * row]), sum);
#pragma unroll
    for (int h = 0; h < B::SCALES; h++) sum = fmaf(w.scale[1][h] * d.y, float(c[h][2 * row + 1]), sum);
    if constexpr (B::OFFSETS == 1) {
        sum = fmaf(w.offset[0][0], s.x + s.y, sum);
        sum = fmaf(w.offset[1][0], s.z + s.w, sum);
    }
    if constexpr (B::OFFSETS == 2) {
        sum = fmaf(w.offset[0][0], s.x, sum), sum = fmaf(w.offset[0][1], s.y, sum);
        sum = fmaf(w.offset[1][0], s.z, sum), sum = fmaf(w.offset[1][1], s.w, sum);
    }
}

__device__ __forceinline__ uint4 masked(uint4 v, u32 mask) { return make_uint4(v.x & mask, v.y & mask, v.z & mask, v.w & mask); }

// The sums of a warp's tile: 16 weight rows times MOST rows of activations (1, or an even number).
template <class B, int MOST> struct Sums {
    typedef Unit<B> U;
    // Whether a unit is multiplied at once.
    static constexpr bool WHOLE = MOST == 1 && U::STEPS == 2;
    static constexpr int PASSES = (MOST + 1) / 2, STEPS = WHOLE ? 1 : U::STEPS;

    // Rows g and g + 8 of the tile; activations' row 2·pass + p / 2.
    float acc[PASSES][2][STEPS];
    // What the lane reads of the activations: 16 bytes of its column for each half of its words, where that column is not another
    // block's; scales and sums for the two columns that it gets sums of.
    const u8* q[2];
    const float *d, *s;
    // All ones where the column is this lane's: by half, or by half and step.
    u32 mask[2], step_mask[2];
    // From one pass, of two rows, to the next.
    int q_pass, d_pass, s_pass, count;

    __device__ __forceinline__ explicit Sums(const Staged& x)
        : q_pass(2 * x.span), d_pass(2 * x.row_of_d()), s_pass(2 * x.row_of_s()), count(x.count) {
        const int lane = threadIdx.x % WARP, g = lane / 4, p = lane % 4;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const bool mine = U::block(h, p) == g % 4;
            mask[h] = mine ? 0xffffffffu : 0;
            step_mask[h] = g / 4 == h ? 0xffffffffu : 0;
            // With whole units, column g is block g.
            const u8* from = WHOLE ? x.q(0) + 32 * g : x.q(x.row(g / 4)) + 32 * (g % 4);
            q[h] = mine ? from + 16 * U::half(h, p) : x.zero;
        }
        // A lane that has either half reads it once.
        if (WHOLE && mask[1]) q[0] = q[1];
        d = WHOLE ? x.d(0) + 2 * p : x.d(x.row(p / 2)) + 2 * (p % 2);
        s = WHOLE ? x.s(0) + 4 * p : x.s(x.row(p / 2)) + 4 * (p % 2);
        clear();
    }

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++) {
#pragma unroll
            for (int i = 0; i < 2 * STEPS; i++) acc[pass][i / STEPS][i % STEPS] = 0.0f;
        }
    }

    // Adds unit `unit` of weight rows of `k` elements, times the activations from element `at` on. All lanes call.
    __device__ __forceinline__ void multiply(const typename U::Raw (&raw)[2], int unit, int k, int at) {
        if constexpr (WHOLE) {
            whole(raw, at);
        } else {
            const int p = threadIdx.x % 4;
#pragma unroll
            for (int step = 0; step < U::STEPS; step++) {
                Wide<B> w[2];
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    if constexpr (U::STEPS == 1) U::expand(w[r], raw[r], unit, p, k);
                    else U::ints(w[r].q, raw[r], step, p), U::scales(w[r], raw[r], 2 * step + p % 2);
                }
#pragma unroll
                for (int pass = 0; pass < PASSES; pass++) {
                    if (pass > 0 && 2 * pass >= count) break;
                    one_pass(w, step, pass, at + 128 * step);
                }
            }
        }
    }

    __device__ __forceinline__ void one_pass(const Wide<B> (&w)[2], int step, int pass, int at) {
        const int p = threadIdx.x % 4;
        int c[B::SCALES][4] = {};
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint4 b = *reinterpret_cast<const uint4*>(q[h] + (u32(at + pass * q_pass) & mask[h]));
            if constexpr (U::SPLIT) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    multiply_words<B>(c[half], w[0].q, w[1].q, h, masked(b, U::half(h, p) == half ? 0xffffffffu : 0));
                }
            } else {
                multiply_words<B>(c[B::SCALES == 2 ? h : 0], w[0].q, w[1].q, h, b);
            }
        }
        const float2 scale = *reinterpret_cast<const float2*>(d + at / 32 + pass * d_pass);
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if constexpr (B::OFFSETS > 0) sum = *reinterpret_cast<const float4*>(s + at / 16 + pass * s_pass);
#pragma unroll
        for (int r = 0; r < 2; r++) add_blocks<B>(acc[pass][r][step], w[r], c, r, scale, sum);
    }

    __device__ __forceinline__ void whole(const typename U::Raw (&raw)[2], int at) {
        const int p = threadIdx.x % 4;
        int c[1][4] = {};
        const uint4 b = *reinterpret_cast<const uint4*>(q[0] + (u32(at) & (mask[0] | mask[1])));
#pragma unroll
        for (int step = 0; step < 2; step++) {
            u32 ints[2][8];
            U::ints(ints[0], raw[0], step, p), U::ints(ints[1], raw[1], step, p);
#pragma unroll
            for (int h = 0; h < 2; h++) multiply_words<B>(c[0], ints[0], ints[1], h, masked(b, mask[h] & step_mask[step]));
        }
        const float2 scale = *reinterpret_cast<const float2*>(d + at / 32);
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if constexpr (B::OFFSETS > 0) sum = *reinterpret_cast<const float4*>(s + at / 16);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            Wide<B> w;
            U::scales(w, raw[r], p);
            add_blocks<B>(acc[0][r][0], w, c, r, scale, sum);
        }
    }

    // Leaves the sums where others of the block find them, and begins anew. `room` holds MOST · 16 floats for each warp, and must not be
    // that of the call before. All threads of the block call.
    __device__ __forceinline__ void put(float* room) {
        const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, p = lane % 4;
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float part[STEPS];
#pragma unroll
                for (int i = 0; i < STEPS; i++) part[i] = acc[pass][r][i] + __shfl_xor_sync(FULL, acc[pass][r][i], 1);
                float sum = part[0];
                if (STEPS == 2) sum += part[STEPS - 1];
                if (WHOLE) sum += __shfl_xor_sync(FULL, sum, 2);
                if (p % 2 == 0 && (MOST > 1 || p == 0)) room[(warp * MOST + 2 * pass + p / 2) * 16 + tile_row(g) + 8 * r] = sum;
            }
        }
        clear();
        __syncthreads();
    }
};

// A warp's units on their way, FLIGHT of them: in registers, or in slots of shared memory (FLIGHT · SLOT bytes at `slots`).
template <class B, int FLIGHT> struct Ring {
    typedef Unit<B> U;
    typename U::Raw raw[U::SLOT > 0 ? 1 : FLIGHT][2];
    u8* slots;

    // Requests a unit, or nothing if the row has ended. All lanes.
    __device__ __forceinline__ void load(int f, const typename U::From& from, int unit, int units, int k) {
        const int lane = threadIdx.x % WARP;
        if constexpr (U::SLOT > 0) {
            if (unit < units) U::copy(slots + f * U::SLOT, from, unit, lane, k);
            copies_end();
        } else {
            if (unit < units) U::load(raw[f], from, unit, lane, k);
        }
    }

    // In the place of a unit that is not there.
    __device__ __forceinline__ void skip() {
        if constexpr (U::SLOT > 0) copies_end();
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

// Requests the first units: `load(f, whether it is there)` for each that can be on its way. Where these are slots of shared memory and not
// registers the loop stays one: a third of the code.
template <class B, int FLIGHT, class Load> __device__ __forceinline__ void begin_flight(int total, Load load) {
    if constexpr (Unit<B>::SLOT > 0) {
#pragma unroll 1
        for (int f = 0; f < FLIGHT; f++) load(f, f < total);
    } else {
#pragma unroll
        for (int f = 0; f < FLIGHT; f++) load(f, f < total);
    }
}

// Goes through `total` units, `items` of each tile, the first FLIGHT of which are on their way: `load` requests the next, `use` multiplies
// one (the `i`th of its tile), `finish` takes a tile's sums. The same sequence in all warps of a block.
template <class B, int FLIGHT, class Load, class Use, class Finish>
__device__ __forceinline__ void in_flight(int total, int items, Load load, Use use, Finish finish) {
    int i = 0;
    auto step = [&](int f, int n) {
        use(f, i);
        load(f, n + FLIGHT < total);
        if (++i < items) return;
        finish();
        i = 0;
    };
    if constexpr (Unit<B>::SLOT > 0) {
        int f = 0;
#pragma unroll 1
        for (int n = 0; n < total; n++) {
            step(f, n);
            f = f + 1 < FLIGHT ? f + 1 : 0;
        }
    } else {
        for (int first = 0; first < total; first += FLIGHT) {
#pragma unroll
            for (int f = 0; f < FLIGHT; f++) {
                if (first + f >= total) break;
                step(f, first + f);
            }
        }
    }
}
