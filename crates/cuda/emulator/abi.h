// What a compiled kernel and the emulated driver know of each other: one thread of a block, its block, and what it may ask of
// the scheduler.
//
// A thread runs on a stack of its own (a fiber). Stacks are aligned to their size and end with the thread's `glim_fiber`, so a
// kernel finds who it is from the address of its own frame: no thread-local storage, no call, nothing to bind at load time. All that
// a kernel calls goes through `glim_fiber::scheduler`, so a module has no undefined symbols but those of the C library.
#pragma once

// Bytes of a thread's stack, `glim_fiber` included. A power of two.
#define GLIM_STACK_BYTES (64 * 1024)
// Bytes of dynamic shared memory that a block may have: sm_90's limit.
#define GLIM_SHARED_BYTES (227 * 1024)

struct glim_index {
    unsigned x, y, z;
};

struct glim_fiber;

// What a block's threads share.
struct glim_block {
    glim_index block_index, block_size, grid_size;
    void* dynamic_shared;
    unsigned dynamic_shared_bytes;
};

// A warp collective's body: runs once, when the last lane has come. `slots` holds each lane's own argument, null for lanes that
// are not in the mask or have ended.
typedef void (*glim_collective)(void* const* slots);

// What a thread may ask for. Each of these may run other threads before it returns.
struct glim_scheduler {
    // Waits for all lanes of `mask` that have not ended to call with the same mask and body; `what` is its name in reports.
    void (*warp)(glim_fiber* self, unsigned mask, const char* what, glim_collective body, void* slot);
    // Waits for `threads` threads (0: all that have not ended) at barrier `id`; gives the number of them with a true predicate.
    unsigned (*barrier)(glim_fiber* self, unsigned id, unsigned threads, const char* what, bool predicate);
    // A step of a loop that waits for memory to change: other threads, blocks and ranks go on.
    void (*pause)(glim_fiber* self);
    // Ends the launch with an error: the kernel did what no kernel may do.
    void (*fail)(glim_fiber* self, const char* why);
    // Nanoseconds of a clock that all devices share.
    unsigned long long (*nanoseconds)();
};

struct glim_fiber {
    glim_index thread_index;
    unsigned lane, warp;
    const glim_block* block;
    const glim_scheduler* scheduler;
    // Called `pdl_wait`, `pdl_go`.
    bool waited, went;
    // The scheduler's own record of this thread.
    void* record;
};

// A kernel of a module, as the compiled module lists it in `glim_kernels`, ended by a null name.
struct glim_kernel {
    const char* name;
    // Calls it with the arguments behind the pointers.
    void (*call)(void** arguments);
    // Bytes of each argument.
    const unsigned* argument_bytes;
    unsigned arguments;
    // Of `__launch_bounds__`.
    unsigned threads_max;
};
