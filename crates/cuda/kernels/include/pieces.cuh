// Rows of activations in shared memory, and the pieces of a weight row that one lane multiplies with them.
//
// A piece is what a lane loads at once, and later multiplies with any number of activation rows: loading apart from multiplying
// puts several loads in flight, and lets them start before the activations are there. In fast arithmetic, types with integers meet
// activations that are rounded to 8 bits in blocks of 32, as cpu/src/matmul/q8.rs does it; all else is f32.
#pragma once
#include "common.cuh"
#include "blocks.cuh"

template <bool WHICH, class A, class B> struct Choose { typedef A T; };
template <class A, class B> struct Choose<false, A, B> { typedef B T; };
template <class A, class B> struct Same { static const bool VALUE = false; };
template <class A> struct Same<A, A> { static const bool VALUE = true; };

// ---- four floats -----------------------------------------------------------------------------------------------------------------

// Weights `i..i + 4` of a row of `n` floats, 0 beyond its end. `i` is a multiple of 4.
template <class B> __device__ __forceinline__ float4 weights4(const u8* row, int i, int n) {
    static_assert(B::ELEMS == 1, "a float type");
    float4 w = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (i >= n) return w;
    if (n % 4 == 0) {
        if constexpr (Same<B, F32>::VALUE) {
            uint4 v = load16(row + u64(i) * 4);
            return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w));
        }
        if constexpr (Same<B, F16>::VALUE) {
            uint2 v = load8(row + u64(i) * 2);
            return make_float4(h2f(u16(v.x)), h2f(u16(v.x >> 16)), h2f(u16(v.y)), h2f(u16(v.y >> 16)));
        }
        if constexpr (Same<B, BF16>::VALUE) {
            uint2 v = load8(row + u64(i) * 2);
            return make_float4(bf2f(u16(v.x)), bf2f(u16(v.x >> 16)), bf2f(u16(v.y)), bf2f(u16(v.y >> 16)));
        }
    }
    w.x = load_f<B>(row, i);
    if (i + 1 < n) w.y = load_f<B>(row, i + 1);
    if (i + 2 < n) w.z = load_f<B>(row, i + 2);
    if (i + 3 < n) w.w = load_f<B>(row, i + 3);
    return w;
}

// Activations `i..i + 4` of a row of `n`, 0 beyond its end.
__device__ __forceinline__ float4 inputs4(const float* row, int i, int n) {
    float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (i >= n) return x;
    if (n % 4 == 0) return *reinterpret_cast<const float4*>(row + i);
    x.x = row[i];
    if (i + 1 < n) x.y = row[i + 1];
    if (i + 2 < n) x.z = row[i + 2];
    if (i + 3 < n) x.w = row[i + 3];
    return x;
}

__device__ __forceinline__ float dot4(float4 a, float4 b, float sum) {
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

// ---- 8-bit activations -------------------------------------------------------------------------------------------------------------

// One row of `k` activations as integers, `k` a multiple of 32. The 16-byte units lie in two planes: units 0 and 1 of each four in the
// first, 2 and 3 in the second, which begins 16 bytes off a multiple of 32. Neighbouring lanes then read no bank twice, whether
// each takes two units in a row, or one of each plane.
struct Ints {
    uint4* q;
    // Of each 32: scale, and scale times sum of the integers.
    float2* scales;
    int second;

    static __device__ __forceinline__ int bytes(int k) { return (k + 63) / 64 * 64 + 16 + (k / 32 + 1) / 2 * 16; }

    Ints() = default;
    __device__ __forceinline__ Ints(u8* room, int k) : q(reinterpret_cast<uint4*>(room)), second((k + 63) / 64 * 2 + 1) {
        scales = reinterpret_cast<float2*>(room + (k + 63) / 64 * 64 + 16);
    }

    __device__ __forceinline__ uint4* place(int u) const { return q + u / 4 * 2 + u % 2 + (u & 2 ? second : 0); }
    __device__ __forceinline__ uint4 unit(int u) const { return *place(u); }

    // Rounds `count` rows, one after another in memory, into rows of `bytes` at `room`: all warps of the block, eight lanes for each
    // 32. The reader's barrier comes after.
    static __device__ __forceinline__ void fill(u8* room, int bytes, const float* x, int k, int count) {
        // Loads of a lane that are on their way together.
        constexpr int AHEAD = 3;
        const int step = blockDim.x * 4, total = count * k, lane = threadIdx.x % WARP;
        for (int start = threadIdx.x / WARP * WARP * 4; start < total; start += AHEAD * step) {
            float4 v[AHEAD];
#pragma unroll
            for (int a = 0; a < AHEAD; a++) {
                const int i = start + a * step + lane * 4;
                v[a] = i < total ? *reinterpret_cast<const float4*>(x + i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            }
#pragma unroll
            for (int a = 0; a < AHEAD; a++) {
                const int i = start + a * step + lane * 4;
                if (start + a * step >= total) break;
                const int row = min(i / k, count - 1);
                Ints(room + row * bytes, k).put(v[a], i - row * k, i < total);
            }
        }
    }

    // A lane's four of 32 elements, at `i`.
    __device__ __forceinline__ void put(float4 v, int i, bool inside) const {
        // Bits without the sign order as magnitudes do, infinity above all numbers and NaN above infinity.
        u32 most = max(max(magnitude(v.x), magnitude(v.y)), max(magnitude(v.z), magnitude(v.w)));
#pragma unroll
        for (int step = 1; step < 8; step <<= 1) most = max(most, __shfl_xor_sync(FULL, most, step));
        float scale = __uint_as_float(most) / 127.0f, inverse = 1.0f / scale;
        // What is not a number stays visible; what has no inverse is rounded to zero.
        if (most >= 0x7f800000u) scale = __uint_as_float(0x7fc00000u), inverse = 0.0f;
        else if (scale < 1.17549435e-38f) scale = 0.0f, inverse = 0.0f;
        const int a = rounded(v.x, inverse), b = rounded(v.y, inverse), c = rounded(v.z, inverse), d = rounded(v.w, inverse);
        int sum = a + b + c + d;
#pragma unroll
        for (int step = 1; step < 8; step <<= 1) sum += __shfl_xor_sync(FULL, sum, step);
        if (!inside) return;
        u32* words = reinterpret_cast<u32*>(place(i / 16));
        words[i / 4 % 4] = (a & 255) | (b & 255) << 8 | (c & 255) << 16 | u32(d & 255) << 24;
        if (i % 32 == 0) scales[i / 32] = make_float2(scale, scale * float(sum));
    }

    static __device__ __forceinline__ u32 magnitude(float v) { return __float_as_uint(v) & 0x7fffffffu; }

    // Ties to even; NaN and what it stands beside become 0 here, and NaN by their scale.
    static __device__ __forceinline__ int rounded(float v, float inverse) {
        return inverse == 0.0f ? 0 : __float2int_rn(v * inverse);
    }
};

__device__ __forceinline__ int dot16(uint4 w, uint4 x, int sum) {
    sum = __dp4a(int(w.x), int(x.x), sum);
    sum = __dp4a(int(w.y), int(x.y), sum);
    sum = __dp4a(int(w.z), int(x.z), sum);
    return __dp4a(int(w.w), int(x.w), sum);
}

// Where a row of a weight lies: the weight, its blocks in all, and the row's first block.
struct RowAt {
    const u8* weight;
    u64 blocks, first;
};

// Any type with integers: 32 weights, unpacked when they are multiplied.
template <class B> struct IntPiece {
    static const int SPAN = 32;
    typedef Ints X;
    typename B::Raw raw;

    __device__ __forceinline__ void load(const RowAt& row, int piece, int) {
        B::load(raw, row.weight, row.blocks, row.first + piece / (B::ELEMS / 32), piece % (B::ELEMS / 32));
    }

    // Adds to `sum[r]` for the first `n` of the rows `x`.
    template <int R> __device__ __forceinline__ void dot(const Ints* x, int n, int piece, float* sum) const {
        Sub w;
        B::expand(raw, piece % (B::ELEMS / 32), w);
#pragma unroll
        for (int r = 0; r < R; r++) {
            if (r >= n) break;
            u32 q[8];
            put16(q, x[r].unit(2 * piece));
            put16(q + 4, x[r].unit(2 * piece + 1));
            const float2 s = x[r].scales[piece];
            sum[r] = __fadd_rn(sum[r], dot32<B>(w, q, s.x, s.y));
        }
    }
};

// Where 16 bytes a lane are not 32 weights, neighbouring lanes take neighbouring 16 bytes: a lane with 32 in a row would request every
// sector twice, once in each load, and L2 would be the limit.

// Q8_0: 16 weights, half a block.
template <> struct IntPiece<Q8_0> {
    static const int SPAN = 16;
    typedef Ints X;
    uint4 q;
    u16 d;

    __device__ __forceinline__ void load(const RowAt& row, int piece, int) {
        const u64 block = row.first + piece / 2;
        q = load16(field(row.weight, row.blocks, block, 0, 32) + piece % 2 * 16);
        d = load2(field(row.weight, row.blocks, block, 32, 2));
    }

    template <int R> __device__ __forceinline__ void dot(const Ints* x, int n, int piece, float* sum) const {
        const float scale = h2f(d);
#pragma unroll
        for (int r = 0; r < R; r++) {
            if (r >= n) break;
            sum[r] = fmaf(__fmul_rn(scale, x[r].scales[piece / 2].x), float(dot16(q, x[r].unit(piece), 0)), sum[r]);
        }
    }
};

// Q6_K: 64 weights, 16 of each quarter of a block's half, whose codes share bytes.
template <> struct IntPiece<Q6_K> {
    static const int SPAN = 64;
    typedef Ints X;
    // Low four bits of the first and third sixteen, and of the second and fourth; high two bits of all.
    uint4 q[2], high;
    // Scales of the half.
    uint2 scales;
    u16 d;

    __device__ __forceinline__ void load(const RowAt& row, int piece, int) {
        const u64 block = row.first + piece / 4;
        const int half = piece % 4 / 2, part = piece % 2;
        const u8* low = field(row.weight, row.blocks, block, 0, 128) + half * 64 + part * 16;
        q[0] = load16(low);
        q[1] = load16(low + 32);
        high = load16(field(row.weight, row.blocks, block, 128, 64) + half * 32 + part * 16);
        scales = load8(field(row.weight, row.blocks, block, 192, 16) + half * 8);
        d = load2(field(row.weight, row.blocks, block, 208, 2));
    }

    // Codes of run `run`, of 32 weights apart.
    __device__ __forceinline__ uint4 codes(int run) const {
        const uint4 low = q[run % 2];
        return make_uint4(code(low.x, high.x, run), code(low.y, high.y, run), code(low.z, high.z, run), code(low.w, high.w, run));
    }

    static __device__ __forceinline__ u32 code(u32 low, u32 high, int run) {
        return minus4((low >> run / 2 * 4 & 0x0f0f0f0fu) | (high >> run * 2 & 0x03030303u) << 4, 0x20202020u);
    }

    template <int R> __device__ __forceinline__ void dot(const Ints* x, int n, int piece, float* sum) const {
        const int part = piece % 2, u = piece / 2 * 8 + part;
        float part_sum[R] = {};
#pragma unroll
        for (int run = 0; run < 4; run++) {
            const uint4 w = codes(run);
            const u32 pair = (run < 2 ? scales.x : scales.y) >> (run % 2 * 16 + part * 8);
            const float scale = float(i8(pair));
#pragma unroll
            for (int r = 0; r < R; r++) {
                if (r >= n) break;
                const float s = __fmul_rn(scale, x[r].scales[piece / 2 * 4 + run].x);
                part_sum[r] = fmaf(s, float(dot16(w, x[r].unit(u + 2 * run), 0)), part_sum[r]);
            }
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
            if (r < n) sum[r] = fmaf(h2f(d), part_sum[r], sum[r]);
        }
    }
};

// Q4_K: 16 bytes of nibbles, half of each of two neighbouring sub-blocks; the eight lanes of a block read one header.
template <> struct IntPiece<Q4_K> {
    static const int SPAN = 32;
    typedef Ints X;
    uint4 head, q;

    __device__ __forceinline__ void load(const RowAt& row, int piece, int) {
        const u8* block = row.weight + (row.first + piece / 8) * Q4_K::BYTES;
        head = load16(block);
        q = load16(block + 16 + piece % 8 * 16);
    }

    static __device__ __forceinline__ uint4 nibbles(uint4 v, int shift) {
        const u32 mask = 0x0f0f0f0fu;
        return make_uint4(v.x >> shift & mask, v.y >> shift & mask, v.z >> shift & mask, v.w >> shift & mask);
    }

    template <int R> __device__ __forceinline__ void dot(const Ints* x, int n, int piece, float* sum) const {
        // Which two sub-blocks of the block, and which half of them.
        const int pair = piece % 8 / 2, half = piece % 2;
        // Six bits each of two scales and two minima: whole in the first two pairs' bytes, in nibbles and leftover bits in the others.
        const int shift = pair % 2 * 16;
        u32 scales = head.y >> shift, minima = head.z >> shift;
        if (pair >= 2) {
            const u32 low = head.w >> shift;
            scales = (low & 0x0f0f) | (scales >> 2 & 0x3030);
            minima = (low >> 4 & 0x0f0f) | (minima >> 2 & 0x3030);
        }
        const float d = h2f(u16(head.x)), scale0 = d * float(scales & 63), scale1 = d * float(scales >> 8 & 63);
        const float least = -h2f(u16(head.x >> 16));
        const float offset0 = least * float(minima & 63), offset1 = least * float(minima >> 8 & 63);
        const uint4 low = nibbles(q, 0), high = nibbles(q, 4);
        const int u = piece / 2 * 4 + half;
#pragma unroll
        for (int r = 0; r < R; r++) {
            if (r >= n) break;
            const float4 s = *reinterpret_cast<const float4*>(x[r].scales + piece / 2 * 2);
            float part = __fmul_rn(scale0, __fmul_rn(s.x, float(dot16(low, x[r].unit(u), 0))));
            part = fmaf(scale1, __fmul_rn(s.z, float(dot16(high, x[r].unit(u + 2), 0))), part);
            // The minima go with sums over whole sub-blocks: the first half's lane takes them.
            if (half == 0) part = fmaf(offset1, s.w, fmaf(offset0, s.y, part));
            sum[r] = __fadd_rn(sum[r], part);
        }
    }
};

// ---- f32 activations -----------------------------------------------------------------------------------------------------------------

// One row of activations as they are, filled up with zeros to whole float4.
struct Floats {
    float* x;

    static __device__ __forceinline__ int bytes(int k) { return (k + 3) / 4 * 16; }

    Floats() = default;
    __device__ __forceinline__ Floats(u8* room, int) : x(reinterpret_cast<float*>(room)) {}

    // Copies `count` rows, as `Ints::fill` rounds them.
    static __device__ __forceinline__ void fill(u8* room, int bytes, const float* x, int k, int count) {
        for (int r = 0; r < count; r++) {
            float4* row = reinterpret_cast<float4*>(room + r * bytes);
            for (int i = threadIdx.x * 4; i < k; i += blockDim.x * 4) row[i / 4] = inputs4(x + u64(r) * k, i, k);
        }
    }
};

// Any quantised type: 32 weights, decoded when they are multiplied.
template <class B> struct DecodedPiece {
    static const int SPAN = 32;
    typedef Floats X;
    typename B::Raw raw;

    __device__ __forceinline__ void load(const RowAt& row, int piece, int) {
        B::load(raw, row.weight, row.blocks, row.first + piece / (B::ELEMS / 32), piece % (B::ELEMS / 32));
    }

    template <int R> __device__ __forceinline__ void dot(const Floats* x, int n, int piece, float* sum) const {
        Sub codes;
        B::expand(raw, piece % (B::ELEMS / 32), codes);
        float w[32];
        values32<B>(codes, w);
#pragma unroll
        for (int r = 0; r < R; r++) {
            if (r >= n) break;
            const float4* v = reinterpret_cast<const float4*>(x[r].x + 32 * piece);
#pragma unroll
            for (int i = 0; i < 8; i++) sum[r] = dot4(make_float4(w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3]), v[i], sum[r]);
        }
    }
};

// Floats: four weights.
template <class B> struct FloatPiece {
    static const int SPAN = 4;
    typedef Floats X;
    float4 w;

    __device__ __forceinline__ void load(const RowAt& row, int piece, int k) {
        w = weights4<B>(row.weight + row.first * B::BYTES, 4 * piece, k);
    }

    template <int R> __device__ __forceinline__ void dot(const Floats* x, int n, int piece, float* sum) const {
#pragma unroll
        for (int r = 0; r < R; r++) {
            if (r >= n) break;
            sum[r] = dot4(w, reinterpret_cast<const float4*>(x[r].x)[piece], sum[r]);
        }
    }
};

// The pieces of a type: integers if the arithmetic is fast and the type has them.
template <class B, bool ROUNDED> struct Pieces {
    typedef typename Choose<B::ELEMS == 1, FloatPiece<B>, DecodedPiece<B>>::T AsFloats;
    typedef typename Choose<ROUNDED && B::INTEGER, IntPiece<B>, AsFloats>::T T;

    static __device__ __forceinline__ int count(int k) { return (k + T::SPAN - 1) / T::SPAN; }
    static __device__ __forceinline__ u64 blocks(int k) { return k / B::ELEMS; }
};
