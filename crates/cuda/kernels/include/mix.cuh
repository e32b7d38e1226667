// SplitMix64's step and finaliser (Steele, Lea, Flood 2014): a counter times GAMMA, mixed, is as good as random.
#pragma once
#include "common.cuh"

constexpr u64 GAMMA = 0x9E3779B97F4A7C15ull;

__device__ __forceinline__ u64 mix(u64 z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}
