// Launches: the checks that the driver makes, and a grid's blocks one after another.
//
// A block whose threads all wait for memory (a flag of another rank, a counter of another block) is put aside and the next one begins,
// so that kernels may rely on their blocks being there together, as they are on a GPU that has room. The order of the blocks depends on
// the seed, the kernel's name and the grid: two ranks that launch the same take the same order.
#include <sched.h>

#include <csetjmp>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>

#include "block.h"
#include "faults.h"
#include "state.h"

extern "C" void* __tls_get_addr(void*);

namespace {

// Blocks that may wait at the same time.
constexpr size_t RESIDENT_MAX = 256;

uint64_t environment(const char* name, uint64_t otherwise) {
    const char* text = getenv(name);
    return text && *text ? strtoull(text, nullptr, 10) : otherwise;
}
uint64_t seed() {
    static const uint64_t value = environment("GLIM_EMULATOR_SEED", 1);
    return value;
}
uint64_t seconds_max() {
    static const uint64_t value = environment("GLIM_EMULATOR_SECONDS", 120);
    return value;
}

// Blocks are set up once and used again, by whichever thread launches.
class Pool {
public:
    std::unique_ptr<Block> take() {
        Locked lock(state_lock);
        if (idle.empty()) return std::make_unique<Block>();
        std::unique_ptr<Block> block = std::move(idle.back());
        idle.pop_back();
        return block;
    }
    void give(std::unique_ptr<Block> block) {
        Locked lock(state_lock);
        idle.push_back(std::move(block));
    }

private:
    std::vector<std::unique_ptr<Block>> idle;
};
Pool& pool() {
    static auto* pool = new Pool;
    return *pool;
}

// A permutation of the blocks: i -> (first + i * step) mod count, with step and count without a common divisor.
struct Order {
    uint64_t count, first, step;
    Order(uint64_t count, Random& random) : count(count), first(random.next() % count) {
        do step = 1 + random.next() % count;
        while (std::gcd(step, count) != 1);
    }
    uint64_t operator()(uint64_t i) const { return uint64_t((first + static_cast<unsigned __int128>(i) * step) % count); }
};

struct Grid {
    const Launch& launch;
    const glim_kernel* kernel;
    std::vector<void*> arguments;
    Failure failure;
    std::vector<std::unique_ptr<Block>> resident;
    // The block that runs now.
    Block* running = nullptr;

    explicit Grid(const Launch& launch) : launch(launch), kernel(launch.function->kernel) {
        auto* at = const_cast<unsigned char*>(launch.arguments.data());
        for (unsigned i = 0; i < kernel->arguments; i++) {
            arguments.push_back(at);
            at += (kernel->argument_bytes[i] + 15) / 16 * 16;
        }
    }
    ~Grid() {
        for (auto& block : resident) pool().give(std::move(block));
    }

    // This thread's copy of the module's static shared memory.
    unsigned char* static_shared() const {
        const Module* module = launch.function->module;
        if (!module->shared_bytes) return nullptr;
        size_t index[2] = {module->shared_id, 0};
        return static_cast<unsigned char*>(__tls_get_addr(index));
    }

    glim_block shape(uint64_t index) const {
        const glim_index g = launch.grid;
        const glim_index at = {unsigned(index % g.x), unsigned(index / g.x % g.y), unsigned(index / g.x / g.y)};
        return {at, launch.block, g, nullptr, launch.dynamic_shared};
    }

    CUresult run();
    Block::Outcome run_block(Block& block, unsigned char* shared, size_t shared_bytes);
};

Block::Outcome Grid::run_block(Block& block, unsigned char* shared, size_t shared_bytes) {
    if (shared_bytes) memcpy(shared, block.saved_shared.data(), shared_bytes);
    running = &block;
    const Block::Outcome outcome = block.run();
    running = nullptr;
    if (shared_bytes) memcpy(block.saved_shared.data(), shared, shared_bytes);
    return outcome;
}

CUresult Grid::run() {
    const uint64_t count = uint64_t(launch.grid.x) * launch.grid.y * launch.grid.z;
    Random random = {seed() ^ count * 0x9e3779b97f4a7c15ull};
    for (const char* c = kernel->name; *c; c++) random.state = (random.state ^ static_cast<unsigned char>(*c)) * 0x100000001b3ull;
    const Order order(count, random);
    unsigned char* shared = static_shared();
    const size_t shared_bytes = shared ? launch.function->module->shared_bytes : 0;
    const auto begun = std::chrono::steady_clock::now();

    uint64_t next = 0;
    bool stuck = true;
    while (next < count || !resident.empty()) {
        if (stuck && next < count && resident.size() < RESIDENT_MAX) {
            const uint64_t index = order(next++);
            resident.push_back(pool().take());
            Block& block = *resident.back();
            block.saved_shared.assign(shared_bytes, 0xff);
            if (!block.begin(kernel, arguments.data(), shape(index), launch.overlaps, random.next(), &failure)) return CUDA_OUT_OF_MEMORY;
        } else if (stuck) {
            sched_yield();
            if (std::chrono::steady_clock::now() - begun > std::chrono::seconds(seconds_max())) {
                failure = {CUDA_LAUNCH_TIMEOUT, "waits for memory for more than " + std::to_string(seconds_max()) +
                                                    " s (GLIM_EMULATOR_SECONDS): " + resident.front()->describe_waiting()};
            }
        }
        stuck = true;
        for (size_t i = 0; i < resident.size() && !failure.code;) {
            const Block::Outcome outcome = run_block(*resident[i], shared, shared_bytes);
            if (outcome == Block::DEADLOCK) failure = {CUDA_LAUNCH_FAILED, "deadlock: " + resident[i]->describe_waiting()};
            if (outcome == Block::DONE) {
                pool().give(std::move(resident[i]));
                resident.erase(resident.begin() + long(i));
            } else {
                i++;
            }
        }
        if (failure.code) {
            report(std::string(kernel->name) + ": " + failure.text);
            return CUresult(failure.code);
        }
    }
    return CUDA_SUCCESS;
}

}  // namespace

CUresult Launch::run() const {
    if (!is_live(function)) return CUDA_INVALID_HANDLE;
    Grid grid(*this);
    FaultScope scope(grid.kernel, function->module, &grid.running);
    // A fault of the kernel comes back here.
    if (sigsetjmp(scope.back, 1)) return scope.explain();
    return grid.run();
}

static CUresult check(const Launch& launch) {
    const glim_index g = launch.grid, b = launch.block;
    if (!g.x || !g.y || !g.z || g.x > 2147483647u || g.y > 65535 || g.z > 65535) return CUDA_INVALID_VALUE;
    if (!b.x || !b.y || !b.z || b.x > 1024 || b.y > 1024 || b.z > 64) return CUDA_INVALID_VALUE;
    if (uint64_t(b.x) * b.y * b.z > launch.function->kernel->threads_max) return CUDA_INVALID_VALUE;
    if (launch.dynamic_shared > unsigned(launch.function->dynamic_shared_max)) return CUDA_INVALID_VALUE;
    if (launch.dynamic_shared + launch.function->module->shared_bytes > GLIM_SHARED_BYTES) return CUDA_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static CUresult launch(Launch work, CUstream handle, void** arguments) {
    Stream* stream;
    TRY(resolve_stream(handle, &stream));
    if (!is_live(work.function)) return CUDA_INVALID_HANDLE;
    if (work.function->module->context != stream->context) return CUDA_INVALID_HANDLE;
    const CUresult checked = check(work);
    const glim_kernel* kernel = work.function->kernel;
    if (checked != CUDA_SUCCESS) {
        report(std::string(kernel->name) + ": a launch of " + std::to_string(work.grid.x) + " x " + std::to_string(work.grid.y) + " x " +
               std::to_string(work.grid.z) + " blocks of " + std::to_string(work.block.x) + " x " + std::to_string(work.block.y) + " x " +
               std::to_string(work.block.z) + " threads with " + std::to_string(work.dynamic_shared) +
               " bytes of shared memory; its limits are " + std::to_string(kernel->threads_max) + " threads and " +
               std::to_string(work.function->dynamic_shared_max) + " bytes");
        return checked;
    }
    if (kernel->arguments && !arguments) return CUDA_INVALID_VALUE;
    for (unsigned i = 0; i < kernel->arguments; i++) {
        const size_t at = work.arguments.size(), bytes = kernel->argument_bytes[i];
        work.arguments.resize(at + (bytes + 15) / 16 * 16);
        memcpy(work.arguments.data() + at, arguments[i], bytes);
    }
    return enqueue(handle, std::move(work));
}

API CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                            unsigned shared, CUstream stream, void** arguments, void** extra) {
    if (extra) return CUDA_NOT_SUPPORTED;
    Launch work;
    work.function = function;
    work.grid = {gx, gy, gz};
    work.block = {bx, by, bz};
    work.dynamic_shared = shared;
    return launch(std::move(work), stream, arguments);
}

// CUlaunchConfig and CUlaunchAttribute of cuda.h 13.0.
struct LaunchAttribute {
    unsigned id;
    char pad[4];
    union {
        char bytes[64];
        int number;
        unsigned cluster[3];
    } value;
};
struct LaunchConfig {
    unsigned grid[3], block[3], shared;
    CUstream stream;
    LaunchAttribute* attributes;
    unsigned count;
};
enum { COOPERATIVE = 2, CLUSTER = 4, PROGRAMMATIC_SERIALIZATION = 6 };

API CUresult cuLaunchKernelEx(const LaunchConfig* config, CUfunction function, void** arguments, void** extra) {
    if (!config) return CUDA_INVALID_VALUE;
    if (extra) return CUDA_NOT_SUPPORTED;
    Launch work;
    work.function = function;
    work.grid = {config->grid[0], config->grid[1], config->grid[2]};
    work.block = {config->block[0], config->block[1], config->block[2]};
    work.dynamic_shared = config->shared;
    for (unsigned i = 0; i < config->count; i++) {
        const LaunchAttribute& attribute = config->attributes[i];
        if (attribute.id == PROGRAMMATIC_SERIALIZATION) work.overlaps = attribute.value.number != 0;
        const bool clusters = attribute.id == CLUSTER && uint64_t(attribute.value.cluster[0]) * attribute.value.cluster[1] * attribute.value.cluster[2] > 1;
        if (clusters || (attribute.id == COOPERATIVE && attribute.value.number)) {
            report("clusters and cooperative launches are not emulated");
            return CUDA_NOT_SUPPORTED;
        }
    }
    return launch(std::move(work), config->stream, arguments);
}
