// Faults of kernels: what is an "illegal memory access" on a GPU is a signal here.
#pragma once
#include <csetjmp>
#include <cstdint>

#include "block.h"
#include "state.h"

// While one lives, a fault of this host thread ends the launch: control comes back to `back`, and `explain` says what happened.
//
//     FaultScope scope(kernel, module, &running);
//     if (sigsetjmp(scope.back, 1)) return scope.explain();
class FaultScope {
public:
    // `running` points to the block that runs; null outside of kernels, where faults are not ours.
    FaultScope(const glim_kernel* kernel, const Module* module, Block* const* running);
    ~FaultScope();
    FaultScope(const FaultScope&) = delete;

    // Prints what happened and where, and gives the launch's error.
    CUresult explain() const;
    // Called in the signal handler: notes the fault and jumps, or returns if it is not ours.
    void caught(int signal, void* info, void* context);

    sigjmp_buf back;

private:
    const glim_kernel* kernel;
    const Module* module;
    Block* const* running;
    FaultScope* outer;
    int signal = 0;
    uintptr_t address = 0, instruction = 0;
    bool has_address = false, writes = false;
};
