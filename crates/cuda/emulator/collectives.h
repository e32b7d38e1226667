// What a warp or a block does together. The last thread to come does the work for all of them, in plain C++: the others are parked,
// and their arguments lie on their stacks.
#pragma once

// ---- barriers ----------------------------------------------------------------------------------------------------------------------

inline void __syncthreads() { glim_self()->scheduler->barrier(glim_self(), 0, 0, "__syncthreads", false); }
inline int __syncthreads_count(int predicate) {
    return static_cast<int>(glim_self()->scheduler->barrier(glim_self(), 0, 0, "__syncthreads_count", predicate != 0));
}
inline int __syncthreads_or(int predicate) {
    return glim_self()->scheduler->barrier(glim_self(), 0, 0, "__syncthreads_or", predicate != 0) != 0;
}
inline int __syncthreads_and(int predicate) {
    return glim_self()->scheduler->barrier(glim_self(), 0, 0, "__syncthreads_and", predicate == 0) == 0;
}
// `bar.sync id, threads`: barrier 1 to 15 of a part of the block.
inline void glim_named_barrier(unsigned id, unsigned threads) {
    glim_self()->scheduler->barrier(glim_self(), id, threads, "bar.sync", false);
}

inline void glim_nothing(void* const*) {}
inline void __syncwarp(unsigned mask = 0xffffffffu) {
    glim_self()->scheduler->warp(glim_self(), mask, "__syncwarp", glim_nothing, glim_self());
}

// ---- exchange -------------------------------------------------------------------------------------------------------------------------

// Runs `body` once for a warp, on what each lane of `mask` brings: the twin of an instruction that a whole warp executes.
template <class Slot> inline void glim_warp(unsigned mask, const char* what, glim_collective body, Slot& slot) {
    glim_self()->scheduler->warp(glim_self(), mask, what, body, &slot);
}

template <class T> struct glim_exchange_slot {
    const T* mine;
    T* all;
};
template <class T> void glim_exchange_body(void* const* slots) {
    for (int to = 0; to < 32; to++) {
        if (!slots[to]) continue;
        T* all = static_cast<const glim_exchange_slot<T>*>(slots[to])->all;
        for (int from = 0; from < 32; from++) {
            if (slots[from]) all[from] = *static_cast<const glim_exchange_slot<T>*>(slots[from])->mine;
            else memset(&all[from], 0xff, sizeof(T));
        }
    }
}
// Gives every lane what all 32 lanes bring; 0xff bytes for lanes that have ended.
template <class T> inline void glim_warp_exchange(const T& mine, T (&all)[32]) {
    glim_exchange_slot<T> slot = {&mine, all};
    glim_warp(0xffffffffu, "glim_warp_exchange", glim_exchange_body<T>, slot);
}

// ---- shuffles -----------------------------------------------------------------------------------------------------------------------------

struct glim_shuffle {
    unsigned long long in, out;
    int by, width;
};
enum glim_shuffle_kind { glim_index_of, glim_up, glim_down, glim_xor };

template <glim_shuffle_kind kind> void glim_shuffle_body(void* const* slots) {
    for (int lane = 0; lane < 32; lane++) {
        glim_shuffle* to = static_cast<glim_shuffle*>(slots[lane]);
        if (!to) continue;
        int first = lane & ~(to->width - 1), last = first + to->width - 1, from = lane;
        if (kind == glim_index_of) from = first + (to->by & (to->width - 1));
        if (kind == glim_up && lane - to->by >= first) from = lane - to->by;
        if (kind == glim_down && lane + to->by <= last) from = lane + to->by;
        if (kind == glim_xor && (lane ^ to->by) <= last) from = lane ^ to->by;
        // What a lane outside of the mask holds is undefined.
        to->out = slots[from] ? static_cast<const glim_shuffle*>(slots[from])->in : ~0ull;
    }
}
template <glim_shuffle_kind kind, class T>
inline T glim_shuffled(unsigned mask, const char* what, const T& v, int by, int width) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move words of 4 or 8 bytes");
    glim_shuffle slot = {0, 0, by, width};
    memcpy(&slot.in, &v, sizeof(T));
    glim_warp(mask, what, glim_shuffle_body<kind>, slot);
    T out;
    memcpy(&out, &slot.out, sizeof(T));
    return out;
}
template <class T> inline T __shfl_sync(unsigned mask, T v, int lane, int width = 32) {
    return glim_shuffled<glim_index_of>(mask, "__shfl_sync", v, lane, width);
}
template <class T> inline T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32) {
    return glim_shuffled<glim_up>(mask, "__shfl_up_sync", v, static_cast<int>(by), width);
}
template <class T> inline T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32) {
    return glim_shuffled<glim_down>(mask, "__shfl_down_sync", v, static_cast<int>(by), width);
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T v, int by, int width = 32) {
    return glim_shuffled<glim_xor>(mask, "__shfl_xor_sync", v, by, width);
}

// ---- votes and reductions of integers ------------------------------------------------------------------------------------------------------

struct glim_vote {
    unsigned in, out;
};
inline void glim_ballot_body(void* const* slots) {
    unsigned out = 0;
    for (int lane = 0; lane < 32; lane++) {
        if (slots[lane] && static_cast<const glim_vote*>(slots[lane])->in) out |= 1u << lane;
    }
    for (int lane = 0; lane < 32; lane++) {
        if (slots[lane]) static_cast<glim_vote*>(slots[lane])->out = out;
    }
}
inline unsigned glim_ballot(unsigned mask, const char* what, bool predicate) {
    glim_vote slot = {predicate, 0};
    glim_warp(mask, what, glim_ballot_body, slot);
    return slot.out;
}
inline unsigned __ballot_sync(unsigned mask, int predicate) { return glim_ballot(mask, "__ballot_sync", predicate != 0); }
inline int __any_sync(unsigned mask, int predicate) { return glim_ballot(mask, "__any_sync", predicate != 0) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return glim_ballot(mask, "__all_sync", predicate == 0) == 0; }

struct glim_match {
    unsigned long long in;
    unsigned out;
};
inline void glim_match_body(void* const* slots) {
    for (int lane = 0; lane < 32; lane++) {
        glim_match* to = static_cast<glim_match*>(slots[lane]);
        for (int from = 0; to && from < 32; from++) {
            if (slots[from] && static_cast<const glim_match*>(slots[from])->in == to->in) to->out |= 1u << from;
        }
    }
}
template <class T> inline unsigned __match_any_sync(unsigned mask, T v) {
    glim_match slot = {0, 0};
    memcpy(&slot.in, &v, sizeof(T));
    glim_warp(mask, "__match_any_sync", glim_match_body, slot);
    return slot.out;
}

template <class T, class Join> void glim_reduce_body(void* const* slots) {
    bool any = false;
    T sum = T();
    for (int lane = 0; lane < 32; lane++) {
        if (!slots[lane]) continue;
        T v = *static_cast<const T*>(slots[lane]);
        sum = any ? Join::join(sum, v) : v;
        any = true;
    }
    for (int lane = 0; lane < 32; lane++) {
        if (slots[lane]) *static_cast<T*>(slots[lane]) = sum;
    }
}
#define GLIM_REDUCE(name, type, expression) \
    struct glim_join_##name##_##type { \
        static type join(type a, type b) { return expression; } \
    }; \
    inline type __reduce_##name##_sync(unsigned mask, type v) { \
        glim_warp(mask, "__reduce_" #name "_sync", glim_reduce_body<type, glim_join_##name##_##type>, v); \
        return v; \
    }
GLIM_REDUCE(add, int, static_cast<int>(static_cast<unsigned>(a) + static_cast<unsigned>(b)))
GLIM_REDUCE(add, unsigned, a + b)
GLIM_REDUCE(min, int, a < b ? a : b)
GLIM_REDUCE(min, unsigned, a < b ? a : b)
GLIM_REDUCE(max, int, a > b ? a : b)
GLIM_REDUCE(max, unsigned, a > b ? a : b)
GLIM_REDUCE(and, unsigned, a & b)
GLIM_REDUCE(or, unsigned, a | b)
GLIM_REDUCE(xor, unsigned, a ^ b)
#undef GLIM_REDUCE
