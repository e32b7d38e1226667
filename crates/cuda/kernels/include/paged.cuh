// How a row of a step finds its sequence's cached rows: `plan::Paging` on the device.
//
// Position `p` of sequence `s` lies in slot `block_tables[s][p / block_size] * block_size + p % block_size`. The host has checked
// positions and block tables of live rows before the step, so kernels follow them without looking.
#pragma once
#include "common.cuh"

// All this may be read before a kernel's wait: the step's first kernel had to wait for the copy of its inputs, and lets no other
// start before. But not through L1, which may still hold what an earlier step was told: only the wait makes sure of that.

__device__ __forceinline__ int load_input(const int* p) { return int(load4(p)); }

// Whether a row of tokens is live.
__device__ __forceinline__ bool is_live_token(const Rows& rows, int r) {
    return rows.live ? r < min(load_input(rows.live), rows.capacity) : is_live(rows, r);
}

// The sequence that a live row belongs to: how many of the sequences end at or before it. Called by whole warps: the lanes look at
// 32 ends in one load, where a search would make dependent ones.
__device__ __forceinline__ int sequence_of(const int* cu_seqlens, int sequences, int row) {
    const int lane = threadIdx.x % WARP;
    int before = 0;
#pragma unroll 1
    for (int i = 1; i < sequences; i += WARP) {
        const bool ended = i + lane < sequences && load_input(cu_seqlens + i + lane) <= row;
        before += __popc(__ballot_sync(FULL, ended));
    }
    return before;
}

// The slot of a position, through its sequence's block table.
__device__ __forceinline__ u32 slot_of(const int* block_table, u32 block_size, u32 position) {
    const u32 block = position / block_size;
    return u32(load_input(block_table + block)) * block_size + (position - block * block_size);
}
