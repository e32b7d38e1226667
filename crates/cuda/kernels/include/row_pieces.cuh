// Rows of f32 in pieces that one thread moves with one instruction: 16 bytes where the row's shape allows it, else one element.
//
// `-DVEC=4` asks that every row, start and length is a multiple of four elements; `-DVEC=1` asks for nothing. The host chooses by
// shapes alone, so a row is always read in the same way.
#pragma once
#include "common.cuh"

struct Piece {
    float v[VEC];
};

#if VEC == 4
__device__ __forceinline__ Piece load_piece(const float* p) {
    const float4 v = *reinterpret_cast<const float4*>(p);
    return {{v.x, v.y, v.z, v.w}};
}

__device__ __forceinline__ void store_piece(float* p, const Piece& piece) {
    *reinterpret_cast<float4*>(p) = make_float4(piece.v[0], piece.v[1], piece.v[2], piece.v[3]);
}

// A piece of a weight, which may be read before the wait.
__device__ __forceinline__ Piece load_weight_piece(const float* p) {
    const float4 v = load_floats(p);
    return {{v.x, v.y, v.z, v.w}};
}
#else
__device__ __forceinline__ Piece load_piece(const float* p) { return {{*p}}; }
__device__ __forceinline__ void store_piece(float* p, const Piece& piece) { *p = piece.v[0]; }
__device__ __forceinline__ Piece load_weight_piece(const float* p) { return {{__uint_as_float(load4(p))}}; }
#endif
