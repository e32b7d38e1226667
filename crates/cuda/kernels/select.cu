// The positions of the topk largest scores of each row, ascending; equal scores at the last place: the lower positions win.
//
// One block chooses for one row: it finds the topk-th largest score (threshold.cuh), then each warp counts, in a stretch of its own,
// the keys above the threshold and those on it, and after one prefix sum over the warps writes its positions in order.
//
// One block takes 29 us (H200) for 32k scores, and 146 for 128k. So in decode, rows of more than SIFT_FROM positions are sifted
// before, by up to SIFTS blocks each: 2048 scores, spread over the row, give a bound that topk scores and a few more should reach, and
// all that do so go to lists. If the lists have room and hold topk or more, the choice lies among them, whatever the bound was, and
// the block that chooses looks at nothing else; it puts the chosen into a map of bits, which gives them back in order. If not (more
// ties than the lists have room for, or an unlucky sample), it looks at the whole row. Both together take 14 and 16 us.
//
// A row that sees no more than topk positions takes them all, and its scores are not read. A forced row is copied.
//
// Grids: rows x up to SIFTS; rows. Shared memory: 17 KB, and for what was sifted 64 KB and two bits a position.
// variants: VEC = 1 4
// spills: index_select
// (40 bytes, on sm_80 only)
#include "paged.cuh"
#include "threshold.cuh"

// Sifting: from how many positions on, blocks of a row, room of each block's list, and room in the block that chooses.
constexpr int SIFT_FROM = 8192;
constexpr int SIFTS = 32;
constexpr int LIST = 4096;
constexpr int SIFTED = 8192;
// The count of a list that is no good.
constexpr u32 NO_LIST = 0xffffffffu;

// How a piece's keys stand to the threshold: bit j of a word for element j.
struct Sides {
    u32 above;
    u32 equal;
};

__device__ __forceinline__ Sides sides(const Piece& piece, int i, int end, const Threshold& t) {
    Sides s = {0, 0};
#pragma unroll
    for (int j = 0; j < VEC; j++) {
        const u32 key = key_of(piece.v[j]) & t.mask;
        if (i + j < end && key > t.prefix) s.above |= 1u << j;
        if (i + j < end && key == t.prefix) s.equal |= 1u << j;
    }
    return s;
}

// Elements i.. as far as there are any before `end`.
__device__ __forceinline__ Piece piece_at(const float* scores, int i, int end) {
    Piece piece = {};
    if (i < end) piece = load_piece(scores + i);
    return piece;
}

__device__ __forceinline__ void write_chosen(const float* scores, int n, const Threshold& t, int* out) {
    __shared__ u32 above_of[WARPS];
    __shared__ u32 equal_of[WARPS];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    constexpr int STEP = WARP * VEC;
    // A stretch of whole steps for each warp.
    const int stretch = ((n + WARPS - 1) / WARPS + STEP - 1) / STEP * STEP;
    const int begin = min(warp * stretch, n), end = min(begin + stretch, n);

    u32 above = 0, equal = 0;
#pragma unroll 4
    for (int i = begin + lane * VEC; i < end; i += STEP) {
        const Sides s = sides(load_piece(scores + i), i, end, t);
        above += __popc(s.above);
        equal += __popc(s.equal);
    }
    above = __shfl_sync(FULL, warp_scan(above), WARP - 1);
    equal = __shfl_sync(FULL, warp_scan(equal), WARP - 1);
    if (lane == 0) {
        above_of[warp] = above;
        equal_of[warp] = equal;
    }
    __syncthreads();
    u32 x = above_of[lane], y = equal_of[lane];
    x = warp_scan(x) - x;
    y = warp_scan(y) - y;
    above = __shfl_sync(FULL, x, warp);
    equal = __shfl_sync(FULL, y, warp);

    const u32 lower = (1u << lane) - 1;
    Piece next = piece_at(scores, begin + lane * VEC, end);
#pragma unroll 1
    for (int i = begin; i < end; i += STEP) {
        const Sides s = sides(next, i + lane * VEC, end, t);
        next = piece_at(scores, i + STEP + lane * VEC, end);
        // Of this step: what lower lanes hold, and what all hold.
        u32 above_before = above, equal_before = equal;
#pragma unroll
        for (int j = 0; j < VEC; j++) {
            const u32 a = __ballot_sync(FULL, s.above >> j & 1), e = __ballot_sync(FULL, s.equal >> j & 1);
            above_before += __popc(a & lower);
            equal_before += __popc(e & lower);
            above += __popc(a);
            equal += __popc(e);
        }
#pragma unroll
        for (int j = 0; j < VEC; j++) {
            const bool is_above = s.above >> j & 1, is_equal = s.equal >> j & 1;
            if (is_above || (is_equal && equal_before < t.wanted)) out[above_before + min(equal_before, t.wanted)] = i + lane * VEC + j;
            above_before += is_above;
            equal_before += is_equal;
        }
    }
}

// Lists what of a stretch is at or above a bound, and returns how much; NO_LIST if there is no room. By the whole block.
__device__ __forceinline__ u32 sift(const float* scores, int begin, int end, const Line& line, u32 bound, uint2* list) {
    __shared__ u32 listed;
    const int lane = threadIdx.x % WARP;
    if (threadIdx.x == 0) listed = 0;
    __syncthreads();
#pragma unroll 1
    for (int first = begin; first < end; first += THREADS * VEC) {
        const int i = first + int(threadIdx.x) * VEC;
        Piece piece = {};
        if (i < end) piece = load_piece(scores + i);
#pragma unroll
        for (int j = 0; j < VEC; j++) {
            const bool is_in = i + j < end && line.bin(piece.v[j]) >= bound;
            const u32 in = __ballot_sync(FULL, is_in);
            u32 at = 0;
            if (lane == 0 && in) at = atomicAdd(&listed, u32(__popc(in)));
            at = __shfl_sync(FULL, at, 0) + __popc(in & ((1u << lane) - 1));
            if (is_in && at < LIST) list[at] = make_uint2(__float_as_uint(piece.v[j]), u32(i + j));
        }
    }
    __syncthreads();
    const u32 count = listed;
    // Before `listed` is written again.
    __syncthreads();
    return count <= LIST ? count : NO_LIST;
}

// What of a row may belong to its topk largest, as (score, position), in any order within each of SIFTS stretches. `counts` and
// `lists` are [row][SIFTS] and [row][SIFTS][LIST]. The blocks of a row share the stretches.
KERNEL(1024) index_sift(const float* scores, int scores_stride, const int* positions, int topk, uint2* lists, u32* counts, Rows rows) {
    __shared__ Bins bins;
    const int row = blockIdx.x;
    const int n = load_input(positions + row) + 1;
    const bool idle = !is_live_token(rows, row) || n <= topk || n <= SIFT_FROM;
    pdl_wait();
    pdl_go();
    if (idle) return;
    const float* visible = scores + u64(row) * scores_stride;
    const Line line = line_of(visible, n);
    u32 bound = 0;
    if (line.is_good()) {
        constexpr u32 SAMPLES = 2 * THREADS;
        clear(bins);
#pragma unroll
        for (u32 j = 0; j < 2; j++) count_one(bins, true, line.bin(visible[sample_of(2 * threadIdx.x + j, SAMPLES, n)]));
        // As many of the sample as the choice is of the row, and four standard deviations more.
        const float share = float(topk) * SAMPLES / n;
        find_bin(bins, min(u32(share + 4.0f * sqrtf(share)) + 8, SAMPLES));
        bound = bins.found[0];
    }
    const int stretch = ((n + SIFTS - 1) / SIFTS + VEC - 1) / VEC * VEC;
#pragma unroll 1
    for (int i = blockIdx.y; i < SIFTS; i += gridDim.y) {
        const u64 place = u64(row) * SIFTS + i;
        const int begin = min(i * stretch, n), end = min(begin + stretch, n);
        const u32 count = line.is_good() ? sift(visible, begin, end, line, bound, lists + place * LIST) : NO_LIST;
        if (threadIdx.x == 0) counts[place] = count;
    }
}

// A row's lists, one after another in shared memory; 0 if they do not hold the choice. By the whole block.
__device__ __forceinline__ u32 gather(const uint2* lists, const u32* counts, u32 topk, float* scores, u32* places) {
    __shared__ u32 before[SIFTS + 1];
    static_assert(SIFTS == WARP, "a lane for each list");
    const int lane = threadIdx.x % WARP;
    const u32 count = counts[lane], through = warp_scan(count);
    const u32 total = __shfl_sync(FULL, through, WARP - 1);
    if (__any_sync(FULL, count == NO_LIST) || total < topk || total > SIFTED) return 0;
    if (threadIdx.x < WARP) {
        before[lane + 1] = through;
        if (lane == 0) before[0] = 0;
    }
    __syncthreads();
    int list = 0;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < total; i += THREADS) {
        while (i >= before[list + 1]) list++;
        const uint2 entry = lists[u64(list) * LIST + i - before[list]];
        scores[i] = __uint_as_float(entry.x);
        places[i] = entry.y;
    }
    __syncthreads();
    return total;
}

// Writes what is chosen of `count` scores at these places, below `n`, in the order of their places. `above` and `equal` have a bit for
// each place.
__device__ __forceinline__ void write_sifted(const float* scores, const u32* places, u32 count, int n, const Threshold& t, u32* above,
                                             u32* equal, int* out) {
    __shared__ u32 above_room[WARPS], equal_room[WARPS];
    const int words = (n + 31) / 32, each = (words + THREADS - 1) / THREADS;
    for (int i = threadIdx.x; i < words; i += THREADS) above[i] = equal[i] = 0;
    __syncthreads();
    for (u32 i = threadIdx.x; i < count; i += THREADS) {
        const u32 key = key_of(scores[i]) & t.mask, bit = 1u << places[i] % 32;
        if (key > t.prefix) atomicOr(&above[places[i] / 32], bit);
        if (key == t.prefix) atomicOr(&equal[places[i] / 32], bit);
    }
    __syncthreads();
    // A few words in a row for each thread.
    const int begin = min(int(threadIdx.x) * each, words), end = min(begin + each, words);
    u32 own_above = 0, own_equal = 0;
    for (int i = begin; i < end; i++) {
        own_above += __popc(above[i]);
        own_equal += __popc(equal[i]);
    }
    u32 above_before = block_scan_before(own_above, above_room), equal_before = block_scan_before(own_equal, equal_room);
#pragma unroll 1
    for (int i = begin; i < end; i++) {
        for (u32 bits = above[i] | equal[i]; bits; bits &= bits - 1) {
            const u32 bit = bits & -bits;
            const bool is_above = above[i] & bit;
            if (is_above || equal_before < t.wanted) out[above_before + min(equal_before, t.wanted)] = 32 * i + __ffs(bit) - 1;
            above_before += is_above;
            equal_before += !is_above;
        }
    }
}

// `forced` is null, or the first of the row's topk columns of an input with rows of `forced_stride`. `lists` is null, or where
// `index_sift` has left its.
KERNEL(1024) index_select(const float* scores, int scores_stride, const int* positions, int topk, const int* forced, int forced_stride,
                          int* out, const uint2* lists, const u32* counts, Rows rows) {
    SHARED(float, room);
    const int row = blockIdx.x;
    const int n = load_input(positions + row) + 1;
    const bool is_there = is_live_token(rows, row);
    pdl_wait();
    pdl_go();
    if (!is_there) return;
    int* chosen = out + u64(row) * topk;
    if (forced) {
        const int* given = forced + u64(row) * forced_stride;
        if (given[0] != -1) {
            for (int i = threadIdx.x; i < topk; i += THREADS) chosen[i] = given[i];
            return;
        }
    }
    if (n <= topk) {
        for (int i = threadIdx.x; i < topk; i += THREADS) chosen[i] = i < n ? i : -1;
        return;
    }
    const float* among = scores + u64(row) * scores_stride;
    u32* places = reinterpret_cast<u32*>(room + SIFTED);
    u32* bits = places + SIFTED;
    u32 sifted = 0;
    if (lists && n > SIFT_FROM) sifted = gather(lists + u64(row) * SIFTS * LIST, counts + row * SIFTS, topk, room, places);
    if (sifted) among = room;
    const Threshold t = find_threshold(among, sifted ? sifted : n, topk);
    if (sifted) {
        write_sifted(room, places, sifted, n, t, bits, bits + (n + 31) / 32, chosen);
    } else {
        write_chosen(among, n, t, chosen);
    }
}
