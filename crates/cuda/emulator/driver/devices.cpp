// Devices, contexts, and the names of errors.
#include "state.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

std::recursive_mutex state_lock;

namespace {

bool ready = false;
thread_local std::vector<Context*> contexts;

// The attributes that somebody asks for, of a GPU as the kernels see it; others are 0.
struct Attribute {
    int id, value;
};
const Attribute ATTRIBUTES[] = {
    {1, 1024},                // threads per block
    {2, 1024}, {3, 1024}, {4, 64},
    {5, 2147483647}, {6, 65535}, {7, 65535},
    {8, SHARED_DEFAULT},      // shared memory per block, without opt-in
    {9, 65536},               // constant memory
    {10, 32},                 // warp
    {12, 65536},              // registers per block
    {13, 1000000},            // clock, kHz
    {16, SMS},
    {19, 1},                  // maps host memory
    {31, 1},                  // concurrent kernels
    {34, 0}, {50, 0},         // PCI device and domain
    {36, 1000000}, {37, 5120},
    {38, 50 << 20},           // L2
    {39, 2048},               // threads per SM
    {41, 1},                  // unified addressing
    {75, 9}, {76, 0},         // capability
    {78, 1},                  // stream priorities
    {81, 228 * 1024},         // shared memory per SM
    {82, 65536},              // registers per SM
    {97, GLIM_SHARED_BYTES},  // shared memory per block, with opt-in
    {106, 32},                // blocks per SM
    {111, 1024},              // shared memory that the system takes of each block
};

}  // namespace

void report(const std::string& line) { fprintf(stderr, "emulated GPU: %s\n", line.c_str()); }

int device_count() {
    static const int count = [] {
        const char* text = getenv("GLIM_EMULATED_GPUS");
        const int n = text ? atoi(text) : 1;
        return n < 0 ? 0 : n > 64 ? 64 : n;
    }();
    return count;
}

bool initialised() { return ready; }

Context* primary_context(CUdevice device) {
    static std::vector<Context*> all;
    Locked lock(state_lock);
    while (int(all.size()) < device_count()) {
        Context* context = new Context;
        context->device = int(all.size());
        context->default_stream = new Stream;
        context->default_stream->context = context;
        all.push_back(context);
    }
    return all[size_t(device)];
}

CUresult current_context(Context** context) {
    if (!ready) return CUDA_NOT_INITIALIZED;
    if (contexts.empty() || !contexts.back()) return CUDA_INVALID_CONTEXT;
    *context = contexts.back();
    return CUDA_SUCCESS;
}

static CUresult check(CUdevice device) {
    if (!ready) return CUDA_NOT_INITIALIZED;
    return device < 0 || device >= device_count() ? CUDA_INVALID_DEVICE : CUDA_SUCCESS;
}

// ---- errors --------------------------------------------------------------------------------------------------------------------------

API CUresult cuGetErrorName(CUresult error, const char** text) {
    if (error == CUDA_SUCCESS) return *text = "CUDA_SUCCESS", CUDA_SUCCESS;
    struct Name {
        int value;
        const char* name;
    };
    static const Name NAMES[] = {
#define X(name, value, text_) {value, "CUDA_ERROR_" #name},
        GLIM_ERRORS(X)
#undef X
    };
    for (const Name& name : NAMES) {
        if (name.value == int(error)) return *text = name.name, CUDA_SUCCESS;
    }
    *text = nullptr;
    return CUDA_INVALID_VALUE;
}
API CUresult cuGetErrorString(CUresult error, const char** text) {
    switch (int(error)) {
#define X(name, value, text_) \
        case value: *text = text_; return CUDA_SUCCESS;
        GLIM_ERRORS(X)
#undef X
    }
    *text = nullptr;
    return CUDA_INVALID_VALUE;
}

// ---- devices -------------------------------------------------------------------------------------------------------------------------

API CUresult cuInit(unsigned flags) {
    if (flags) return CUDA_INVALID_VALUE;
    if (!device_count()) return CUDA_NO_DEVICE;
    ready = true;
    return CUDA_SUCCESS;
}
API CUresult cuDriverGetVersion(int* version) {
    *version = 13000;
    return CUDA_SUCCESS;
}
API CUresult cuDeviceGetCount(int* count) {
    if (!ready) return CUDA_NOT_INITIALIZED;
    *count = device_count();
    return CUDA_SUCCESS;
}
API CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    TRY(check(ordinal));
    *device = ordinal;
    return CUDA_SUCCESS;
}
API CUresult cuDeviceGetName(char* name, int bytes, CUdevice device) {
    TRY(check(device));
    snprintf(name, size_t(bytes), "emulated GPU");
    return CUDA_SUCCESS;
}
API CUresult cuDeviceGetUuid_v2(char* uuid, CUdevice device) {
    TRY(check(device));
    memset(uuid, 0, 16);
    memcpy(uuid, "emulated", 8);
    uuid[15] = char(device);
    return CUDA_SUCCESS;
}
API CUresult cuDeviceGetUuid(char* uuid, CUdevice device) { return cuDeviceGetUuid_v2(uuid, device); }
API CUresult cuDeviceGetPCIBusId(char* id, int bytes, CUdevice device) {
    TRY(check(device));
    snprintf(id, size_t(bytes), "0000:%02X:00.0", device + 1);
    return CUDA_SUCCESS;
}
API CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
    TRY(check(device));
    *bytes = DEVICE_BYTES;
    return CUDA_SUCCESS;
}
API CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice device) {
    TRY(check(device));
    if (attribute <= 0) return CUDA_INVALID_VALUE;
    *value = attribute == 33 ? device + 1 : 0;
    for (const Attribute& known : ATTRIBUTES) {
        if (known.id == attribute) *value = known.value;
    }
    return CUDA_SUCCESS;
}
API CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
    TRY(check(device));
    TRY(check(peer));
    *can = device != peer;
    return CUDA_SUCCESS;
}
API CUresult cuDeviceGetP2PAttribute(int* value, int attribute, CUdevice device, CUdevice peer) {
    TRY(check(device));
    TRY(check(peer));
    // 1 performance rank, 2 access, 3 native atomics, 4 access of arrays.
    *value = attribute == 2 || attribute == 3;
    return CUDA_SUCCESS;
}

// ---- contexts ------------------------------------------------------------------------------------------------------------------------

API CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    TRY(check(device));
    Locked lock(state_lock);
    *context = primary_context(device);
    (*context)->retained++;
    return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    TRY(check(device));
    Locked lock(state_lock);
    Context* context = primary_context(device);
    if (!context->retained) return CUDA_INVALID_CONTEXT;
    context->retained--;
    return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
    TRY(check(device));
    *flags = 0;
    *active = primary_context(device)->retained > 0;
    return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned) { return check(device); }
API CUresult cuCtxSetCurrent(CUcontext context) {
    if (!ready) return CUDA_NOT_INITIALIZED;
    if (context && !is_live(context)) return CUDA_INVALID_CONTEXT;
    if (contexts.empty()) contexts.push_back(nullptr);
    contexts.back() = context;
    return CUDA_SUCCESS;
}
API CUresult cuCtxGetCurrent(CUcontext* context) {
    if (!ready) return CUDA_NOT_INITIALIZED;
    *context = contexts.empty() ? nullptr : contexts.back();
    return CUDA_SUCCESS;
}
API CUresult cuCtxPushCurrent_v2(CUcontext context) {
    if (!ready) return CUDA_NOT_INITIALIZED;
    if (!is_live(context)) return CUDA_INVALID_CONTEXT;
    contexts.push_back(context);
    return CUDA_SUCCESS;
}
API CUresult cuCtxPopCurrent_v2(CUcontext* context) {
    if (!ready) return CUDA_NOT_INITIALIZED;
    if (contexts.empty()) return CUDA_INVALID_CONTEXT;
    if (context) *context = contexts.back();
    contexts.pop_back();
    return CUDA_SUCCESS;
}
API CUresult cuCtxGetDevice(CUdevice* device) {
    Context* context;
    TRY(current_context(&context));
    *device = context->device;
    return CUDA_SUCCESS;
}
API CUresult cuCtxSynchronize() {
    Context* context;
    TRY(current_context(&context));
    return refuse_in_capture();
}
API CUresult cuCtxSetLimit(int, size_t) {
    Context* context;
    return current_context(&context);
}
API CUresult cuCtxGetLimit(size_t* value, int) {
    Context* context;
    TRY(current_context(&context));
    *value = 1024;
    return CUDA_SUCCESS;
}
API CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    Context* context;
    TRY(current_context(&context));
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return CUDA_SUCCESS;
}
API CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
    Context* context;
    TRY(current_context(&context));
    if (flags) return CUDA_INVALID_VALUE;
    if (!is_live(peer)) return CUDA_INVALID_CONTEXT;
    if (peer == context) return CUDA_INVALID_DEVICE;
    Locked lock(state_lock);
    return context->peers.insert(peer).second ? CUDA_SUCCESS : CUDA_PEER_ACCESS_ALREADY_ENABLED;
}
API CUresult cuCtxDisablePeerAccess(CUcontext peer) {
    Context* context;
    TRY(current_context(&context));
    Locked lock(state_lock);
    return context->peers.erase(peer) ? CUDA_SUCCESS : CUDA_PEER_ACCESS_NOT_ENABLED;
}
