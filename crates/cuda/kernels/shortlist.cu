// Candidates: the best of a rank's part of the vocabulary (`shortlist` in plan/src/sample.rs), and the merge of the ranks'
// (`top_k_merge` in plan/src/reference/moe.rs).
//
// The shortlist is made in three kernels: `shortlist_scan` finds the largest logit; `shortlist_part` keeps the best of each part of a
// row, so that the logarithms of the noise are spread over many blocks; `shortlist_pick` keeps the best of those, by token.
#include "common.cuh"
#include "draw.cuh"
#include "nth.cuh"

// Grid (parts, rows).
KERNEL(256) shortlist_scan(const float* logits, const u32* masks, int words, int first, int width, Scan* scans, Rows rows) {
    __shared__ Scan room[PART_THREADS / WARP];
    pdl_wait();
    pdl_go();
    const int row = blockIdx.y, start = blockIdx.x * PART;
    if (!is_live(rows, row)) return;
    const Tokens tokens = tokens_of(logits, nullptr, masks, words, first, width, row);
    scan_part(tokens, start, min(start + PART, width), room, scans + u64(row) * gridDim.x + blockIdx.x);
}

// The best min(k, PART) of each part as ranked values, 0 for none: `kept[row, part, each]`. Grid (parts, rows).
KERNEL(256) shortlist_part(const float* logits, const u32* masks, int words, int first, int width, const float* temperature,
                           const int* top_k, const int* seeds, const int* positions, const Scan* scans, int k, u64* kept, Rows rows) {
    __shared__ u64 own[PART];
    __shared__ u32 bins[BINS];
    __shared__ u32 counter;
    pdl_wait();
    pdl_go();
    const int row = blockIdx.y, start = blockIdx.x * PART, end = min(start + PART, width), each = min(k, PART);
    if (!is_live(rows, row)) return;
    const Scan scan = scan_of(scans + u64(row) * gridDim.x, gridDim.x);
    if (scan.corrupt) return;
    const Draw draw = draw_of(rows, row, temperature, seeds, positions, scan.best);
    const Tokens tokens = tokens_of(logits, nullptr, masks, words, first, width, row);
    // A race that nothing is cut from goes by its own values, all else by logits.
    const bool races = temperature[row] > 0.0f && top_k[row] <= 0;
    u32 count = 0;
    for (int i = threadIdx.x; i < PART; i += PART_THREADS) {
        u64 r = 0;
        if (start + i < end) {
            const float l = tokens.logits[start + i];
            const int token = tokens.token(start + i);
            if (tokens.is_allowed(start + i, l)) r = ranked(races ? draw.scaled(l) + draw.noise(token) : l, token);
        }
        own[i] = r;
        count += r != 0;
    }
    if (threadIdx.x == 0) counter = 0;
    __syncthreads();
    atomicAdd(&counter, count);
    __syncthreads();
    count = counter;
    __syncthreads();
    const u64 least = int(count) <= each ? 1 : nth_largest([&](int i) { return own[i]; }, PART, each, bins);
    if (threadIdx.x == 0) counter = 0;
    __syncthreads();
    u64* out = kept + (u64(row) * gridDim.x + blockIdx.x) * each;
    for (int i = threadIdx.x; i < PART; i += PART_THREADS) {
        if (own[i] >= least) out[atomicAdd(&counter, 1u)] = own[i];
    }
    __syncthreads();
    for (int i = counter + threadIdx.x; i < each; i += PART_THREADS) out[i] = 0;
}

// Tokens ascending, then empty places; one NaN for a corrupt row. Grid (rows). Shared: `k` tokens.
KERNEL(256) shortlist_pick(const float* logits, int first, int width, const Scan* scans, int parts, const u64* kept, int k,
                           float* out_values, int* out_ids, Rows rows) {
    SHARED(int, picked);
    __shared__ u32 bins[BINS];
    __shared__ u32 counter;
    pdl_wait();
    pdl_go();
    const int row = blockIdx.x, n = parts * min(k, PART);
    if (!is_live(rows, row)) return;
    const Scan scan = scan_of(scans + u64(row) * parts, parts);
    logits += u64(row) * width, kept += u64(row) * n, out_values += u64(row) * k, out_ids += u64(row) * k;
    if (threadIdx.x == 0) counter = 0;
    __syncthreads();
    if (!scan.corrupt) {
        const u64 least = int(scan.count) <= k ? 1 : nth_largest([&](int i) { return kept[i]; }, n, k, bins);
        for (int i = threadIdx.x; i < n; i += PART_THREADS) {
            if (kept[i] >= least) picked[atomicAdd(&counter, 1u)] = ranked_token(kept[i]);
        }
    }
    __syncthreads();
    const int count = counter;
    for (int i = threadIdx.x; i < k; i += PART_THREADS) {
        if (i < count) {
            const int token = picked[i];
            int place = 0;
            for (int j = 0; j < count; j++) place += picked[j] < token;
            out_values[place] = logits[token - first];
            out_ids[place] = token;
        } else {
            const bool says_corrupt = scan.corrupt && i == 0;
            out_values[i] = __uint_as_float(says_corrupt ? 0x7fc00000u : 0xff800000u);
            out_ids[i] = says_corrupt ? first : -1;
        }
    }
}

// The `k` largest of `n` candidates, largest first; of equal ones the lower id first, then the earlier one. Grid (rows): a thread
// counts those before its own.
KERNEL(256) top_k_merge(const float* values, const int* ids, int n, int k, float* out_values, int* out_ids, Rows rows) {
    pdl_wait();
    pdl_go();
    const int row = blockIdx.x;
    if (!is_live(rows, row)) return;
    values += u64(row) * n, ids += u64(row) * n, out_values += u64(row) * k, out_ids += u64(row) * k;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        const u32 key = order_key(values[i]);
        const int id = ids[i];
        int rank = 0;
        for (int j = 0; j < n; j++) {
            const u32 other = order_key(values[j]);
            rank += other > key || (other == key && (ids[j] < id || (ids[j] == id && j < i)));
        }
        if (rank < k) out_values[rank] = values[i], out_ids[rank] = id;
    }
}
