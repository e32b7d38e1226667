// The draw of a token for each output row, by plan/src/sample.rs.
//
// Four kernels, since the vocabulary is worth many blocks and each step needs the one before from all of them: `sample_scan` looks
// for corrupt logits and finds the largest; `sample_cut` turns top-k and top-p into a bound on ranked values; `sample_race` runs the
// race among what is above it; `sample_pick` takes the best of the parts and carries the token. Rows without a cut pass the second
// in a microsecond, greedy rows the third as well.
//
// Every choice is exact: maxima do not depend on an order, a bound is that of a sort by value and token, and the sum of top-p is
// added up in the specification's order. Logarithms and exponentials may differ from the CPU's by an ulp.
// spills: sample_cut
#include "common.cuh"
#include "draw.cuh"
#include "nth.cuh"

// Where the parameters of all rows lie, one row after another.
#define PARAMETERS const float *temperature, const int *top_k, const float *top_p, const float *min_p, const int *seeds, const int *positions
#define LOGITS const float *logits, const int *ids, const u32 *masks, int words, int width

// Grid (parts, rows).
KERNEL(256) sample_scan(LOGITS, Scan* scans, Rows rows) {
    __shared__ Scan room[PART_THREADS / WARP];
    pdl_wait();
    pdl_go();
    const int row = blockIdx.y, start = blockIdx.x * PART;
    if (!is_live(rows, row)) return;
    const Tokens tokens = tokens_of(logits, ids, masks, words, 0, width, row);
    scan_part(tokens, start, min(start + PART, width), room, scans + u64(row) * gridDim.x + blockIdx.x);
}

// ---- the cut ---------------------------------------------------------------------------------------------------------------------------

// Tokens with at least this ranked value are kept; `sorted`: of equal ones in the race the one with the larger logit wins, not the
// one with the lower token, since the specification meets them in that order.
struct Cut {
    u64 least;
    u32 sorted, reserved;
};

constexpr int CUT_THREADS = 1024;
// Tokens that are sorted at once. Host: program/head.rs.
constexpr int CHUNK = 8192;
// e to this is below half an ulp of any sum that begins with 1: what is less likely changes no sum of probabilities, and no prefix.
constexpr float NEGLIGIBLE = -18.1f;

// Sorts `n`, a power of two, the largest first: bitonic, by the whole block. Ends with a barrier.
__device__ __forceinline__ void sort_descending(u64* v, int n) {
    for (int size = 2; size <= n; size <<= 1) {
        for (int stride = size / 2; stride; stride >>= 1) {
            for (int p = threadIdx.x; p < n / 2; p += CUT_THREADS) {
                const int i = 2 * p - (p & (stride - 1)), j = i + stride;
                const u64 a = v[i], b = v[j];
                if (((i & size) == 0) == (a < b)) v[i] = b, v[j] = a;
            }
            __syncthreads();
        }
    }
}

// The tokens of a row as ranked values, and the room to sort some of them in.
struct Sorter {
    Tokens tokens;
    Draw draw;
    int width;
    // CHUNK each; `bins` of the selection lies over them.
    u64* chunk;
    float* sums;
    u32* bins;
    // Shared by the block.
    u32* counter;

    __device__ __forceinline__ u64 get(int i) const {
        const float l = tokens.logits[i];
        return tokens.is_allowed(i, l) ? ranked(draw.scaled(l), tokens.token(i)) : 0;
    }

    // Bins of equal width below the largest: logits of one row share an exponent or two, so that bins by bits would be few, and all
    // threads would wait for one of them.
    static __device__ __forceinline__ u32 bin(u64 r) { return BINS - 1 - u32(fminf(ranked_value(r) * -64.0f, float(BINS - 1))); }

    // As `nth_largest`, of those below `below`.
    __device__ __forceinline__ u64 nth(u64 below, u32 k) const {
        __shared__ u32 room[WARP], found[2];
        for (int b = threadIdx.x; b < BINS; b += CUT_THREADS) bins[b] = 0;
        __syncthreads();
#pragma unroll 4
        for (int i = threadIdx.x; i < width; i += CUT_THREADS) {
            const u64 r = get(i);
            if (r && r < below) atomicAdd(&bins[bin(r)], 1u);
        }
        __syncthreads();
        find_bin(bins, k, room, found);
        const u32 own = found[0], above = found[1], through = above + bins[own];
        // The least that can lie in the bin.
        const u64 edge = own ? (u64(order_key(float(BINS - own) / -64.0f)) + 1) << 32 : 1;
        __syncthreads();
        if (through <= CHUNK) {
            collect(edge, below);
            return chunk[k - 1];
        }
        const u64 least = nth_largest([&](int i) {
            const u64 r = get(i);
            return r && r < below && bin(r) == own ? r : 0;
        }, width, k - above, bins);
        // A bound of few digits may reach into the bin below.
        return max(least, edge);
    }

    // Collects those in `least .. below` and sorts them; how many there are, of which no more than CHUNK have been collected.
    __device__ __forceinline__ int collect(u64 least, u64 below) const {
        if (threadIdx.x == 0) *counter = 0;
        __syncthreads();
#pragma unroll 4
        for (int i = threadIdx.x; i < width; i += CUT_THREADS) {
            const u64 r = get(i);
            if (r >= least && r < below) {
                const u32 place = atomicAdd(counter, 1u);
                if (place < CHUNK) chunk[place] = r;
            }
        }
        __syncthreads();
        const int count = *counter, n = min(count, CHUNK);
        int padded = 1;
        while (padded < n) padded <<= 1;
        for (int i = n + threadIdx.x; i < padded; i += CUT_THREADS) chunk[i] = 0;
        __syncthreads();
        sort_descending(chunk, padded);
        return count;
    }

    // `sums[i]` = `before` + the probabilities (times that of the likeliest) of the first `i + 1` of the chunk, in order.
    __device__ __forceinline__ float add_up(int n, float before) const {
        for (int i = threadIdx.x; i < n; i += CUT_THREADS) sums[i] = float(exp(double(ranked_value(chunk[i]))));
        __syncthreads();
        if (threadIdx.x == 0) {
            for (int i = 0; i < n; i += 4) {
                // Past the end of the chunk's part lies more of the room.
                float4 w = *reinterpret_cast<float4*>(sums + i);
                w.x = before += w.x, w.y = before += w.y, w.z = before += w.z, w.w = before += w.w;
                *reinterpret_cast<float4*>(sums + i) = w;
            }
        }
        __syncthreads();
        return sums[n - 1];
    }

    // How many of the chunk belong to the prefix that reaches `wanted`.
    __device__ __forceinline__ int prefix(int n, float before, float wanted) const {
        int count = 0;
        for (int start = 0; start < n; start += CUT_THREADS) {
            const int i = start + threadIdx.x;
            count += __syncthreads_count(i < n && (i ? sums[i - 1] : before) < wanted);
        }
        return count;
    }

    // Top-p among those of at least `least`: the last ranked value that is kept. There is one.
    __device__ __forceinline__ u64 top_p(u64 least, float top_p) const {
        least = max(least, u64(order_key(NEGLIGIBLE)) << 32);
        const int count = collect(least, ~0ull);
        if (count <= CHUNK) {
            const float wanted = top_p * add_up(count, 0.0f);
            return chunk[max(prefix(count, 0.0f, wanted), 1) - 1];
        }
        // More than can be sorted at once: chunk after chunk downwards, once for the sum of all and once for the prefix.
        float wanted = 0.0f;
        for (int round = 0; round < 2; round++) {
            u64 below = ~0ull, last = 0;
            float sum = 0.0f;
            for (int rest = count; rest > 0;) {
                const int n = min(rest, CHUNK);
                const u64 from = n < rest ? nth(below, n) : least;
                __syncthreads();
                collect(from, below);
                const float before = sum;
                sum = add_up(n, before);
                if (round == 1) {
                    const int kept = prefix(n, before, wanted);
                    if (kept) last = chunk[kept - 1];
                    else if (!last) last = chunk[0];
                    if (kept < n) return last;
                }
                below = from;
                rest -= n;
                // Before the chunk is filled again.
                __syncthreads();
            }
            if (round == 1) return last;
            wanted = top_p * sum;
        }
        return least;
    }
};

// Grid (rows). Shared: a chunk of ranked values, and their sums.
KERNEL(1024) sample_cut(LOGITS, PARAMETERS, const Scan* scans, int parts, Cut* cuts, Rows rows) {
    SHARED(u64, room);
    __shared__ u32 counter;
    pdl_wait();
    pdl_go();
    const int row = blockIdx.x;
    if (!is_live(rows, row)) return;
    const Scan scan = scan_of(scans + u64(row) * parts, parts);
    const int k = top_k[row];
    const float p = top_p[row];
    Cut cut = {0, 0, 0};
    const bool by_k = k > 0 && u32(k) < scan.count, by_p = p < 1.0f;
    if (!scan.corrupt && scan.count && !(temperature[row] <= 0.0f)) {
        // NaN is no top-p, but sorts.
        cut.sorted = by_k || !(p >= 1.0f);
        if (by_k || by_p) {
            const Draw draw = draw_of(rows, row, temperature, seeds, positions, scan.best);
            const Tokens tokens = tokens_of(logits, ids, masks, words, 0, width, row);
            const Sorter sorter = {tokens, draw, width, room, reinterpret_cast<float*>(room + CHUNK), reinterpret_cast<u32*>(room), &counter};
            if (by_k) cut.least = sorter.nth(~0ull, k);
            __syncthreads();
            if (by_p) cut.least = sorter.top_p(cut.least, p);
        }
    }
    if (threadIdx.x == 0) cuts[row] = cut;
}

// ---- the race --------------------------------------------------------------------------------------------------------------------------

// A racer; the largest by `rank`, then the lowest token, wins.
struct Racer {
    // Key of logit and noise, then key of the logit if that decides between equals. 0: nobody.
    u64 rank;
    u32 token, reserved;
};

__device__ __forceinline__ Racer faster(const Racer& a, const Racer& b) {
    return b.rank > a.rank || (b.rank == a.rank && b.token < a.token) ? b : a;
}

__device__ __forceinline__ Racer warp_race(Racer r) {
#pragma unroll
    for (int step = WARP / 2; step; step >>= 1) {
        r = faster(r, {__shfl_xor_sync(FULL, r.rank, step), __shfl_xor_sync(FULL, r.token, step), 0});
    }
    return r;
}

// Grid (parts, rows).
KERNEL(256) sample_race(LOGITS, PARAMETERS, const Scan* scans, const Cut* cuts, Racer* racers, Rows rows) {
    __shared__ Racer room[PART_THREADS / WARP];
    pdl_wait();
    pdl_go();
    const int row = blockIdx.y, start = blockIdx.x * PART, end = min(start + PART, width);
    if (!is_live(rows, row) || temperature[row] <= 0.0f) return;
    const Scan scan = scan_of(scans + u64(row) * gridDim.x, gridDim.x);
    if (scan.corrupt) return;
    const Cut cut = cuts[row];
    const Draw draw = draw_of(rows, row, temperature, seeds, positions, scan.best);
    const Tokens tokens = tokens_of(logits, ids, masks, words, 0, width, row);
    const float share = min_p[row];
    const float least = share > 0.0f ? float(log(double(fminf(share, 1.0f)))) : -__uint_as_float(0x7f800000u);
    Racer best = {0, 0, 0};
    for (int i = start + threadIdx.x; i < end; i += PART_THREADS) {
        const float l = tokens.logits[i];
        if (!tokens.is_allowed(i, l)) continue;
        const int token = tokens.token(i);
        const float scaled = draw.scaled(l);
        if (ranked(scaled, token) < cut.least || !(scaled >= least)) continue;
        const u64 rank = u64(order_key(scaled + draw.noise(token))) << 32 | (cut.sorted ? order_key(scaled) : 0);
        best = faster(best, {rank, u32(token), 0});
    }
    best = warp_race(best);
    if (threadIdx.x % WARP == 0) room[threadIdx.x / WARP] = best;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < PART_THREADS / WARP; w++) best = faster(best, room[w]);
        racers[u64(row) * gridDim.x + blockIdx.x] = best;
    }
}

// Grid (rows), a warp each. `carry`, if not null, has a token for each sequence slot; of several output rows of one sequence the last
// carries.
KERNEL(32) sample_pick(const float* temperature, const Scan* scans, const Racer* racers, int parts, int* out, int* carry,
                       const int* cu_seqlens, int sequences, const int* sequence_slots, Rows rows) {
    pdl_wait();
    pdl_go();
    const int row = blockIdx.x, lane = threadIdx.x;
    if (!is_live(rows, row)) return;
    const Scan scan = scan_of(scans + u64(row) * parts, parts);
    int token = TOKEN_NONE_ALLOWED;
    if (scan.corrupt) {
        token = TOKEN_CORRUPT;
    } else if (temperature[row] <= 0.0f) {
        if (scan.best) token = ranked_token(scan.best);
    } else {
        Racer best = {0, 0, 0};
        for (int p = lane; p < parts; p += WARP) best = faster(best, racers[u64(row) * parts + p]);
        best = warp_race(best);
        if (best.rank) token = int(best.token);
    }
    if (lane == 0) out[row] = token;
    if (!carry) return;
    const int source = rows.output_rows[row];
    // The sequence whose rows hold `source`: one lane finds it.
    int found = -1;
    for (int s = lane; s < sequences; s += WARP) {
        if (cu_seqlens[s] <= source && source < cu_seqlens[s + 1]) found = s;
    }
    const u32 finder = __ballot_sync(FULL, found >= 0);
    if (!finder) return;
    found = __shfl_sync(FULL, found, __ffs(finder) - 1);
    bool is_last = true;
    for (int other = row + 1 + lane; other < rows.capacity; other += WARP) {
        const int at = rows.output_rows[other];
        if (at >= cu_seqlens[found] && at < cu_seqlens[found + 1]) is_last = false;
    }
    if (__all_sync(FULL, is_last) && lane == 0) carry[sequence_slots[found]] = token;
}
