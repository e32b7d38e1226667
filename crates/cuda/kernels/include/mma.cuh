// Tensor cores, and how operands reach them: `mma.sync`, `ldmatrix`, `cp.async`. All of it runs from sm_80 to sm_120.
//
// Layouts as in the PTX ISA ("Matrix Fragments for mma.m16n8k16/k32"), with g = lane / 4 and p = lane % 4. Seen as bytes, the 8-bit
// product of depth 32 and the bf16 product of depth 16 have the same fragments:
//     A [16 rows][32 bytes]: a0 row g, bytes 4p; a1 row g + 8; a2 and a3 the same rows, 16 bytes further
//     B [8 columns][32 bytes]: b0 column g, bytes 4p; b1 16 bytes further
//     C [16][8]: c0 c1 row g, columns 2p and 2p + 1; c2 c3 row g + 8
// so one `ldmatrix` of four 8 × 16-byte matrices serves both, and half of its registers the 8-bit product of depth 16.
//
// A tensor core's own rounding of f32 sums is not specified: it keeps few bits below the largest addend, and cuts the rest off. The
// emulator's twins of these instructions sum in double. Integer products are the same bits everywhere.
#pragma once
#include "common.cuh"

// ---- copies from global to shared memory, in the background ---------------------------------------------------------------------
// A thread's copies are in shared memory after its own `copies_wait`, and visible to others after the barrier that follows.

#ifdef GLIM_EMULATED
__device__ __forceinline__ void copy16(void* shared, const void* global) {
    *static_cast<uint4*>(shared) = *static_cast<const uint4*>(global);
}
__device__ __forceinline__ void copy4(void* shared, const void* global) {
    *static_cast<u32*>(shared) = *static_cast<const u32*>(global);
}
__device__ __forceinline__ void copies_wait() {}
__device__ __forceinline__ void copies_end() {}
template <int PENDING> __device__ __forceinline__ void copies_wait_but() {}
#else
__device__ __forceinline__ u32 shared_address(const void* p) { return u32(__cvta_generic_to_shared(p)); }

// 16 bytes, past the first-level cache.
__device__ __forceinline__ void copy16(void* shared, const void* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global) : "memory");
}
// Four bytes, which pass through that cache.
__device__ __forceinline__ void copy4(void* shared, const void* global) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(shared)), "l"(global) : "memory");
}
// Waits for all copies that this thread has started.
__device__ __forceinline__ void copies_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// Copies since the last call are a group, of which there may be none.
__device__ __forceinline__ void copies_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for all groups of this thread but the last PENDING.
template <int PENDING> __device__ __forceinline__ void copies_wait_but() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
#endif

// ---- fragments out of shared memory -----------------------------------------------------------------------------------------------

// Four matrices of 8 rows × 16 bytes: lane i names row i % 8 of matrix i / 8 (16-byte aligned, in shared memory); r[j] is what the lane
// holds of matrix j: 4 bytes of row g, at byte 4p.
__device__ __forceinline__ void load_matrices(u32 (&r)[4], const void* row) {
#ifdef GLIM_EMULATED
    glim_ldmatrix<4, false>(r, row);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
#endif
}

// ---- products: c += a · b -----------------------------------------------------------------------------------------------------------

// 16 × 8 results, depth 32: signed bytes, sums in 32 bits.
__device__ __forceinline__ void mma_s8(int (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#ifdef GLIM_EMULATED
    const u32 b[2] = {b0, b1};
    glim_mma_m16n8k32_s8(c, a, b, c);
#else
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// The same with unsigned bytes in A.
__device__ __forceinline__ void mma_u8(int (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#ifdef GLIM_EMULATED
    // The highest bits by themselves.
    u32 low[4], high[4];
    int upper[4] = {};
    for (int i = 0; i < 4; i++) low[i] = a[i] & 0x7f7f7f7fu, high[i] = a[i] >> 7 & 0x01010101u;
    mma_s8(c, low, b0, b1);
    mma_s8(upper, high, b0, b1);
    for (int i = 0; i < 4; i++) c[i] += 128 * upper[i];
#else
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// The same with depth 16: a0 and a1 are rows g and g + 8.
__device__ __forceinline__ void mma_s8_half(int (&c)[4], u32 a0, u32 a1, u32 b) {
#ifdef GLIM_EMULATED
    const u32 a[2] = {a0, a1};
    glim_mma_m16n8k16_s8(c, a, &b, c);
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a0), "r"(a1), "r"(b));
#endif
}

// 16 × 8 results, depth 16: bf16, sums in f32.
__device__ __forceinline__ void mma_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#ifdef GLIM_EMULATED
    const u32 b[2] = {b0, b1};
    glim_mma_m16n8k16_bf16(c, a, b, c);
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}
