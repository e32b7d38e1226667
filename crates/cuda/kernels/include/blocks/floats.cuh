// Types that store each element on its own: F32, F16, BF16. They lie as stored, and a row of odd length is aligned to an element.
#pragma once
#include "common.cuh"

struct F32 {
    static constexpr int ELEMS = 1, BYTES = 4;
    static constexpr bool INTEGER = false;
};
struct F16 {
    static constexpr int ELEMS = 1, BYTES = 2;
    static constexpr bool INTEGER = false;
};
struct BF16 {
    static constexpr int ELEMS = 1, BYTES = 2;
    static constexpr bool INTEGER = false;
};

// Element `i` of a row.
template <class B> __device__ __forceinline__ float load_f(const u8* row, u64 i);
template <> __device__ __forceinline__ float load_f<F32>(const u8* row, u64 i) { return __uint_as_float(load4(row + 4 * i)); }
template <> __device__ __forceinline__ float load_f<F16>(const u8* row, u64 i) { return h2f(load2(row + 2 * i)); }
template <> __device__ __forceinline__ float load_f<BF16>(const u8* row, u64 i) { return bf2f(load2(row + 2 * i)); }
