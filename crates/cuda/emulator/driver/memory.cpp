// Device and pinned memory.
//
// An allocation ends, rounded up to 16 bytes, at a page that nobody may touch, so a kernel that runs past it is caught in the act; it
// begins after one too. Fresh memory reads as 0xff bytes, which are NaN as a float and -1 as an integer: whoever reads what nobody
// wrote gets nonsense, not zeros. It is a private mapping of one file of such bytes, so a gigabyte costs nothing until it is written.
#include "state.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>

namespace {

struct Allocation {
    size_t bytes;
    void* map;
    size_t map_bytes;
    Context* context;
    bool host;
    bool registered;
};
// By first address. Device and pinned host memory: one address space.
std::map<uint64_t, Allocation>& allocations() {
    static auto* map = new std::map<uint64_t, Allocation>;
    return *map;
}

constexpr size_t PAGE = 4096;
constexpr size_t POISON_BYTES = 16 << 20;

int poison_file() {
    static const int file = [] {
        int f = memfd_create("glim-poison", MFD_CLOEXEC);
        if (f < 0 || ftruncate(f, POISON_BYTES)) return -1;
        void* at = mmap(nullptr, POISON_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, f, 0);
        if (at == MAP_FAILED) return -1;
        memset(at, 0xff, POISON_BYTES);
        munmap(at, POISON_BYTES);
        return f;
    }();
    return file;
}

// The address of fresh memory with its guard pages, or 0.
uint64_t map_guarded(size_t bytes, Allocation* allocation) {
    const size_t rounded = (bytes + 15) & ~size_t(15), usable = (rounded + PAGE - 1) & ~(PAGE - 1);
    allocation->map_bytes = usable + 2 * PAGE;
    void* map = mmap(nullptr, allocation->map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED || poison_file() < 0) return 0;
    char* first = static_cast<char*>(map) + PAGE;
    for (size_t at = 0; at < usable; at += POISON_BYTES) {
        const size_t piece = usable - at < POISON_BYTES ? usable - at : POISON_BYTES;
        void* got = mmap(first + at, piece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, poison_file(), 0);
        if (got == MAP_FAILED) {
            munmap(map, allocation->map_bytes);
            return 0;
        }
    }
    allocation->map = map;
    allocation->bytes = bytes;
    return reinterpret_cast<uint64_t>(first + usable - rounded);
}

CUresult allocate(uint64_t* address, size_t bytes, bool host) {
    Context* context;
    TRY(current_context(&context));
    TRY(refuse_in_capture());
    if (!bytes || !address) return CUDA_INVALID_VALUE;
    Locked lock(state_lock);
    if (!host && (bytes > DEVICE_BYTES || context->bytes_used > DEVICE_BYTES - bytes)) return CUDA_OUT_OF_MEMORY;
    Allocation allocation = {};
    allocation.context = context;
    allocation.host = host;
    *address = map_guarded(bytes, &allocation);
    if (!*address) return CUDA_OUT_OF_MEMORY;
    allocations()[*address] = allocation;
    if (!host) context->bytes_used += bytes;
    return CUDA_SUCCESS;
}

CUresult release(uint64_t address, bool host) {
    if (!initialised()) return CUDA_NOT_INITIALIZED;
    TRY(refuse_in_capture());
    if (!address) return host ? CUDA_INVALID_VALUE : CUDA_SUCCESS;
    Locked lock(state_lock);
    auto found = allocations().find(address);
    if (found == allocations().end() || found->second.host != host || found->second.registered) return CUDA_INVALID_VALUE;
    if (!host) found->second.context->bytes_used -= found->second.bytes;
    munmap(found->second.map, found->second.map_bytes);
    allocations().erase(found);
    return CUDA_SUCCESS;
}

std::map<uint64_t, Allocation>::iterator holder(uint64_t address) {
    auto next = allocations().upper_bound(address);
    return next == allocations().begin() ? allocations().end() : std::prev(next);
}

}  // namespace

bool in_allocation(uint64_t address, size_t bytes, bool host_too) {
    Locked lock(state_lock);
    auto found = holder(address);
    if (found != allocations().end() && (host_too || !found->second.host)) {
        const uint64_t offset = address - found->first;
        if (offset <= found->second.bytes && bytes <= found->second.bytes - offset) return true;
    }
    return in_module(address, bytes);
}

std::string describe_address(uint64_t address) {
    Locked lock(state_lock);
    auto found = holder(address);
    if (address < PAGE) return "near null";
    if (found != allocations().end()) {
        const Allocation& a = found->second;
        const uint64_t offset = address - found->first;
        const char* kind = a.host ? "pinned" : "device";
        if (offset < a.bytes + 2 * PAGE) {
            return std::to_string(offset) + " bytes into a " + kind + " allocation of " + std::to_string(a.bytes) + " bytes";
        }
    }
    auto next = allocations().upper_bound(address);
    if (next != allocations().end() && next->first - address <= 2 * PAGE) {
        return std::to_string(next->first - address) + " bytes before an allocation of " +
               std::to_string(next->second.bytes) + " bytes";
    }
    return "in no allocation";
}

// ---- allocations ---------------------------------------------------------------------------------------------------------------------

API CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
    Context* context;
    TRY(current_context(&context));
    Locked lock(state_lock);
    if (free_bytes) *free_bytes = DEVICE_BYTES - context->bytes_used;
    if (total_bytes) *total_bytes = DEVICE_BYTES;
    return CUDA_SUCCESS;
}
API CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
    uint64_t at = 0;
    TRY(allocate(&at, bytes, false));
    *address = at;
    return CUDA_SUCCESS;
}
API CUresult cuMemFree_v2(CUdeviceptr address) { return release(address, false); }
API CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream) { return cuMemAlloc_v2(address, bytes); }
API CUresult cuMemFreeAsync(CUdeviceptr address, CUstream) { return cuMemFree_v2(address); }
API CUresult cuMemHostAlloc(void** address, size_t bytes, unsigned) {
    uint64_t at = 0;
    TRY(allocate(&at, bytes, true));
    *address = reinterpret_cast<void*>(at);
    return CUDA_SUCCESS;
}
API CUresult cuMemAllocHost_v2(void** address, size_t bytes) { return cuMemHostAlloc(address, bytes, 0); }
API CUresult cuMemFreeHost(void* address) { return release(reinterpret_cast<uint64_t>(address), true); }
API CUresult cuMemHostRegister_v2(void* address, size_t bytes, unsigned) {
    Context* context;
    TRY(current_context(&context));
    if (!address || !bytes) return CUDA_INVALID_VALUE;
    Locked lock(state_lock);
    const uint64_t at = reinterpret_cast<uint64_t>(address);
    auto before = holder(at);
    if (before != allocations().end() && at < before->first + before->second.bytes) return CUDA_HOST_MEMORY_ALREADY_REGISTERED;
    allocations()[at] = {bytes, nullptr, 0, context, true, true};
    return CUDA_SUCCESS;
}
API CUresult cuMemHostUnregister(void* address) {
    Locked lock(state_lock);
    auto found = allocations().find(reinterpret_cast<uint64_t>(address));
    if (found == allocations().end() || !found->second.registered) return CUDA_HOST_MEMORY_NOT_REGISTERED;
    allocations().erase(found);
    return CUDA_SUCCESS;
}
API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* device, void* host, unsigned) {
    Locked lock(state_lock);
    const uint64_t at = reinterpret_cast<uint64_t>(host);
    auto found = holder(at);
    if (found == allocations().end() || !found->second.host || at >= found->first + found->second.bytes) return CUDA_INVALID_VALUE;
    *device = at;
    return CUDA_SUCCESS;
}
API CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
    Locked lock(state_lock);
    auto found = holder(address);
    if (found == allocations().end() || address >= found->first + found->second.bytes) return CUDA_NOT_FOUND;
    if (base) *base = found->first;
    if (bytes) *bytes = found->second.bytes;
    return CUDA_SUCCESS;
}
API CUresult cuPointerGetAttribute(void* data, int attribute, CUdeviceptr address) {
    Locked lock(state_lock);
    auto found = holder(address);
    if (found == allocations().end() || address >= found->first + found->second.bytes) return CUDA_INVALID_VALUE;
    switch (attribute) {
        case 1: *static_cast<CUcontext*>(data) = found->second.context; return CUDA_SUCCESS;
        case 2: *static_cast<unsigned*>(data) = found->second.host ? 1 : 2; return CUDA_SUCCESS;
        case 3: *static_cast<CUdeviceptr*>(data) = address; return CUDA_SUCCESS;
        case 9: *static_cast<int*>(data) = found->second.context->device; return CUDA_SUCCESS;
        default: return CUDA_NOT_SUPPORTED;
    }
}

// ---- copies and fills ----------------------------------------------------------------------------------------------------------------

CUresult Copy::run() const {
    memmove(to, from, bytes);
    return CUDA_SUCCESS;
}
CUresult Fill::run() const {
    if (width == 1) memset(to, int(value), count);
    else {
        for (size_t i = 0; i < count; i++) memcpy(static_cast<char*>(to) + i * width, &value, width);
    }
    return CUDA_SUCCESS;
}

static CUresult copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, bool to_device, bool from_device, CUstream stream) {
    Context* context;
    TRY(current_context(&context));
    if (!bytes) return CUDA_SUCCESS;
    if ((to_device && !in_allocation(to, bytes, true)) || (from_device && !in_allocation(from, bytes, true))) {
        report("a copy of " + std::to_string(bytes) + " bytes to " + describe_address(to) + " from " + describe_address(from));
        return CUDA_INVALID_VALUE;
    }
    if (!to || !from) return CUDA_INVALID_VALUE;
    return enqueue(stream, Copy{reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes});
}
static CUresult fill(CUdeviceptr to, unsigned value, unsigned width, size_t count, CUstream stream) {
    Context* context;
    TRY(current_context(&context));
    if (!count) return CUDA_SUCCESS;
    if (to % width || count > SIZE_MAX / width || !in_allocation(to, count * width, true)) {
        report("a fill of " + std::to_string(count) + " x " + std::to_string(width) + " bytes, " + describe_address(to));
        return CUDA_INVALID_VALUE;
    }
    return enqueue(stream, Fill{reinterpret_cast<void*>(to), value, width, count});
}
static CUdeviceptr address_of(const void* p) { return reinterpret_cast<CUdeviceptr>(p); }

// The synchronous forms belong to no stream, so no capture may contain them.
API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
    TRY(refuse_in_capture());
    return copy(to, address_of(from), bytes, true, false, nullptr);
}
API CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
    TRY(refuse_in_capture());
    return copy(address_of(to), from, bytes, false, true, nullptr);
}
API CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    TRY(refuse_in_capture());
    return copy(to, from, bytes, true, true, nullptr);
}
API CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    TRY(refuse_in_capture());
    return copy(to, from, bytes, false, false, nullptr);
}
API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
    return copy(to, address_of(from), bytes, true, false, stream);
}
API CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy(address_of(to), from, bytes, false, true, stream);
}
API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy(to, from, bytes, true, true, stream);
}
API CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy(to, from, bytes, false, false, stream);
}
API CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes, CUstream stream) {
    Stream* resolved;
    TRY(resolve_stream(stream, &resolved));
    // As the real driver: a copy between devices by this call cannot be captured.
    if (resolved->capture) {
        resolved->capture->invalid = true;
        return CUDA_STREAM_CAPTURE_UNSUPPORTED;
    }
    return copy(to, from, bytes, true, true, stream);
}
API CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
    TRY(refuse_in_capture());
    return fill(to, value, 1, count, nullptr);
}
API CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count) {
    TRY(refuse_in_capture());
    return fill(to, value, 2, count, nullptr);
}
API CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count) {
    TRY(refuse_in_capture());
    return fill(to, value, 4, count, nullptr);
}
API CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
    return fill(to, value, 1, count, stream);
}
API CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
    return fill(to, value, 2, count, stream);
}
API CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
    return fill(to, value, 4, count, stream);
}
