// The order of floats that choices go by: `f32::total_cmp` of `v + 0`, as integers.
#pragma once
#include "common.cuh"

// Larger number, larger key. −0 and 0 are equal; NaN is above all, whatever its sign: the sign of a NaN differs between
// processors, and a choice must not. No float has the key 0.
__device__ __forceinline__ u32 order_key(float v) {
    u32 bits = __float_as_uint(v + 0.0f);
    if (v != v) return 0xffffffffu;
    return bits ^ (u32(int(bits) >> 31) | 0x80000000u);
}

// The number whose key it is.
__device__ __forceinline__ float order_value(u32 key) {
    return __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}
