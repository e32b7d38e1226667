// Copies from global to shared memory that no register holds on the way (`cp.async`, sm_80 and later).
#pragma once
#include "common.cuh"

#ifdef GLIM_EMULATED
__device__ __forceinline__ void copy16_async(void* shared, const void* global) {
    *static_cast<uint4*>(shared) = *static_cast<const uint4*>(global);
}
__device__ __forceinline__ void copies_wait() {}
#else
// 16 bytes, both ends aligned to 16. Past L1: what comes here is read once by a block.
__device__ __forceinline__ void copy16_async(void* shared, const void* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(u32(__cvta_generic_to_shared(shared))), "l"(global)
                 : "memory");
}
// Waits for this thread's copies; the others' are seen after a barrier.
__device__ __forceinline__ void copies_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }
#endif
