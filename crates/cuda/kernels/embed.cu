// Embed: rows of the table, decoded to the reference's bits.
//
// Grid: (parts of a row, rows of the step). Block: 128 threads, each 32 elements of a quantised table (one of a float table).
// A token of -1 is the one that the row's sequence carries: the sequence whose rows contain this one, by cu_seqlens. A token outside
// the table is a fault, and its row is NaN.
//
// variants: TYPE = F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_NL IQ4_XS TQ1_0 TQ2_0 MXFP4 NVFP4
#include "blocks.cuh"

// Elements that a thread decodes.
constexpr int N = TYPE::ELEMS == 1 ? 1 : 32;

// Elements i .. i + N of row `token`.
template <class B> __device__ __forceinline__ void decode(const u8* table, int vocab, int d, int token, int i, float* w) {
    if constexpr (B::INTEGER) {
        u64 in_row = u64(d / B::ELEMS), block = u64(token) * in_row + u64(i / B::ELEMS);
        decode32<B>(table, u64(vocab) * in_row, block, i % B::ELEMS / 32, w);
    } else {
        w[0] = load_f<B>(table, u64(token) * u64(d) + u64(i));
    }
}

// The token that row `t` carries: that of the slot of the sequence before which as many sequences end as end up to row `t`.
__device__ __forceinline__ int carried(int t, const int* carry, const int* sequence_slots, const int* cu_seqlens, int sequences,
                                       int slots) {
    int sequence = 0;
    for (int first = 0; first < sequences; first += WARP) {
        int s = first + int(threadIdx.x) % WARP;
        sequence += __popc(__ballot_sync(FULL, s < sequences && cu_seqlens[s + 1] <= t));
    }
    int slot = sequence < sequences ? sequence_slots[sequence] : -1;
    return slot >= 0 && slot < slots ? carry[slot] : -1;
}

KERNEL(128)
embed(Rows rows, const int* tokens, const u8* table, float* out, int vocab, int d, const int* carry, const int* sequence_slots,
      const int* cu_seqlens, int sequences, int slots, Fault* fault, int op) {
    pdl_wait();
    pdl_go();
    int t = int(blockIdx.y), i = int(blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (!is_live(rows, t)) return;
    int token = tokens[t];
    if (token == -1 && carry) token = carried(t, carry, sequence_slots, cu_seqlens, sequences, slots);
    bool is_bad = token < 0 || token >= vocab;
    if (is_bad && blockIdx.x == 0 && threadIdx.x == 0) raise(fault, FAULT_TOKEN, op, t, token, vocab);
    if (i >= d) return;
    out += u64(t) * u64(d) + u64(i);
    float w[N];
    if (!is_bad) decode<TYPE>(table, vocab, d, token, i, w);
#pragma unroll
    for (int j = 0; j < N; j++) out[j] = is_bad ? __uint_as_float(0x7fc00000u) : w[j];
}
