// Four bytes at a time: what the block types' codes need of it.
#pragma once
#include "common.cuh"

// Byte `i` of the result is byte `(selector >> 4·i) & 7` of the eight bytes `a` (0 to 3) and `b` (4 to 7). No selector has its
// fourth bit set.
#ifdef GLIM_EMULATED
__device__ __forceinline__ u32 pick4(u32 a, u32 b, u32 selector) {
    u64 bytes = u64(b) << 32 | a;
    u32 out = 0;
    for (int i = 0; i < 4; i++) out |= u32(bytes >> (8 * (selector >> (4 * i) & 7)) & 0xff) << (8 * i);
    return out;
}
#else
__device__ __forceinline__ u32 pick4(u32 a, u32 b, u32 selector) {
    u32 out;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(selector));
    return out;
}
#endif

// Bytes minus the bytes of `b`, as signed bytes: for bytes below 128, and `b` of bytes up to 128.
__device__ __forceinline__ u32 minus4(u32 a, u32 b) { return ((a | 0x80808080u) - b) ^ 0x80808080u; }

// Four bits to the lowest bits of four bytes.
__device__ __forceinline__ u32 spread4(u32 bits) { return ((bits & 15) * 0x00204081u) & 0x01010101u; }

// Bytes of 1 to 127, negative where a bit of `signs` is set.
__device__ __forceinline__ u32 signed4(u32 bytes, u32 signs) {
    u32 ones = spread4(signs);
    return (bytes ^ (ones * 0xffu)) + ones;
}

// 16 levels that a nibble names.
struct Levels {
    u32 words[4];
};

// The levels of eight nibbles: those of the low ones (elements j of a block) and of the high ones (elements j + 16).
__device__ __forceinline__ void levels8(const Levels& t, u32 nibbles, u32& low, u32& high) {
    u32 place = nibbles & 0x77777777u;
    // Four nibbles each: from the lower eight levels or the upper, by the fourth bit.
    u32 choice = 0x32103210u | (nibbles & 0x88888888u) >> 1;
    u32 a = pick4(pick4(t.words[0], t.words[1], place), pick4(t.words[2], t.words[3], place), choice & 0x7777u);
    place >>= 16, choice >>= 16;
    u32 b = pick4(pick4(t.words[0], t.words[1], place), pick4(t.words[2], t.words[3], place), choice & 0x7777u);
    low = pick4(a, b, 0x6420);
    high = pick4(a, b, 0x7531);
}

// Byte `i` (a run-time number) of four words.
__device__ __forceinline__ u32 byte_of(const u32* words, int i) { return words[i / 4] >> (8 * (i % 4)) & 0xff; }

__device__ __forceinline__ void put16(u32* words, uint4 v) { words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w; }

// A byte, as common.cuh's loads.
#ifdef GLIM_EMULATED
__device__ __forceinline__ u8 load1(const void* p) { return *static_cast<const u8*>(p); }
#else
__device__ __forceinline__ u8 load1(const void* p) {
    u32 v;
    asm volatile("ld.relaxed.gpu.global.L1::no_allocate.u8 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return u8(v);
}
#endif

// Field `block` of a plane: the fields before it in a block take `before` bytes, it takes `bytes`.
__device__ __forceinline__ const u8* field(const u8* weight, u64 blocks, u64 block, int before, int bytes) {
    return weight + blocks * u64(before) + block * u64(bytes);
}
