// Kernels are compiled with checks of alignment, of indices into arrays of known length and of shift counts, which end in an illegal
// instruction; guard pages and null pointers give a segmentation fault. Both come here with the place in the source.
#include "faults.h"

#include <csignal>
#include <cstdio>
#include <mutex>
#include <ucontext.h>
#include <unistd.h>

namespace {

thread_local FaultScope* innermost = nullptr;

const int SIGNALS[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
struct sigaction before[64];

void handler(int signal, siginfo_t* info, void* context) {
    if (innermost) innermost->caught(signal, info, context);
    // Not of a kernel: as if this handler were not there.
    const struct sigaction& next = before[signal];
    if (next.sa_flags & SA_SIGINFO) next.sa_sigaction(signal, info, context);
    else if (next.sa_handler == SIG_DFL || next.sa_handler == SIG_IGN) sigaction(signal, &next, nullptr);
    else next.sa_handler(signal);
}

void install() {
    static std::once_flag once;
    std::call_once(once, [] {
        for (int signal : SIGNALS) {
            struct sigaction action = {};
            action.sa_sigaction = handler;
            action.sa_flags = SA_SIGINFO | SA_ONSTACK;
            sigaction(signal, &action, &before[signal]);
        }
    });
    // A thread whose stack has overflowed cannot handle that on the same stack. Rust's threads bring one.
    struct AlternateStack {
        char* memory = nullptr;
        AlternateStack() {
            stack_t has;
            if (sigaltstack(nullptr, &has) || !(has.ss_flags & SS_DISABLE)) return;
            constexpr size_t BYTES = 64 * 1024;
            memory = new char[BYTES];
            const stack_t mine = {memory, 0, BYTES};
            sigaltstack(&mine, nullptr);
        }
        ~AlternateStack() {
            if (!memory) return;
            const stack_t none = {nullptr, SS_DISABLE, 0};
            sigaltstack(&none, nullptr);
            delete[] memory;
        }
    };
    thread_local AlternateStack stack;
}

// The source lines of an instruction, innermost first, by binutils' addr2line; empty if that is not there.
std::string source_lines(const Module* module, uintptr_t instruction) {
    const std::string path = write_temporary(module->image);
    if (path.empty()) return "";
    char command[256], line[512];
    snprintf(command, sizeof(command), "addr2line -i -e %s 0x%zx 2>/dev/null", path.c_str(), size_t(instruction - module->base));
    std::string text;
    if (FILE* pipe = popen(command, "r")) {
        for (int i = 0; i < 6 && fgets(line, sizeof(line), pipe); i++) {
            std::string at = line;
            while (!at.empty() && at.back() == '\n') at.pop_back();
            if (at.rfind("??", 0) == 0) break;
            text += (i ? ", from " : "") + at;
        }
        pclose(pipe);
    }
    unlink(path.c_str());
    return text;
}

}  // namespace

FaultScope::FaultScope(const glim_kernel* kernel, const Module* module, Block* const* running)
    : kernel(kernel), module(module), running(running), outer(innermost) {
    install();
    innermost = this;
}
FaultScope::~FaultScope() { innermost = outer; }

void FaultScope::caught(int number, void* info, void* context) {
    if (!*running) return;
    const auto* details = static_cast<const siginfo_t*>(info);
    signal = number;
    address = reinterpret_cast<uintptr_t>(details->si_addr);
    has_address = details->si_code > 0 && details->si_code != SI_KERNEL;
#if defined(__x86_64__)
    const auto& registers = static_cast<const ucontext_t*>(context)->uc_mcontext.gregs;
    instruction = static_cast<uintptr_t>(registers[REG_RIP]);
    writes = registers[REG_ERR] & 2;
#elif defined(__aarch64__)
    instruction = static_cast<const ucontext_t*>(context)->uc_mcontext.pc;
#endif
    siglongjmp(back, 1);
}

CUresult FaultScope::explain() const {
    std::string what;
    CUresult result = CUDA_ILLEGAL_ADDRESS;
    if (signal == SIGILL) {
        what = "a misaligned address, an index outside of an array, or a shift by 32 or more";
        result = CUDA_MISALIGNED_ADDRESS;
    } else if (signal == SIGFPE) {
        what = "an integer division by zero";
        result = CUDA_LAUNCH_FAILED;
    } else if (!has_address) {
        what = "an address that is misaligned or that no memory can have";
    } else {
        bool guard = false;
        const Block& block = **running;
        char hex[32];
        snprintf(hex, sizeof(hex), "0x%zx", size_t(address));
        if (block.stacks().find(address, &guard) >= 0 && guard) what = "the stack of a thread overflows";
        else if (block.is_past_shared(address)) what = std::string("shared memory: ") + (writes ? "a write" : "a read") + " outside of the block's " + std::to_string(block.shape().dynamic_shared_bytes) + " bytes";
        else what = std::string(writes ? "a write to " : "a read of ") + hex + ", " + describe_address(address);
    }
    const std::string lines = source_lines(module, instruction);
    report(std::string(kernel->name) + ": " + (*running)->describe_running() + ": " + what + (lines.empty() ? "" : ", at " + lines));
    return result;
}
