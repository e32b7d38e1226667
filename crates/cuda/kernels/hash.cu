// A hash of a weight where it lies, whatever its layout: that of `glim_plan::fingerprint`, which says what it finds and what it does not.
//
// Unit i of the file's bytes with value v adds mix(i · γ + v) to one sum, in any order. Units have UNIT bytes.
// Grid: as many blocks of 128 threads as the GPU holds. Each plane of the weight (`src/layout.rs`) is read in pieces of up to 16 bytes,
// neighbouring threads neighbouring pieces; a piece's place in the plane says which block's it is, and so which units of the file.
// variants: UNIT = 1 2 4
#include "fields.cuh"
#include "mix.cuh"

// The sum over the units of `bytes` bytes in `words`, of which the first is unit `first`.
__device__ __forceinline__ u64 sum_of(const u32* words, int bytes, u64 first) {
    u64 sum = 0, at = first * GAMMA;
#pragma unroll
    for (int i = 0; i < 16 / UNIT; i++) {
        if (i * UNIT >= bytes) break;
        u32 word = words[i * UNIT / 4] >> (i * UNIT % 4 * 8);
        u32 value = UNIT == 4 ? word : word & ((1u << (UNIT * 8 % 32)) - 1);
        sum += mix(at + value);
        at += GAMMA;
    }
    return sum;
}

// A piece of 1, 2, 4, 8 or 16 bytes, aligned to its size.
__device__ __forceinline__ void load_piece(const u8* from, int bytes, u32* words) {
    if (bytes == 16) {
        uint4 v = load16(from);
        words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
    } else if (bytes == 8) {
        uint2 v = load8(from);
        words[0] = v.x, words[1] = v.y;
    } else {
        words[0] = bytes == 4 ? load4(from) : bytes == 2 ? u32(load2(from)) : u32(*from);
    }
}

KERNEL(128) hash(const u8* weight, u64 blocks, int block_bytes, Fields fields, u64* out) {
    pdl_wait();
    pdl_go();
    const u64 first = u64(blockIdx.x) * blockDim.x + threadIdx.x, step = u64(gridDim.x) * blockDim.x;
    u64 sum = 0;
    for (int f = 0; f < fields.count; f++) {
        const int bytes = fields.bytes[f], piece = min(bytes & -bytes, 16), pieces = bytes / piece;
        for (u64 i = first; i < blocks * pieces; i += step) {
            const u64 block = i / pieces, at = block * block_bytes + fields.at[f] + int(i - block * pieces) * piece;
            u32 words[4];
            load_piece(weight + i * piece, piece, words);
            sum += sum_of(words, piece, at / UNIT);
        }
        weight += blocks * bytes;
    }
    for (int lanes = WARP / 2; lanes; lanes >>= 1) sum += __shfl_xor_sync(FULL, sum, lanes);
    if (threadIdx.x % WARP == 0) atomicAdd(out, sum);
}
