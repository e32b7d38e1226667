// Memory that another GPU, another stream or the host reads and writes while a kernel runs; and the clock that bounds waiting for it.
//
// What a thread wrote before `store_release`, and what other threads of its block wrote before a barrier before it, is seen by who sees
// the stored word through `load_acquire`, and by that thread's block after a barrier. Both act on the whole system: peers over NVLink,
// the host over PCIe.
#pragma once

#include "common.cuh"

#ifdef GLIM_EMULATED

__device__ __forceinline__ void store_release(u32* p, u32 v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
__device__ __forceinline__ u32 load_acquire(const u32* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
__device__ __forceinline__ void store_system(u64* p, u64 v) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); }
__device__ __forceinline__ u64 load_system(const u64* p) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }
__device__ __forceinline__ uint4 load16_system(const void* p) { return *static_cast<const uint4*>(p); }
__device__ __forceinline__ u32 load4_system(const void* p) { return *static_cast<const u32*>(p); }
__device__ __forceinline__ void spin() { glim_pause(); }

#else

__device__ __forceinline__ void store_release(u32* p, u32 v) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
__device__ __forceinline__ u32 load_acquire(const u32* p) {
    u32 v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
// With a fence behind it: whatever the thread publishes later is seen by nobody who does not see this.
__device__ __forceinline__ void store_system(u64* p, u64 v) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;\n\tfence.acq_rel.sys;" ::"l"(p), "l"(v) : "memory");
}
__device__ __forceinline__ u64 load_system(const u64* p) {
    u64 v;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
// Past L1, which does not see what a peer writes.
__device__ __forceinline__ uint4 load16_system(const void* p) {
    uint4 v;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}
__device__ __forceinline__ u32 load4_system(const void* p) {
    u32 v;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
// One round of a wait: nothing to do here, the emulator gives its core away.
__device__ __forceinline__ void spin() {}

#endif
