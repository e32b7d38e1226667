// Stacks for the threads of a block, and the switch from one to another.
//
// The switch saves what the C calling convention lets a function keep, by hand on x86-64 (a few nanoseconds: a warp shuffle takes 32
// of them) and by `ucontext` elsewhere.
#pragma once
#include <cstddef>

#include "../abi.h"

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

// Where an execution stands while another runs.
struct Standing {
#if defined(__x86_64__)
    void* stack_pointer;
#else
    ucontext_t context;
#endif
};

// Leaves `from` and goes on at `to`; returns when somebody switches back.
void switch_to(Standing& from, Standing& to);

// Stacks of one size, each below a page that nobody may touch; grows, never shrinks.
class Stacks {
public:
    Stacks() = default;
    Stacks(const Stacks&) = delete;
    ~Stacks();
    // Makes room for so many; false if there is no memory.
    bool reserve(size_t count);
    // The record at the end of a stack.
    glim_fiber* fiber(size_t index) const;
    // Makes `standing` begin in `main` on that stack.
    void prepare(size_t index, Standing& standing, void (*main)()) const;
    // The number of the stack that holds an address, or -1; `guard` says whether it is its forbidden page.
    long find(size_t address, bool* guard) const;

private:
    char* memory = nullptr;
    size_t mapped = 0, count = 0;
    void* map = nullptr;
};
