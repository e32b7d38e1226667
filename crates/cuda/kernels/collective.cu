// AllReduce and AllGather over ranks that address each other's memory: one-shot pull, in one kernel each. `ranks.cuh` says how ranks meet.
//
// Grid: up to MAX_BLOCKS blocks, the same on all ranks, fixed when the step is prepared. Block: 512 threads. Shared memory: one word.
// Each block owns every gridDim-th span of the live elements; a span fits its slice. It rounds its rank's elements to the wire's
// type into the slice, meets its twins, and then reads all ranks' slices, its own too, in the order of ranks: sums are taken in
// f32 in that order on every rank, so all get the same bits, and the same as any other form of the exchange.
// A load of a peer's memory takes over a microsecond: each thread asks all ranks before it uses what the first gave; with the threads
// that there are, that keeps a link full.
//
// The successor may start once all blocks are past their last wait, not before: its blocks would take the room that blocks of a rank
// on the same GPU need to come to the meeting. For the same reason these kernels are launched without the PDL attribute when ranks
// share a GPU.
//
// WIRE is the wire's type (16: bf16, 32: f32), UNIT the words of a unit of gathers.
// variants: WIRE = 16 32; UNIT = 4 1
// spills: all_gather_pull all_reduce_pull
#include "common.cuh"
#include "ranks.cuh"

constexpr int THREADS = 512;

// A span of a stream for this block: `units` of it in meetings of at most `span`.
struct Span {
    u32 span, first, step;
};

__device__ __forceinline__ Span spans(u32 units, u32 slice_units) {
    // As even as whole 128-byte lines allow.
    u32 even = (units + gridDim.x - 1) / gridDim.x;
    u32 span = min(slice_units, (even + 31) / 32 * 32);
    return {span, blockIdx.x * span, gridDim.x * span};
}

// Says where this rank is, for those who miss it: with the operation while it is inside a step, with nothing after its last collective.
__device__ __forceinline__ void enter(const Peers& p, int op) {
    if (blockIdx.x == 0 && threadIdx.x == 0) own(p)->entered = u32(op + 1);
}
__device__ __forceinline__ void leave(const Peers& p, int is_last) {
    if (is_last && blockIdx.x == 0 && threadIdx.x == 0) own(p)->entered = 0;
}

// ---- sum -----------------------------------------------------------------------------------------------------------------------

// Elements in 16 bytes on the wire.
#if WIRE == 16
constexpr int E = 8;
__device__ __forceinline__ uint4 packed(const float* v) {
    return make_uint4(f2bf(v[0]) | u32(f2bf(v[1])) << 16, f2bf(v[2]) | u32(f2bf(v[3])) << 16,
                      f2bf(v[4]) | u32(f2bf(v[5])) << 16, f2bf(v[6]) | u32(f2bf(v[7])) << 16);
}
__device__ __forceinline__ void unpacked(uint4 w, float* v) {
    u32 words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[2 * i] = bf2f(u16(words[i]));
        v[2 * i + 1] = bf2f(u16(words[i] >> 16));
    }
}
#else
constexpr int E = 4;
__device__ __forceinline__ uint4 packed(const float* v) {
    return make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]), __float_as_uint(v[3]));
}
__device__ __forceinline__ void unpacked(uint4 w, float* v) {
    v[0] = __uint_as_float(w.x);
    v[1] = __uint_as_float(w.y);
    v[2] = __uint_as_float(w.z);
    v[3] = __uint_as_float(w.w);
}
#endif

// E elements from `at` on, of which the last may lie beyond the end.
__device__ __forceinline__ void read_elements(const float* x, u64 at, u64 n, float* v) {
    if (at + E <= n) {
#pragma unroll
        for (int i = 0; i < E / 4; i++) {
            float4 four = reinterpret_cast<const float4*>(x + at)[i];
            v[4 * i] = four.x;
            v[4 * i + 1] = four.y;
            v[4 * i + 2] = four.z;
            v[4 * i + 3] = four.w;
        }
    } else {
        for (int i = 0; i < E; i++) v[i] = at + i < n ? x[at + i] : 0.0f;
    }
}
__device__ __forceinline__ void write_elements(float* out, u64 at, u64 n, const float* v) {
    if (at + E <= n) {
#pragma unroll
        for (int i = 0; i < E / 4; i++)
            reinterpret_cast<float4*>(out + at)[i] = make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
    } else {
        for (int i = 0; at + i < n; i++) out[at + i] = v[i];
    }
}

// out = sum of the ranks' x: `width` elements a row, rows one after the other.
KERNEL(512) all_reduce_pull(const __grid_constant__ Peers peers, const float* x, float* out, Rows rows, int width, int op, int is_last, Fault* fault) {
    __shared__ int lost;
    pdl_wait();
    enter(peers, op);
    u64 n = u64(used_rows(rows)) * width;
    u32 units = u32((n + E - 1) / E);
    Span s = spans(units, SLICE_BYTES / 16);
    u32 epoch = *epoch_of(peers);
    bool together = true;
    if (s.first >= units) pdl_go();
    for (u32 first = s.first; first < units; first += s.step) {
        u32 end = min(s.span, units - first);
        epoch++;
        uint4* mine = reinterpret_cast<uint4*>(slice(peers, peers.rank, epoch));
        for (u32 i = threadIdx.x; i < end; i += THREADS) {
            float v[E];
            read_elements(x, u64(first + i) * E, n, v);
            mine[i] = packed(v);
        }
        together = meet(peers, epoch, op, fault, &lost) && together;
        if (first + s.step >= units) pdl_go();
        for (u32 i = threadIdx.x; i < end; i += THREADS) {
            uint4 seen[MAX_RANKS];
#pragma unroll
            for (int r = 0; r < MAX_RANKS; r++)
                if (r < peers.world) seen[r] = load16_system(slice(peers, r, epoch) + 16 * i);
            float sum[E];
            unpacked(seen[0], sum);
#pragma unroll
            for (int r = 1; r < MAX_RANKS; r++) {
                if (r >= peers.world) continue;
                float v[E];
                unpacked(seen[r], v);
#pragma unroll
                for (int e = 0; e < E; e++) sum[e] += v[e];
            }
            if (!together) {
#pragma unroll
                for (int e = 0; e < E; e++) sum[e] = __uint_as_float(~0u);
            }
            write_elements(out, u64(first + i) * E, n, sum);
        }
    }
    if (threadIdx.x == 0) *epoch_of(peers) = epoch;
    leave(peers, is_last);
}

// ---- gather --------------------------------------------------------------------------------------------------------------------

// The ranks' columns of each part side by side.
KERNEL(512) all_gather_pull(const __grid_constant__ Peers peers, const __grid_constant__ Parts parts, Rows rows, int op, int is_last, Fault* fault) {
    __shared__ int lost;
    pdl_wait();
    enter(peers, op);
    u32 n = u32(used_rows(rows)), longest = 0;
    for (int r = 0; r < peers.world; r++) longest = max(longest, u32(parts.widths[r]));
    longest *= n;
    Span s = spans(longest, SLICE_BYTES / sizeof(Unit));
    u32 epoch = *epoch_of(peers);
    bool together = true;
    if (s.first >= longest) pdl_go();
    for (u32 first = s.first; first < longest; first += s.step) {
        epoch++;
        Unit* mine = reinterpret_cast<Unit*>(slice(peers, peers.rank, epoch));
        u32 units = n * u32(parts.widths[peers.rank]), end = units > first ? min(s.span, units - first) : 0;
        for (u32 i = threadIdx.x; i < end; i += THREADS) mine[i] = brought(parts, peers.rank, first + i);
        together = meet(peers, epoch, op, fault, &lost) && together;
        if (first + s.step >= longest) pdl_go();
        for (int r = 0; r < peers.world; r++) {
            const Unit* theirs = reinterpret_cast<const Unit*>(slice(peers, r, epoch));
            units = n * u32(parts.widths[r]), end = units > first ? min(s.span, units - first) : 0;
            for (u32 i = threadIdx.x; i < end; i += 2 * THREADS) {
                Unit seen[2];
#pragma unroll
                for (u32 u = 0; u < 2; u++)
                    if (i + u * THREADS < end) seen[u] = load_system_unit(theirs + i + u * THREADS);
#pragma unroll
                for (u32 u = 0; u < 2; u++)
                    if (i + u * THREADS < end)
                        place(parts, r, peers.world, first + i + u * THREADS, together ? seen[u] : nothing());
            }
        }
    }
    if (threadIdx.x == 0) *epoch_of(peers) = epoch;
    leave(peers, is_last);
}
