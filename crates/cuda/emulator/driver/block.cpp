// The order in which a block's threads run, and what they wait for.
//
// Nothing is in lockstep: a thread runs until it must wait for others, then another is chosen. Which one comes first is drawn from a
// seed; in half of the blocks a warp runs ahead of the others as far as it can, in the other half they take turns. A missing barrier
// between a write and a read shows in one of the two sooner or later.
#include "block.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "state.h"

namespace {

constexpr size_t PAGE = 4096;
constexpr size_t SHARED_MAP = (GLIM_SHARED_BYTES + PAGE - 1) / PAGE * PAGE;

Thread& record_of(glim_fiber* fiber) { return *static_cast<Thread*>(fiber->record); }
// The block that this host thread runs.
thread_local Block* current = nullptr;

std::string in_words(const glim_index& i) {
    return "(" + std::to_string(i.x) + ", " + std::to_string(i.y) + ", " + std::to_string(i.z) + ")";
}
std::string hex(unsigned v) {
    char text[16];
    snprintf(text, sizeof(text), "0x%08x", v);
    return text;
}

const glim_scheduler SCHEDULER = {
    [](glim_fiber* self, unsigned mask, const char* what, glim_collective body, void* slot) {
        current->wait_warp(record_of(self), mask, what, body, slot);
    },
    [](glim_fiber* self, unsigned id, unsigned threads, const char* what, bool predicate) {
        return current->wait_barrier(record_of(self), id, threads, what, predicate);
    },
    [](glim_fiber* self) { current->pause(record_of(self)); },
    [](glim_fiber*, const char* why) { current->fail(CUDA_LAUNCH_FAILED, why); },
    [] {
        return static_cast<unsigned long long>(
            std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
    },
};

}  // namespace

Block::Block() {
    void* map = mmap(nullptr, SHARED_MAP + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) return;
    shared_map_ = map;
    char* first = static_cast<char*>(map) + PAGE;
    if (mprotect(first, SHARED_MAP, PROT_READ | PROT_WRITE)) return;
    shared_end_ = first + SHARED_MAP;
}
Block::~Block() {
    if (shared_map_) munmap(shared_map_, SHARED_MAP + 2 * PAGE);
}

bool Block::begin(const glim_kernel* kernel, void** arguments, const glim_block& shape, bool overlaps, uint64_t seed, Failure* failure) {
    const size_t count = size_t(shape.block_size.x) * shape.block_size.y * shape.block_size.z;
    if (!shared_end_ || !stacks_.reserve(count)) return false;
    kernel_ = kernel;
    arguments_ = arguments;
    failure_ = failure;
    overlaps_ = overlaps;
    random_.state = seed;
    newest_first_ = random_.next() & 1;
    shape_ = shape;
    const size_t shared = (shape.dynamic_shared_bytes + 15u) & ~size_t(15);
    shape_.dynamic_shared = shared_end_ - shared;
    memset(shape_.dynamic_shared, 0xff, shared);

    threads_.resize(count);
    warps_.assign((count + 31) / 32, Warp());
    if (count % 32) warps_.back().gone = ~0u << count % 32;
    std::fill(std::begin(barriers_), std::end(barriers_), Barrier());
    alive_ = count;

    ready_.resize(count);
    std::iota(ready_.begin(), ready_.end(), 0);
    for (size_t i = count; i > 1; i--) std::swap(ready_[i - 1], ready_[random_.below(unsigned(i))]);
    first_ = 0;
    waiting_ = count;

    glim_index at = {0, 0, 0};
    for (size_t i = 0; i < count; i++) {
        glim_fiber* fiber = stacks_.fiber(i);
        *fiber = {at, unsigned(i % 32), unsigned(i / 32), &shape_, &SCHEDULER, false, false, &threads_[i]};
        Thread& thread = threads_[i];
        thread.fiber = fiber;
        thread.state = Thread::READY;
        thread.what = nullptr;
        thread.paused = false;
        stacks_.prepare(i, thread.standing, main);
        if (++at.x == shape.block_size.x) at.x = 0, at.y++;
        if (at.y == shape.block_size.y) at.y = 0, at.z++;
    }
    return true;
}

bool Block::is_past_shared(uintptr_t address) const {
    const uintptr_t map = reinterpret_cast<uintptr_t>(shared_map_);
    return address >= map && address < map + SHARED_MAP + 2 * PAGE;
}

void Block::make_ready(size_t index) {
    threads_[index].state = Thread::READY;
    ready_[(first_ + waiting_) % ready_.size()] = static_cast<unsigned short>(index);
    waiting_++;
}

size_t Block::take_ready() {
    waiting_--;
    if (newest_first_) return ready_[(first_ + waiting_) % ready_.size()];
    const size_t index = ready_[first_];
    first_ = (first_ + 1) % ready_.size();
    return index;
}

Block::Outcome Block::run() {
    Block* before = current;
    current = this;
    // Threads in a row that did nothing but look at memory.
    size_t idle = 0;
    Outcome outcome = DONE;
    while (waiting_) {
        Thread& thread = threads_[take_ready()];
        thread.paused = false;
        running_ = &thread;
        switch_to(scheduler_, thread.standing);
        if (failure_->code) {
            outcome = FAILED;
            break;
        }
        // By the scheduler, on its own stack: the thread is not on its way any more.
        if (thread.state == Thread::ENDED) end(thread);
        if (!thread.paused) {
            idle = 0;
        } else if (++idle > waiting_) {
            outcome = SPINNING;
            break;
        }
    }
    if (outcome == DONE && alive_) outcome = DEADLOCK;
    running_ = nullptr;
    current = before;
    return outcome;
}

// Where every thread begins.
void Block::main() {
    Block* block = current;
    Thread& thread = *block->running_;
    block->kernel_->call(block->arguments_);
    if (block->overlaps_ && !thread.fiber->waited) {
        block->fail(CUDA_LAUNCH_FAILED, "a thread ended without pdl_wait in a launch with the PDL attribute");
    }
    thread.state = Thread::ENDED;
    block->leave(thread);
}

void Block::leave(Thread& thread) { switch_to(thread.standing, scheduler_); }

void Block::end(Thread& thread) {
    const size_t index = size_t(&thread - threads_.data()), warp = index / 32;
    alive_--;
    warps_[warp].gone |= 1u << index % 32;
    // It may have been the last that others waited for.
    for (unsigned lane = 0; lane < 32; lane++) {
        if (warps_[warp].waiting >> lane & 1) complete(warp, threads_[warp * 32 + lane].mask, nullptr);
    }
    for (unsigned id = 0; id < 16; id++) release(barriers_[id], id, nullptr);
}

// Ends the collective of `mask` if all its lanes are there; `self` is the one that goes on by itself.
bool Block::complete(size_t warp, unsigned mask, const Thread* self) {
    Warp& lanes = warps_[warp];
    const unsigned needed = mask & ~lanes.gone;
    if (!needed || (lanes.waiting & needed) != needed) return false;
    Thread* first = &threads_[warp * 32];
    const Thread& any = first[__builtin_ctz(needed)];
    void* slots[32] = {};
    for (unsigned lane = 0; lane < 32; lane++) {
        if (!(needed >> lane & 1)) continue;
        if (first[lane].mask != mask || first[lane].body != any.body) return false;
        slots[lane] = first[lane].slot;
    }
    any.body(slots);
    lanes.waiting &= ~needed;
    // Released in an order of their own.
    const unsigned start = random_.below(32), step = 2 * random_.below(16) + 1;
    for (unsigned i = 0; i < 32; i++) {
        const unsigned lane = (start + i * step) % 32;
        if (needed >> lane & 1 && &first[lane] != self) make_ready(warp * 32 + lane);
    }
    return true;
}

void Block::wait_warp(Thread& thread, unsigned mask, const char* what, glim_collective body, void* slot) {
    const size_t index = size_t(&thread - threads_.data());
    const unsigned bit = 1u << index % 32;
    if (!(mask & bit)) fail(CUDA_LAUNCH_FAILED, std::string(what) + " with mask " + hex(mask) + ", which does not name the calling lane");
    thread.what = what;
    thread.mask = mask;
    thread.body = body;
    thread.slot = slot;
    thread.state = Thread::IN_WARP;
    warps_[index / 32].waiting |= bit;
    if (complete(index / 32, mask, &thread)) thread.state = Thread::READY;
    else leave(thread);
    thread.what = nullptr;
}

// Opens the barrier if all are there.
bool Block::release(Barrier& barrier, unsigned id, const Thread* self) {
    const size_t needed = barrier.wanted ? barrier.wanted : alive_;
    if (!barrier.arrived || barrier.arrived < needed) return false;
    const unsigned count = barrier.true_predicates;
    const size_t start = random_.below(unsigned(threads_.size()));
    for (size_t i = 0; i < threads_.size(); i++) {
        Thread& thread = threads_[(start + i) % threads_.size()];
        if (thread.state != Thread::AT_BARRIER || thread.barrier != id) continue;
        thread.count = count;
        if (&thread != self) make_ready(size_t(&thread - threads_.data()));
    }
    barrier = Barrier();
    return true;
}

unsigned Block::wait_barrier(Thread& thread, unsigned id, unsigned wanted, const char* what, bool predicate) {
    if (id > 15) fail(CUDA_LAUNCH_FAILED, "barrier " + std::to_string(id) + ": there are 16");
    Barrier& barrier = barriers_[id];
    if (barrier.arrived && (barrier.wanted != wanted || strcmp(barrier.what, what))) {
        fail(CUDA_LAUNCH_FAILED, std::string(what) + " at a barrier where others wait in " + barrier.what);
    }
    barrier.what = what;
    barrier.wanted = wanted;
    barrier.arrived++;
    barrier.true_predicates += predicate;
    thread.what = what;
    thread.barrier = id;
    thread.state = Thread::AT_BARRIER;
    if (release(barrier, id, &thread)) thread.state = Thread::READY;
    else leave(thread);
    thread.what = nullptr;
    return thread.count;
}

void Block::pause(Thread& thread) {
    thread.paused = true;
    const auto index = static_cast<unsigned short>(&thread - threads_.data());
    // Behind all others, in either order.
    if (newest_first_) {
        first_ = (first_ + ready_.size() - 1) % ready_.size();
        ready_[first_] = index;
        waiting_++;
    } else {
        make_ready(index);
    }
    leave(thread);
}

void Block::fail(int code, const std::string& text) {
    if (!failure_->code) *failure_ = {code, describe_running() + ": " + text};
    leave(*running_);
    __builtin_unreachable();
}

std::string Block::describe_running() const {
    std::string text = "block " + in_words(shape_.block_index);
    if (running_) text += ", thread " + in_words(running_->fiber->thread_index);
    return text;
}

std::string Block::describe_waiting() const {
    // Threads that wait for the same thing in one line.
    struct Group {
        std::string what;
        size_t count, first, last;
    };
    std::vector<Group> groups;
    for (size_t i = 0; i < threads_.size(); i++) {
        const Thread& thread = threads_[i];
        std::string what = thread.state == Thread::ENDED ? "have ended" : "are running";
        if (thread.state == Thread::IN_WARP) what = "of warp " + std::to_string(i / 32) + " wait in " + thread.what + " for lanes " + hex(thread.mask);
        if (thread.state == Thread::AT_BARRIER) what = std::string("wait in ") + thread.what + ", barrier " + std::to_string(thread.barrier);
        if (thread.paused) what = "wait for memory to change";
        auto same = std::find_if(groups.begin(), groups.end(), [&](const Group& g) { return g.what == what; });
        if (same == groups.end()) groups.push_back({what, 1, i, i});
        else same->count++, same->last = i;
    }
    std::string text = "block " + in_words(shape_.block_index);
    for (size_t i = 0; i < groups.size() && i < 12; i++) {
        const Group& g = groups[i];
        text += "\n    " + std::to_string(g.count) + " threads (" + std::to_string(g.first) + " to " + std::to_string(g.last) + ") " + g.what;
    }
    if (groups.size() > 12) text += "\n    and " + std::to_string(groups.size() - 12) + " other groups";
    return text;
}
