// Random weights of real sizes, made where they lie: the blocks of `glim_model::synth::Blocks`, byte for byte.
//
// That file is the specification, and says why codes and scales are what they are; here is the same arithmetic with each rounding spelled
// out. Word i of a weight is SplitMix64 of its key and i, so every thread begins where its block does: random codes first, 64 words apart,
// then scales that bring them to the wanted deviation, some with a random sign.
//
// Grid: as many blocks of 128 threads as the GPU holds; each thread makes whole blocks of the weight, a grid's width apart, in local memory,
// and writes them field by field to the planes that weights lie in (`src/layout.rs`).
// variants: TYPE = F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_NL IQ4_XS TQ1_0 TQ2_0 MXFP4 NVFP4
#include "blocks.cuh"
#include "fields.cuh"
#include "mix.cuh"

constexpr u64 WORDS_PER_BLOCK = 64;

// Consecutive words of a stream.
struct Words {
    u64 state;

    __device__ __forceinline__ Words(u64 key, u64 at) : state(key + at * GAMMA) {}
    __device__ __forceinline__ u64 next() {
        return mix(state += GAMMA);
    }
    __device__ __forceinline__ float uniform() { return float(u32(next() >> 40)) * (1.0f / 16777216.0f); }
    // Nearly normal: the sum of four uniform numbers.
    __device__ __forceinline__ float normal() {
        u64 word = next();
        int sum = 0;
        for (int i = 0; i < 4; i++) sum += int(word >> (16 * i) & 0xffff);
        return __fmul_rn(float(sum - 2 * 0xffff), 1.0f / 37837.2f);
    }
};

// What block scales are set by.
struct Scale {
    float f;
    // As f16.
    u16 d;

    // The scale, or its negative.
    __device__ __forceinline__ u16 either_sign(Words& words) const { return words.next() >> 63 ? d ^ 0x8000 : d; }
    // Half the range of codes, so that their mean becomes 0.
    __device__ __forceinline__ u16 times(float half_range) const { return f2h(__fmul_rn(h2f(d), half_range)); }
};

__device__ __forceinline__ void put(u8* block, int at, u16 h) { block[at] = u8(h), block[at + 1] = u8(h >> 8); }

// -128 has no counterpart, and encoders do not write it.
__device__ __forceinline__ void symmetric(u8* codes, int n) {
    for (int i = 0; i < n; i++) codes[i] |= codes[i] == 0x80;
}

__device__ __forceinline__ int sum_of(const u8* codes, int n) {
    int sum = 0;
    for (int i = 0; i < n; i++) sum += int(i8(codes[i]));
    return sum;
}

// The 6-bit scales and minima of Q4_K and Q5_K: 32 to 63, the minimum of a sub-block as large as its scale.
__device__ __forceinline__ void equal_scales_and_minima(u8* packed) {
    for (int j = 0; j < 4; j++) {
        u8 low = 32 | (packed[j] & 31), high = 32 | (packed[8 + j] & 31);
        packed[j] = u8(low | high >> 4 << 6);
        packed[4 + j] = packed[j];
        packed[8 + j] = u8((high & 0x0f) * 0x11);
    }
}

// Of the two powers of two around `scale`, each as often as makes the mean square right, as E8M0.
__device__ __forceinline__ u8 e8m0(float scale, Words& words) {
    u8 exponent = u8(__float_as_uint(scale) >> 23);
    float below = __uint_as_float(u32(exponent) << 23);
    float excess = below > 0.0f ? __fdiv_rn(scale, below) : 1.0f;
    float share = __fdiv_rn(__fsub_rn(__fmul_rn(excess, excess), 1.0f), 3.0f);
    return u8(exponent + (words.uniform() < share));
}

// A number as unsigned E4M3, likewise. Its codes lie `BIAS` below the same bits of an f32.
__device__ __forceinline__ u8 ue4m3(float scale, Words& words) {
    constexpr u32 BIAS = (127 - 7) << 3, LARGEST = 0x7e;
    const auto value = [](u32 code) {
        return code < 8 ? __fdiv_rn(float(code), 512.0f) : __uint_as_float((code + BIAS) << 20);
    };
    u32 below = scale < 1.0f / 64.0f ? u32(__fmul_rn(scale, 512.0f)) : min((__float_as_uint(scale) >> 20) - BIAS, LARGEST - 1);
    float low = value(below), high = value(below + 1), square = __fmul_rn(low, low);
    float share = __fdiv_rn(__fsub_rn(__fmul_rn(scale, scale), square), __fsub_rn(__fmul_rn(high, high), square));
    return u8(below + (words.uniform() < share));
}

// Sets the scales of a block of random bytes, and mends codes that encoders never write; by type. Without a form of its own: a scale in
// front, of either sign (Q4_0, Q5_0, IQ4_NL, IQ4_XS, IQ1_S, the IQ2 and IQ3 families).
template <class B> struct Finish {
    static __device__ __forceinline__ void block(u8* b, const Scale& s, Words& words) { put(b, 0, s.either_sign(words)); }
};
#define FINISH(NAME) \
    template <> struct Finish<NAME> { static __device__ __forceinline__ void block(u8* b, const Scale& s, Words& words); }; \
    __device__ __forceinline__ void Finish<NAME>::block(u8* b, const Scale& s, Words& words)

FINISH(Q4_1) { put(b, 0, s.d), put(b, 2, s.times(7.5f) ^ 0x8000); }
FINISH(Q5_1) { put(b, 0, s.d), put(b, 2, s.times(15.5f) ^ 0x8000); }
FINISH(Q8_0) { put(b, 0, s.d), symmetric(b + 2, 32); }
FINISH(Q8_1) {
    put(b, 0, s.d), symmetric(b + 4, 32);
    put(b, 2, f2h(__fmul_rn(h2f(s.d), float(sum_of(b + 4, 32)))));
}
FINISH(Q8_K) {
    u32 bits = __float_as_uint(s.f);
    put(b, 0, u16(bits)), put(b, 2, u16(bits >> 16)), symmetric(b + 4, 256);
    for (int run = 0; run < 16; run++) put(b, 260 + 2 * run, u16(sum_of(b + 4 + 16 * run, 16)));
}
FINISH(Q2_K) {
    for (int i = 0; i < 16; i++) b[i] = u8((8 | (b[i] & 7)) * 0x11);
    put(b, 80, s.d), put(b, 82, s.times(1.5f));
}
FINISH(Q3_K) { put(b, 108, s.either_sign(words)); }
FINISH(Q4_K) { equal_scales_and_minima(b + 4), put(b, 0, s.d), put(b, 2, s.times(7.5f)); }
FINISH(Q5_K) { equal_scales_and_minima(b + 4), put(b, 0, s.d), put(b, 2, s.times(15.5f)); }
FINISH(Q6_K) {
    for (int i = 192; i < 208; i++) {
        int size = 32 + (b[i] & 31);
        b[i] = u8(b[i] & 0x80 ? -size : size);
    }
    put(b, 208, s.d);
}
FINISH(IQ1_M) {
    u16 bits = s.either_sign(words);
    for (int n = 0; n < 4; n++) b[49 + 2 * n] = u8((b[49 + 2 * n] & 0x0f) | (bits >> (4 * n) & 15) << 4);
}
FINISH(MXFP4) { b[0] = e8m0(s.f, words); }
FINISH(NVFP4) {
    for (int i = 0; i < 4; i++) b[i] = ue4m3(s.f, words);
}
FINISH(TQ1_0) { put(b, 52, s.d); }
FINISH(TQ2_0) {
    for (int i = 0; i < 64; i++) b[i] &= u8(~((b[i] & (b[i] >> 1) & 0x55) << 1));
    put(b, 64, s.d);
}

// One element of a type without blocks.
template <class B> struct Float;
template <> struct Float<F32> {
    static __device__ __forceinline__ void put(u8* to, u64 i, float v) { reinterpret_cast<float*>(to)[i] = v; }
};
template <> struct Float<F16> {
    static __device__ __forceinline__ void put(u8* to, u64 i, float v) { reinterpret_cast<u16*>(to)[i] = f2h(v); }
};
template <> struct Float<BF16> {
    static __device__ __forceinline__ void put(u8* to, u64 i, float v) { reinterpret_cast<u16*>(to)[i] = f2bf(v); }
};

// Writes a field, as many bytes at a time as its length is a multiple of: planes begin at such multiples.
__device__ __forceinline__ void write(u8* to, const u8* from, int bytes) {
    if (bytes % 4 == 0) {
        for (int i = 0; i < bytes; i += 4) {
            u32 word = 0;
            for (int j = 0; j < 4; j++) word |= u32(from[i + j]) << (8 * j);
            *reinterpret_cast<u32*>(to + i) = word;
        }
    } else if (bytes % 2 == 0) {
        for (int i = 0; i < bytes; i += 2) *reinterpret_cast<u16*>(to + i) = u16(from[i] | from[i + 1] << 8);
    } else {
        for (int i = 0; i < bytes; i++) to[i] = from[i];
    }
}

// Makes block `n` of `blocks` at `to`.
template <class B>
__device__ __forceinline__ void make(u8* to, u64 blocks, u64 n, u64 key, float scale, const Fields& fields) {
    if constexpr (B::ELEMS == 1) {
        Float<B>::put(to, n, __fmul_rn(scale, Words(key, n).normal()));
    } else {
        u8 block[B::BYTES];
        Words words(key, n * WORDS_PER_BLOCK);
        for (int i = 0; i < B::BYTES; i += 8) {
            u64 word = words.next();
            for (int j = 0; j < 8; j++) {
                if (i + j < B::BYTES) block[i + j] = u8(word >> (8 * j));
            }
        }
        Finish<B>::block(block, Scale{scale, f2h(scale)}, words);
        u8* plane = to;
        for (int f = 0; f < fields.count; f++) {
            write(plane + n * fields.bytes[f], block + fields.at[f], fields.bytes[f]);
            plane += blocks * fields.bytes[f];
        }
    }
}

KERNEL(128) synth(u8* to, u64 blocks, u64 key, float scale, Fields fields) {
    pdl_wait();
    pdl_go();
    const u64 step = u64(gridDim.x) * blockDim.x;
    for (u64 n = u64(blockIdx.x) * blockDim.x + threadIdx.x; n < blocks; n += step) make<TYPE>(to, blocks, n, key, scale, fields);
}
