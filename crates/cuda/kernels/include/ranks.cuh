// Ranks that meet in each other's memory, from inside kernels.
//
// Each rank owns a region that all others can address: words of its own, flags that the others set, and two slices for each block of
// a collective kernel. Blocks of the same number on all ranks form an island. To meet, a block puts its part of what the rank brings
// into one of its two slices, tells its twin on every rank by a flag in *their* region, waits for the flags of all twins in its own
// region, and reads the twins' slices. So waiting polls local memory, and data crosses the link once.
//
// A block numbers its meetings (`epoch`, kept in the region between kernels): arguments stay constant, and graphs replay. The slice is
// chosen by the number's parity, which makes a second barrier needless: a block writes meeting n+2 into a slice only after all twins
// have come to n+1, and each of them came there after it had read n. Islands share nothing, so kernels may differ in their
// grids; they must only be the same on all ranks.
//
// Nobody waits for ever. A thread that has waited `limit_ns` writes whom it missed into the word that all ranks and the host
// share, and gives up; who sees that word, or has given up before, does so at once. What a block that gave up writes is NaN. The group
// is of no use afterwards: nothing here is ever reset.
#pragma once

#include "common.cuh"
#include "system.cuh"

constexpr int MAX_RANKS = 8;
// Blocks of 512 threads: few enough that those of two ranks are resident on one GPU, enough to fill a link.
constexpr int MAX_BLOCKS = 64;
constexpr int SLICE_BYTES = 65536;

// Where things lie in a region; `src/collective/pull.rs` allocates by the same numbers.
constexpr int REGION_EPOCHS = 256;
constexpr int REGION_FLAGS = REGION_EPOCHS + 4 * MAX_BLOCKS;
constexpr int REGION_SLICES = 4096;
static_assert(REGION_FLAGS + 4 * MAX_RANKS * MAX_BLOCKS <= REGION_SLICES, "flags end before the slices");

// The first words of a region.
struct Own {
    // The rank has given up.
    u32 gave_up;
    // One more than the operation of the last collective that the rank has begun in this step; 0 between steps.
    u32 entered;
};

// All ranks as one of them sees them. By value and `__grid_constant__`: read where the launch has put it, without a copy for each thread.
struct Peers {
    u8* regions[MAX_RANKS];
    // In host memory. 0: nobody failed. Else the first failure: the missing rank + 1, the waiting rank + 1 shifted by 8, the
    // operation that it waits in shifted by 32; or `ENDED_BY_HOST`.
    u64* failure;
    u64 limit_ns;
    int rank;
    int world;
};

__device__ __forceinline__ Own* own(const Peers& p) { return reinterpret_cast<Own*>(p.regions[p.rank]); }
__device__ __forceinline__ u32* epoch_of(const Peers& p) {
    return reinterpret_cast<u32*>(p.regions[p.rank] + REGION_EPOCHS) + blockIdx.x;
}
// In the region of rank `of`: the flag that this block's twin on rank `by` sets.
__device__ __forceinline__ u32* flag(const Peers& p, int of, int by) {
    return reinterpret_cast<u32*>(p.regions[of] + REGION_FLAGS) + by * MAX_BLOCKS + blockIdx.x;
}
// What this block's twin on `rank` brings to meeting `epoch`.
__device__ __forceinline__ u8* slice(const Peers& p, int rank, u32 epoch) {
    return p.regions[rank] + REGION_SLICES + u64(2 * blockIdx.x + (epoch & 1)) * SLICE_BYTES;
}

// Waits until `flag` reaches `epoch`; false if it is not to be waited for any longer.
__device__ __forceinline__ bool wait_for(const Peers& p, const u32* flag, u32 epoch, int from, int op, Fault* fault) {
    u64 start = 0;
    // Flags go round after 2^32 meetings.
    for (u32 round = 1; int(load_acquire(flag) - epoch) < 0; round++) {
        spin();
        // What follows is slow, some of it over PCIe; who comes soon does not pay for it.
        if (round % 64) continue;
        u64 now = nanoseconds();
        if (!start) start = now;
        u64 seen = round % 1024 && now - start < p.limit_ns ? 0 : load_system(p.failure);
        if (!seen && now - start >= p.limit_ns) {
            seen = u64(from + 1) | u64(p.rank + 1) << 8 | u64(op) << 32;
            store_system(p.failure, seen);
        }
        if (seen || own(p)->gave_up) {
            raise(fault, FAULT_DEADLINE, op, from, from, p.rank);
            own(p)->gave_up = 1;
            __threadfence();
            return false;
        }
    }
    return true;
}

// Meets the twins of this block: what all its threads wrote to `slice(p, p.rank, epoch)` is there for them, and theirs for it. All
// threads call it; false on all if somebody is missing. `lost` is shared memory.
__device__ __forceinline__ bool meet(const Peers& p, u32 epoch, int op, Fault* fault, int* lost) {
    if (threadIdx.x == 0) *lost = 0;
    __syncthreads();
    int from = threadIdx.x;
    if (from < p.world && from != p.rank) {
        store_release(flag(p, from, p.rank), epoch);
        if (!wait_for(p, flag(p, p.rank, from), epoch, from, op, fault)) *lost = 1;
    }
    __syncthreads();
    return !*lost;
}

// How many rows there are to work on, from the first to the last live one. Inputs are those of all ranks, and so is this. Whole warps
// call it.
__device__ __forceinline__ int used_rows(const Rows& rows) {
    if (rows.live) return min(*rows.live, rows.capacity);
    if (!rows.output_rows) return rows.capacity;
    int lane = threadIdx.x % WARP;
    for (int base = (rows.capacity - 1) / WARP * WARP; base >= 0; base -= WARP) {
        u32 live = __ballot_sync(FULL, base + lane < rows.capacity && rows.output_rows[base + lane] >= 0);
        if (live) return base + WARP - __clz(live);
    }
    return 0;
}

// A float as the wire carries it.
#if WIRE == 16
__device__ __forceinline__ float wired(float v) { return bf2f(f2bf(v)); }
#else
__device__ __forceinline__ float wired(float v) { return v; }
#endif

// ---- what is gathered ----------------------------------------------------------------------------------------------------------
// A rank brings, row after row, its columns of all parts: its stream. Widths are in units: 4 words where all of them can be divided
// so, else 1. Floats travel as rounded f32: gathers are small, and their cost is the meeting.

constexpr int MAX_PARTS = 4;

struct Part {
    const u8* x;
    u8* out;
    // Units that each rank brings for a row.
    int widths[MAX_RANKS];
    int is_float;
    int reserved;
};

// By value, as `Peers`.
struct Parts {
    Part parts[MAX_PARTS];
    // Of all parts: units that each rank brings for a row.
    int widths[MAX_RANKS];
    int count;
    int reserved;
};

// What a gather leaves where ranks did not come together has all bits set: NaN, or -1.
#if UNIT == 4
typedef uint4 Unit;
__device__ __forceinline__ Unit nothing() { return make_uint4(~0u, ~0u, ~0u, ~0u); }
__device__ __forceinline__ Unit load_system_unit(const void* p) { return load16_system(p); }
__device__ __forceinline__ Unit rounded(Unit v) {
    return make_uint4(__float_as_uint(wired(__uint_as_float(v.x))), __float_as_uint(wired(__uint_as_float(v.y))),
                      __float_as_uint(wired(__uint_as_float(v.z))), __float_as_uint(wired(__uint_as_float(v.w))));
}
#else
typedef u32 Unit;
__device__ __forceinline__ Unit nothing() { return ~0u; }
__device__ __forceinline__ Unit load_system_unit(const void* p) { return load4_system(p); }
__device__ __forceinline__ Unit rounded(Unit v) { return __float_as_uint(wired(__uint_as_float(v))); }
#endif

// Unit `i` of this rank's stream, as it travels.
__device__ __forceinline__ Unit brought(const Parts& g, int rank, u32 i) {
    u32 row = i / u32(g.widths[rank]);
    int column = int(i % u32(g.widths[rank])), part = 0;
    while (column >= g.parts[part].widths[rank]) column -= g.parts[part++].widths[rank];
    const Part& from = g.parts[part];
    Unit v = reinterpret_cast<const Unit*>(from.x)[u64(row) * from.widths[rank] + column];
    return from.is_float ? rounded(v) : v;
}

// Puts unit `i` of `rank`'s stream in its place.
__device__ __forceinline__ void place(const Parts& g, int rank, int world, u32 i, Unit v) {
    u32 row = i / u32(g.widths[rank]);
    int column = int(i % u32(g.widths[rank])), part = 0;
    while (column >= g.parts[part].widths[rank]) column -= g.parts[part++].widths[rank];
    const Part& to = g.parts[part];
    int whole = 0;
    for (int r = 0; r < world; r++) {
        if (r == rank) column += whole;
        whole += to.widths[r];
    }
    reinterpret_cast<Unit*>(to.out)[u64(row) * whole + column] = v;
}
