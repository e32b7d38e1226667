// z · sigmoid(z), as the reference computes it (plan/src/reference/math.rs).
#pragma once
#include "common.cuh"

__device__ __forceinline__ float silu(float z) { return z * (1.0f / (1.0f + expf(-z))); }

// silu(gate) · up, four elements.
__device__ __forceinline__ float4 gated(float4 gate, float4 up) {
    return make_float4(silu(gate.x) * up.x, silu(gate.y) * up.y, silu(gate.z) * up.z, silu(gate.w) * up.w);
}
