// Rotations of pairs, by angles that one launch a step has computed (`angles` in rope.cu).
#pragma once
#include "common.cuh"

// Columns of a pair, from the first rotated one on.
struct Pair {
    int a, b;
};

__device__ __forceinline__ Pair pair_of(int i, int pairs, bool half_split) {
    if (half_split) return {i, i + pairs};
    return {2 * i, 2 * i + 1};
}

// `to` gets `x` turned by the angle of this cosine (x) and sine (y). Two roundings a product, as in the reference: no fused
// multiply-add.
__device__ __forceinline__ void turn(float* to, Pair p, float2 angle, float2 x) {
    to[p.a] = __fsub_rn(__fmul_rn(x.x, angle.x), __fmul_rn(x.y, angle.y));
    to[p.b] = __fadd_rn(__fmul_rn(x.y, angle.x), __fmul_rn(x.x, angle.y));
}
