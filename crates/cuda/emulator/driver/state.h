// The emulated driver's objects, and the names of cuda.h that its entry points use.
//
// Handles are pointers to these structs. Each live object is in its kind's set, so that a handle that is stale or of another kind is
// CUDA_ERROR_INVALID_HANDLE and not a crash.
#pragma once
#include <cstddef>
#include <cstdint>
#include <chrono>
#include <mutex>
#include <string>
#include <unordered_set>
#include <variant>
#include <vector>

#include "../abi.h"

// ---- cuda.h, as far as it is used ------------------------------------------------------------------------------------------------

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct Context* CUcontext;
typedef struct Module* CUmodule;
typedef struct Function* CUfunction;
typedef struct Stream* CUstream;
typedef struct Event* CUevent;
typedef struct Graph* CUgraph;
typedef struct Graph* CUgraphExec;
typedef struct Node* CUgraphNode;
typedef void (*CUhostFn)(void*);

// Every error that the emulator gives, and those that callers ask the name of.
#define GLIM_ERRORS(X) \
    X(SUCCESS, 0, "no error") \
    X(INVALID_VALUE, 1, "invalid argument") \
    X(OUT_OF_MEMORY, 2, "out of memory") \
    X(NOT_INITIALIZED, 3, "initialization error") \
    X(DEINITIALIZED, 4, "driver shutting down") \
    X(NO_DEVICE, 100, "no CUDA-capable device is detected") \
    X(INVALID_DEVICE, 101, "invalid device ordinal") \
    X(INVALID_IMAGE, 200, "device kernel image is invalid") \
    X(INVALID_CONTEXT, 201, "invalid device context") \
    X(NO_BINARY_FOR_GPU, 209, "no kernel image is available for execution on the device") \
    X(PEER_ACCESS_UNSUPPORTED, 217, "peer access is not supported between these two devices") \
    X(INVALID_PTX, 218, "a PTX JIT compilation failed") \
    X(UNSUPPORTED_PTX_VERSION, 222, "the provided PTX was compiled with an unsupported toolchain") \
    X(OPERATING_SYSTEM, 304, "OS call failed or operation not supported on this OS") \
    X(INVALID_HANDLE, 400, "invalid resource handle") \
    X(ILLEGAL_STATE, 401, "the operation cannot be performed in the present state") \
    X(NOT_FOUND, 500, "named symbol not found") \
    X(NOT_READY, 600, "device not ready") \
    X(ILLEGAL_ADDRESS, 700, "an illegal memory access was encountered") \
    X(LAUNCH_OUT_OF_RESOURCES, 701, "too many resources requested for launch") \
    X(LAUNCH_TIMEOUT, 702, "the launch timed out and was terminated") \
    X(PEER_ACCESS_ALREADY_ENABLED, 704, "peer access is already enabled") \
    X(PEER_ACCESS_NOT_ENABLED, 705, "peer access has not been enabled") \
    X(HOST_MEMORY_ALREADY_REGISTERED, 712, "part or all of the requested memory range is already mapped") \
    X(HOST_MEMORY_NOT_REGISTERED, 713, "pointer does not correspond to a registered memory region") \
    X(MISALIGNED_ADDRESS, 716, "misaligned address") \
    X(LAUNCH_FAILED, 719, "unspecified launch failure") \
    X(NOT_PERMITTED, 800, "operation not permitted") \
    X(NOT_SUPPORTED, 801, "operation not supported") \
    X(STREAM_CAPTURE_UNSUPPORTED, 900, "operation not permitted when stream is capturing") \
    X(STREAM_CAPTURE_INVALIDATED, 901, "operation failed due to a previous error during capture") \
    X(STREAM_CAPTURE_MERGE, 902, "operation would result in a merge of separate capture sequences") \
    X(STREAM_CAPTURE_UNMATCHED, 903, "capture was not ended in the same stream as it began") \
    X(STREAM_CAPTURE_UNJOINED, 904, "capturing stream has unjoined work") \
    X(STREAM_CAPTURE_ISOLATION, 905, "dependency created on uncaptured work in another stream") \
    X(STREAM_CAPTURE_IMPLICIT, 906, "operation would make the legacy stream depend on a capturing blocking stream") \
    X(CAPTURED_EVENT, 907, "operation not permitted on an event last recorded in a capturing stream") \
    X(STREAM_CAPTURE_WRONG_THREAD, 908, "attempt to terminate a thread-local capture sequence from another thread") \
    X(UNKNOWN, 999, "unknown error")

enum CUresult {
#define X(name, value, text) CUDA_##name = value,
    GLIM_ERRORS(X)
#undef X
};

// ---- objects ----------------------------------------------------------------------------------------------------------------------

// All state but what kernels touch is behind this one lock; kernels run without it.
extern std::recursive_mutex state_lock;
using Locked = std::lock_guard<std::recursive_mutex>;

// An object with a handle.
template <class T> struct Object {
    static std::unordered_set<const void*>& live() {
        static auto* set = new std::unordered_set<const void*>;
        return *set;
    }
    Object() {
        Locked lock(state_lock);
        live().insert(this);
    }
    ~Object() {
        Locked lock(state_lock);
        live().erase(this);
    }
    Object(const Object&) = delete;
};
template <class T> bool is_live(T* handle) {
    Locked lock(state_lock);
    return handle && Object<T>::live().count(static_cast<Object<T>*>(handle));
}

constexpr uint64_t DEVICE_BYTES = 16ull << 30;
constexpr int SMS = 132;
constexpr int SHARED_DEFAULT = 48 * 1024;

struct Context : Object<Context> {
    CUdevice device = 0;
    uint64_t bytes_used = 0;
    unsigned retained = 0;
    std::unordered_set<Context*> peers;
    // The legacy default stream.
    Stream* default_stream = nullptr;
};

struct Function : Object<Function> {
    Module* module = nullptr;
    const glim_kernel* kernel = nullptr;
    int dynamic_shared_max = SHARED_DEFAULT;
};

struct Module : Object<Module> {
    Context* context = nullptr;
    void* library = nullptr;
    // What it was loaded from, for the line numbers in reports, and where it lies.
    std::vector<unsigned char> image;
    uintptr_t base = 0;
    size_t span = 0;
    // Its shared memory: the thread-local storage of the library. 0 bytes: it has none.
    size_t shared_id = 0, shared_bytes = 0;
    std::vector<Function*> functions;
};

// ---- work that a stream does and a graph repeats ------------------------------------------------------------------------------------

struct Launch {
    Function* function = nullptr;
    glim_index grid{}, block{};
    unsigned dynamic_shared = 0;
    // Has the PDL attribute.
    bool overlaps = false;
    // The arguments' bytes, each at a multiple of 16.
    std::vector<unsigned char> arguments;
    CUresult run() const;
};
struct Copy {
    void* to = nullptr;
    const void* from = nullptr;
    size_t bytes = 0;
    CUresult run() const;
};
struct Fill {
    void* to = nullptr;
    unsigned value = 0, width = 1;
    size_t count = 0;
    CUresult run() const;
};
struct HostCall {
    CUhostFn function = nullptr;
    void* data = nullptr;
    CUresult run() const;
};
struct Record {
    Event* event = nullptr;
    CUresult run() const;
};
using Work = std::variant<Launch, Copy, Fill, HostCall, Record>;

struct Node {
    Work work;
};
struct Graph : Object<Graph> {
    std::vector<Node*> nodes;
    bool executable = false;
    ~Graph() {
        for (Node* node : nodes) delete node;
    }
};

// What streams record into between begin and end.
struct Capture {
    Graph* graph = nullptr;
    Stream* origin = nullptr;
    // Streams that took part through an event, and have work that the origin has not waited for.
    std::unordered_set<Stream*> unjoined;
    std::vector<Stream*> streams;
    uint64_t id = 0;
    uint64_t thread = 0;
    int mode = 0;
    bool invalid = false;
};

struct Event : Object<Event> {
    Context* context = nullptr;
    bool timed = true, recorded = false;
    std::chrono::steady_clock::time_point time;
    // Set if it was last recorded in this capture, by this stream.
    Capture* capture = nullptr;
    Stream* stream = nullptr;
};

struct Stream : Object<Stream> {
    Context* context = nullptr;
    bool non_blocking = false;
    int priority = 0;
    Capture* capture = nullptr;
    // Work of one stream runs in order, whichever thread brings it.
    std::recursive_mutex running;
};

// ---- across files --------------------------------------------------------------------------------------------------------------------

// The calling thread's context, or an error.
CUresult current_context(Context** context);
Context* primary_context(CUdevice device);
int device_count();
bool initialised();

// The range lies within one device allocation (or pinned host memory, if `host_too`).
bool in_allocation(uint64_t address, size_t bytes, bool host_too);
// The range lies within a module's variables.
bool in_module(uint64_t address, size_t bytes);
// What lies at an address, in words, for a report.
std::string describe_address(uint64_t address);

// A call that no capture may contain: an error, and it spoils this thread's captures.
CUresult refuse_in_capture();
// Resolves a handle, the default ones too.
CUresult resolve_stream(CUstream handle, Stream** stream);
// Runs the work, or records it.
CUresult enqueue(CUstream handle, Work work);

// A file of these bytes with a name of its own, to be removed by the caller; empty if there is no room.
std::string write_temporary(const std::vector<unsigned char>& bytes);
// Prints a line that begins with the emulator's name.
void report(const std::string& line);

#define API extern "C" __attribute__((visibility("default")))
#define TRY(expression) \
    do { \
        CUresult try_result = (expression); \
        if (try_result != CUDA_SUCCESS) return try_result; \
    } while (0)
