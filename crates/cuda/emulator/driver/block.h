// One block while it runs: its threads as fibers, its warps, its barriers, its shared memory.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "fibers.h"

// Why a launch ends early. The first reason counts.
struct Failure {
    int code = 0;
    std::string text;
};

struct Thread {
    enum State { READY, IN_WARP, AT_BARRIER, ENDED };
    Standing standing;
    glim_fiber* fiber;
    State state;
    // What it waits for, if it waits.
    const char* what;
    unsigned mask;
    glim_collective body;
    void* slot;
    unsigned barrier;
    // What the barrier gave.
    unsigned count;
    bool paused;
};

// A source of pseudo-random numbers that are the same everywhere (splitmix64).
struct Random {
    uint64_t state;
    uint64_t next() {
        uint64_t z = state += 0x9e3779b97f4a7c15ull;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ z >> 27) * 0x94d049bb133111ebull;
        return z ^ z >> 31;
    }
    unsigned below(unsigned n) { return unsigned(next() % n); }
};

class Block {
public:
    enum Outcome { DONE, SPINNING, DEADLOCK, FAILED };

    Block();
    ~Block();
    Block(const Block&) = delete;

    // Sets up all threads at the kernel's beginning.
    bool begin(const glim_kernel* kernel, void** arguments, const glim_block& shape, bool overlaps, uint64_t seed, Failure* failure);
    // Runs until all threads have ended or nothing but waiting for memory is left.
    Outcome run();
    // Who waits for what.
    std::string describe_waiting() const;
    // "block (x, y, z), thread (x, y, z)" of the thread that is running.
    std::string describe_running() const;
    const Stacks& stacks() const { return stacks_; }
    const glim_block& shape() const { return shape_; }
    // The address is one of the pages around dynamic shared memory.
    bool is_past_shared(uintptr_t address) const;

    // This block's static shared memory while another block runs.
    std::vector<unsigned char> saved_shared;

    void wait_warp(Thread& thread, unsigned mask, const char* what, glim_collective body, void* slot);
    unsigned wait_barrier(Thread& thread, unsigned id, unsigned threads, const char* what, bool predicate);
    void pause(Thread& thread);
    [[noreturn]] void fail(int code, const std::string& text);

private:
    struct Warp {
        // Lanes that are waiting in a collective, and those that have ended or never were.
        unsigned waiting = 0, gone = 0;
    };
    struct Barrier {
        unsigned arrived = 0, wanted = 0, true_predicates = 0;
        const char* what = nullptr;
    };

    static void main();
    void leave(Thread& thread);
    void end(Thread& thread);
    bool complete(size_t warp, unsigned mask, const Thread* self);
    bool release(Barrier& barrier, unsigned id, const Thread* self);
    void make_ready(size_t index);
    size_t take_ready();

    Stacks stacks_;
    std::vector<Thread> threads_;
    std::vector<Warp> warps_;
    Barrier barriers_[16];
    glim_block shape_;
    const glim_kernel* kernel_ = nullptr;
    void** arguments_ = nullptr;
    Failure* failure_ = nullptr;
    bool overlaps_ = false;
    Standing scheduler_;
    Thread* running_ = nullptr;
    size_t alive_ = 0;
    Random random_{0};
    // Threads that can go on, in a ring.
    std::vector<unsigned short> ready_;
    size_t first_ = 0, waiting_ = 0;
    // Whether the thread that became ready last goes first: then a warp runs ahead of the others as far as it can.
    bool newest_first_ = false;
    // Dynamic shared memory, which ends at a guard page.
    void* shared_map_ = nullptr;
    char* shared_end_ = nullptr;
};
