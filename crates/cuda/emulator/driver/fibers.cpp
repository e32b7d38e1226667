#include "fibers.h"

#include <sys/mman.h>

#include <cstdint>

constexpr size_t PAGE = 4096;

#if defined(__x86_64__)
// Saves the six registers and the stack pointer, loads the other's, and returns there.
extern "C" void glim_switch(void** from, void* to);
asm(R"(
.text
.globl glim_switch
.hidden glim_switch
.type glim_switch, @function
glim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size glim_switch, .-glim_switch
)");
void switch_to(Standing& from, Standing& to) { glim_switch(&from.stack_pointer, to.stack_pointer); }
#else
void switch_to(Standing& from, Standing& to) { swapcontext(&from.context, &to.context); }
#endif

Stacks::~Stacks() {
    if (map) munmap(map, mapped);
}

bool Stacks::reserve(size_t wanted) {
    if (wanted <= count) return true;
    if (map) munmap(map, mapped);
    map = nullptr;
    count = 0;
    // One more, to begin at a multiple of the size.
    mapped = (wanted + 1) * GLIM_STACK_BYTES;
    void* got = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (got == MAP_FAILED) return false;
    map = got;
    memory = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(got) + GLIM_STACK_BYTES - 1) & ~uintptr_t(GLIM_STACK_BYTES - 1));
    count = wanted;
    for (size_t i = 0; i < count; i++) mprotect(memory + i * GLIM_STACK_BYTES, PAGE, PROT_NONE);
    return true;
}

glim_fiber* Stacks::fiber(size_t index) const {
    return reinterpret_cast<glim_fiber*>(memory + (index + 1) * GLIM_STACK_BYTES - sizeof(glim_fiber));
}

void Stacks::prepare(size_t index, Standing& standing, void (*main)()) const {
    // All stacks alike would share a few sets of the cache: each begins a little lower than the one before.
    const size_t color = index % 16 * 320;
    uintptr_t top = (reinterpret_cast<uintptr_t>(fiber(index)) & ~uintptr_t(15)) - color;
#if defined(__x86_64__)
    // Six registers and the return address; on entry the stack is 8 off a multiple of 16, as after a call.
    void** at = reinterpret_cast<void**>(top - 16);
    *at = reinterpret_cast<void*>(main);
    for (int i = 1; i <= 6; i++) at[-i] = nullptr;
    standing.stack_pointer = at - 6;
#else
    getcontext(&standing.context);
    standing.context.uc_stack.ss_sp = memory + index * GLIM_STACK_BYTES + PAGE;
    standing.context.uc_stack.ss_size = top - reinterpret_cast<uintptr_t>(standing.context.uc_stack.ss_sp);
    standing.context.uc_link = nullptr;
    makecontext(&standing.context, main, 0);
#endif
}

long Stacks::find(size_t address, bool* guard) const {
    const size_t offset = address - reinterpret_cast<uintptr_t>(memory);
    if (!count || address < reinterpret_cast<uintptr_t>(memory) || offset >= count * GLIM_STACK_BYTES) return -1;
    *guard = offset % GLIM_STACK_BYTES < PAGE;
    return long(offset / GLIM_STACK_BYTES);
}
