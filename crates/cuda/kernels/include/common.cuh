// What every kernel stands on: fixed-width types, 16-bit floats, loads, reductions in a fixed order, live rows, faults.
//
// Kernels include no CUDA header (compiling them takes a fraction of the time, and a user needs no toolkit). Inline PTX stands
// in these include files only, each piece with a twin for the emulator (`GLIM_EMULATED`), which runs kernels on a CPU.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef long long i64;

constexpr int WARP = 32;
constexpr u32 FULL = 0xffffffffu;

// An entry point: KERNEL(most threads of a block[, blocks that a multiprocessor is to hold, which bounds registers]).
#define KERNEL(...) extern "C" __global__ void __launch_bounds__(__VA_ARGS__)

#ifdef GLIM_EMULATED
// `glim_dynamic_shared` and the thread indices come from the emulator's prelude.
#define SHARED(type, name) type* name = reinterpret_cast<type*>(glim_dynamic_shared())
#else
extern __shared__ uint4 glim_dynamic_shared_memory[];
// The block's dynamic shared memory, 16-byte aligned: once in a kernel, which carves it by hand.
#define SHARED(type, name) type* name = reinterpret_cast<type*>(glim_dynamic_shared_memory)
#endif

#ifdef GLIM_SKIPPED_TILE
// A fault on purpose (`src/faults.rs`): the kernel is launched with one block less than it believes, so nobody computes that one's share.
__device__ __forceinline__ auto glim_believed_grid() {
    auto grid = gridDim;
    grid.x += 1;
    return grid;
}
#undef gridDim
#define gridDim (glim_believed_grid())
#endif

// ---- programmatic dependent launch ---------------------------------------------------------------------------------------
// Every thread of every block waits before it touches anything that another kernel writes, also if it then has nothing to do:
// a kernel that ends without having waited would let its successor overtake its predecessor.
// Both are no-ops in a launch without the attribute, and before sm_90.

// The GPU's wall clock; it goes on in steps of up to a microsecond.
__device__ __forceinline__ u64 nanoseconds() {
#ifdef GLIM_EMULATED
    return glim_nanoseconds();
#else
    u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
    return t;
#endif
}

__device__ __forceinline__ void pdl_wait() {
#ifdef GLIM_EMULATED
    glim_pdl_wait();
#elif __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#ifdef GLIM_STAMPS
// Kernels that say when they ran, for `explain`; compiled apart, so that others pay nothing.
//
// Word 0 counts blocks; then come two words for each: when its wait was over, and when its first thread left. Every kernel waits
// for all of its predecessor, so blocks are counted kernel by kernel, in the order of launches: the host, which knows the grids,
// tells from a block's number whose it was. Whatever takes long is not waited for where work could be done: the variable is read before
// the wait, and the number, on its way from the counter, is looked at only when the block leaves.
__device__ u64* glim_stamps;

__device__ __forceinline__ void enter_stamps(u64* stamps, u64& begin, u32& number) {
    if (threadIdx.x == 0) {
        begin = nanoseconds();
        number = atomicAdd(reinterpret_cast<u32*>(stamps), 1u);
    }
}
__device__ __forceinline__ void leave_stamps(u64* stamps, u64 begin, u32 number) {
    if (threadIdx.x == 0) {
        u64* place = stamps + 1 + 2 * u64(number);
        place[0] = begin;
        place[1] = nanoseconds();
    }
}

struct StampGuard {
    u64* stamps;
    u64 begin;
    u32 number;

    __device__ __forceinline__ StampGuard() : stamps(glim_stamps), begin(0), number(0) {
        pdl_wait();
        enter_stamps(stamps, begin, number);
    }
    __device__ __forceinline__ ~StampGuard() { leave_stamps(stamps, begin, number); }
};

// In the body of a kernel: the guard goes when the kernel is left.
#define pdl_wait() StampGuard glim_stamp_guard
#endif

// Lets the next kernel be scheduled. After the wait: earlier, kernels several steps ahead would hold registers and shared memory.
__device__ __forceinline__ void pdl_go() {
#ifdef GLIM_EMULATED
    glim_pdl_go();
#elif __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The wait of a kernel that may compute before it, and must not write: where all it reads was complete when the kernel before it
// started (`before` in program/mod.rs). What it reads then must not come through L1 (paged.cuh).
//
// In the body of a kernel; every thread calls `now` before its first write and before it leaves.
//
// Where its own successor reads little before its wait, that one may come sooner still (`go_early`): it must not read then what this kernel
// writes, nor what the one before this does, and it lets nobody start before its own wait.
struct LateWait {
    bool is_over = false;

    __device__ __forceinline__ void go_early() {
#ifndef GLIM_EMULATED
        pdl_go();
#endif
    }

#ifdef GLIM_STAMPS
    u64* stamps = glim_stamps;
    u64 begin = 0;
    u32 number = 0;

    __device__ __forceinline__ ~LateWait() { leave_stamps(stamps, begin, number); }
#endif

    __device__ __forceinline__ void now() {
        if (is_over) return;
        is_over = true;
        (pdl_wait)();
#ifdef GLIM_STAMPS
        enter_stamps(stamps, begin, number);
#endif
        pdl_go();
    }
};

// ---- 16-bit floats ---------------------------------------------------------------------------------------------------------

#ifdef GLIM_EMULATED
__device__ __forceinline__ float h2f(u16 h) { return glim_half_to_float(h); }
__device__ __forceinline__ u16 f2h(float f) { return glim_float_to_half(f); }
__device__ __forceinline__ u16 f2bf(float f) { return glim_float_to_bfloat(f); }
#else
__device__ __forceinline__ float h2f(u16 h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
__device__ __forceinline__ u16 f2h(float f) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
__device__ __forceinline__ u16 f2bf(float f) {
    u16 h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
#endif
__device__ __forceinline__ float bf2f(u16 h) { return __uint_as_float(u32(h) << 16); }

// ---- loads of weights --------------------------------------------------------------------------------------------------------
// Read once, so kept out of L1. Relaxed and not `ld.global.nc`: the compiler moves the latter below `griddepcontrol.wait`
// wherever that saves a register, and the prefetch is gone.

#ifdef GLIM_EMULATED
__device__ __forceinline__ uint4 load16(const void* p) { return *static_cast<const uint4*>(p); }
__device__ __forceinline__ uint2 load8(const void* p) { return *static_cast<const uint2*>(p); }
__device__ __forceinline__ u32 load4(const void* p) { return *static_cast<const u32*>(p); }
__device__ __forceinline__ u16 load2(const void* p) { return *static_cast<const u16*>(p); }
#else
__device__ __forceinline__ uint4 load16(const void* p) {
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}
__device__ __forceinline__ uint2 load8(const void* p) {
    uint2 v;
    asm volatile("ld.relaxed.gpu.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ u32 load4(const void* p) {
    u32 v;
    asm volatile("ld.relaxed.gpu.global.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ u16 load2(const void* p) {
    u16 v;
    asm volatile("ld.relaxed.gpu.global.L1::no_allocate.u16 %0, [%1];" : "=h"(v) : "l"(p) : "memory");
    return v;
}
#endif

// Four floats in the same way: weights, and activations that are read before the wait.
__device__ __forceinline__ float4 load_floats(const float* p) {
    const uint4 v = load16(p);
    return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w));
}

// ---- reductions, in a fixed order ---------------------------------------------------------------------------------------------

// The sum over a warp, in every lane: a butterfly, so that all lanes get the same bits.
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int step = WARP / 2; step; step >>= 1) v += __shfl_xor_sync(FULL, v, step);
    return v;
}

// The larger of two numbers; NaN if one of them is, unlike fmaxf.
__device__ __forceinline__ float max_nan(float a, float b) { return (a >= b || a != a) ? a : b; }

// The largest over a warp, in every lane; NaN if one is.
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
    for (int step = WARP / 2; step; step >>= 1) v = max_nan(v, __shfl_xor_sync(FULL, v, step));
    return v;
}

// The sum over the first `warps` warps of a block, in every thread. `room` is shared memory for 32 floats; two calls need a barrier
// between them. All threads call.
__device__ __forceinline__ float sum_of_warps(float v, int warps, float* room) {
    v = warp_sum(v);
    if (threadIdx.x % WARP == 0) room[threadIdx.x / WARP] = v;
    __syncthreads();
    float sum = 0.0f;
    for (int w = 0; w < warps; w++) sum += room[w];
    return sum;
}

// The same over a block of whole warps.
__device__ __forceinline__ float block_sum(float v, float* room) { return sum_of_warps(v, int(blockDim.x) / WARP, room); }

// The largest over a block of whole warps, in every thread; as `block_sum`.
__device__ __forceinline__ float block_max(float v, float* room) {
    v = warp_max(v);
    if (threadIdx.x % WARP == 0) room[threadIdx.x / WARP] = v;
    __syncthreads();
    float max = room[0];
    for (int w = 1; w < int(blockDim.x) / WARP; w++) max = max_nan(max, room[w]);
    return max;
}

// ---- live rows -----------------------------------------------------------------------------------------------------------------

// Which rows of a buffer are live in this step. By value, from the host; the counts lie in the input block.
struct Rows {
    // Tokens: number of live rows (the last word of `cu_seqlens`); null otherwise.
    const int* live;
    // Outputs: source row of each, -1 for a pad; null otherwise.
    const int* output_rows;
    // Rows there are.
    int capacity;
    int reserved;
};

__device__ __forceinline__ bool is_live(const Rows& rows, int r) {
    if (r >= rows.capacity) return false;
    if (rows.live) return r < *rows.live;
    if (rows.output_rows) return rows.output_rows[r] >= 0;
    return true;
}

// Whether a row is to be computed. Row 0 is, live or not: most steps have one row, which need not wait to hear that it is live.
__device__ __forceinline__ bool is_computed(const Rows& rows, int r) { return r == 0 || is_live(rows, r); }

// ---- faults ----------------------------------------------------------------------------------------------------------------------

// Indices of a step that pointed outside. The host reads them after the step, and tells of the first in the order of the plan.
//
// Which row comes first does not depend on timing, so a note is written by every one that comes before all that came until then: a
// few, also if every row of a step has one. The host takes the least of the notes.
struct Fault {
    // Place of the first one: operation, then place in it; all ones if there is none.
    u64 first;
    // That were written, or found no room.
    u32 notes;
    u32 reserved;
    struct Note {
        u64 place;
        // One of the codes below.
        int code;
        int value;
        int bound;
        int reserved;
    } note[32];
};

constexpr int FAULT_TOKEN = 1;
constexpr int FAULT_POSITION = 2;
constexpr int FAULT_EXPERT = 3;
// A spinning kernel gave up: `value` is the rank it waited for, `bound` the waiting rank.
constexpr int FAULT_DEADLINE = 4;
// Poison left in an output: `value` is the row, `bound` the element.
constexpr int FAULT_POISON = 5;

// `place`: the number of the row in the operation, or of what of it is wrong; below 2^44.
__device__ __forceinline__ void raise(Fault* fault, int code, int op, u64 place, int value, int bound) {
    place |= u64(op) << 44;
    if (place >= atomicMin(&fault->first, place)) return;
    u32 i = atomicAdd(&fault->notes, 1u);
    if (i < sizeof(fault->note) / sizeof(fault->note[0])) fault->note[i] = {place, code, value, bound, 0};
}
