// How a row of a step finds its sequence's cached rows: `plan::Paging` on the device.
//
// Position `p` of sequence `s` lies in slot `block_tables[s][p / block_size] * block_size + p % block_size`. The host has checked
// positions and block tables of live rows before the step, so kernels follow them without looking.
#pragma once
#include "common.cuh"

// The sequence that a live row belongs to: how many of the sequences end at or before it. Called by whole warps: the lanes look at
// 32 ends in one load, where a search would make dependent ones.
__device__ __forceinline__ int sequence_of(const int* cu_seqlens, int sequences, int row) {
    const int lane = threadIdx.x % WARP;
    int before = 0;
    for (int i = 1; i < sequences; i += WARP) {
        const bool ended = i + lane < sequences && cu_seqlens[i + lane] <= row;
        before += __popc(__ballot_sync(FULL, ended));
    }
    return before;
}

// The slot of a position, through its sequence's block table.
__device__ __forceinline__ u32 slot_of(const int* block_table, u32 block_size, u32 position) {
    return u32(block_table[position / block_size]) * block_size + position % block_size;
}
