// The emulator's own test: `cargo xtask emulate` runs it before the crate's tests.
//
//     self_test COMMON_CUH KERNELS_CU
//
// It calls the two libraries as any program would, and checks what kernels compute, what must be refused and with which error, and
// that a kernel which goes wrong takes only its launch with it. What the emulator reports of these kernels goes to standard error.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

extern "C" {
typedef unsigned long long Pointer;
typedef void* Handle;
int cuInit(unsigned);
int cuDeviceGetCount(int*);
int cuDevicePrimaryCtxRetain(Handle*, int);
int cuCtxSetCurrent(Handle);
int cuCtxSynchronize();
int cuCtxEnablePeerAccess(Handle, unsigned);
int cuMemGetInfo_v2(size_t*, size_t*);
int cuMemAlloc_v2(Pointer*, size_t);
int cuMemFree_v2(Pointer);
int cuMemHostAlloc(void**, size_t, unsigned);
int cuMemFreeHost(void*);
int cuMemcpyHtoD_v2(Pointer, const void*, size_t);
int cuMemcpyDtoH_v2(void*, Pointer, size_t);
int cuMemcpyHtoDAsync_v2(Pointer, const void*, size_t, Handle);
int cuMemcpyDtoDAsync_v2(Pointer, Pointer, size_t, Handle);
int cuMemcpyPeerAsync(Pointer, Handle, Pointer, Handle, size_t, Handle);
int cuMemsetD32_v2(Pointer, unsigned, size_t);
int cuMemsetD8Async(Pointer, unsigned char, size_t, Handle);
int cuStreamCreate(Handle*, unsigned);
int cuStreamDestroy_v2(Handle);
int cuStreamSynchronize(Handle);
int cuStreamWaitEvent(Handle, Handle, unsigned);
int cuStreamBeginCapture_v2(Handle, int);
int cuStreamEndCapture(Handle, Handle*);
int cuEventCreate(Handle*, unsigned);
int cuEventRecord(Handle, Handle);
int cuEventQuery(Handle);
int cuEventElapsedTime_v2(float*, Handle, Handle);
int cuModuleLoadData(Handle*, const void*);
int cuModuleUnload(Handle);
int cuModuleGetFunction(Handle*, Handle, const char*);
int cuModuleGetGlobal_v2(Pointer*, size_t*, Handle, const char*);
int cuFuncSetAttribute(Handle, int, int);
int cuFuncGetAttribute(int*, int, Handle);
int cuFuncGetParamInfo(Handle, size_t, size_t*, size_t*);
int cuLaunchKernel(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void**, void**);
int cuLaunchKernelEx(const void*, Handle, void**, void**);
int cuGraphInstantiateWithFlags(Handle*, Handle, uint64_t);
int cuGraphGetNodes(Handle, Handle*, size_t*);
int cuGraphLaunch(Handle, Handle);
int cuGraphExecDestroy(Handle);
int cuGraphDestroy(Handle);
int cuGetErrorName(int, const char**);
int nvrtcCreateProgram(Handle*, const char*, const char*, int, const char* const*, const char* const*);
int nvrtcCompileProgram(Handle, int, const char* const*);
int nvrtcGetCUBINSize(Handle, size_t*);
int nvrtcGetCUBIN(Handle, char*);
int nvrtcGetProgramLogSize(Handle, size_t*);
int nvrtcGetProgramLog(Handle, char*);
int nvrtcDestroyProgram(Handle*);
}

enum {
    OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_IMAGE = 200, NO_BINARY_FOR_GPU = 209, INVALID_HANDLE = 400, NOT_FOUND = 500,
    ILLEGAL_ADDRESS = 700, LAUNCH_TIMEOUT = 702, MISALIGNED_ADDRESS = 716, LAUNCH_FAILED = 719, CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901, CAPTURE_UNJOINED = 904, CAPTURE_ISOLATION = 905, CAPTURED_EVENT = 907,
};

// ---- the harness ----------------------------------------------------------------------------------------------------------------------

static int failures = 0;
static std::string test_name;

static void check(bool holds, const char* what, int line) {
    if (holds) return;
    failures++;
    printf("FAILED %s, line %d: %s\n", test_name.c_str(), line, what);
}
static void check_code(int got, int wanted, const char* what, int line) {
    if (got == wanted) return;
    const char *got_name = nullptr, *wanted_name = nullptr;
    cuGetErrorName(got, &got_name);
    cuGetErrorName(wanted, &wanted_name);
    failures++;
    printf("FAILED %s, line %d: %s gives %d %s, not %d %s\n", test_name.c_str(), line, what, got, got_name ? got_name : "", wanted,
           wanted_name ? wanted_name : "");
}
#define CHECK(condition) check(condition, #condition, __LINE__)
#define GIVES(wanted, call) check_code(call, wanted, #call, __LINE__)
#define DO(call) GIVES(OK, call)

static std::string read_file(const char* path) {
    std::ifstream in(path);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
}

static std::string prefix;
static Handle context, module_, stream;

// The log of a failed compilation, or nothing.
static std::string compile(const std::string& source, std::vector<const char*> options, std::vector<char>* cubin) {
    Handle program = nullptr;
    nvrtcCreateProgram(&program, source.c_str(), "kernels.cu", 0, nullptr, nullptr);
    const int result = nvrtcCompileProgram(program, int(options.size()), options.data());
    size_t bytes = 0;
    std::string log;
    if (result) {
        nvrtcGetProgramLogSize(program, &bytes);
        log.resize(bytes);
        nvrtcGetProgramLog(program, log.data());
    } else {
        nvrtcGetCUBINSize(program, &bytes);
        cubin->resize(bytes);
        nvrtcGetCUBIN(program, cubin->data());
    }
    nvrtcDestroyProgram(&program);
    return log;
}

template <class T> struct Device {
    Pointer at = 0;
    size_t count;
    explicit Device(size_t count, const T* from = nullptr) : count(count) {
        DO(cuMemAlloc_v2(&at, count * sizeof(T)));
        if (from) DO(cuMemcpyHtoD_v2(at, from, count * sizeof(T)));
    }
    explicit Device(const std::vector<T>& from) : Device(from.size(), from.data()) {}
    ~Device() { DO(cuMemFree_v2(at)); }
    Device(const Device&) = delete;
    std::vector<T> read() const {
        std::vector<T> out(count);
        DO(cuMemcpyDtoH_v2(out.data(), at, count * sizeof(T)));
        return out;
    }
};

static Handle function(const char* name) {
    Handle f = nullptr;
    DO(cuModuleGetFunction(&f, module_, name));
    return f;
}

struct Attribute {
    unsigned id;
    char pad[4];
    union {
        char bytes[64];
        int number;
    } value;
};
struct Config {
    unsigned grid[3], block[3], shared;
    Handle stream;
    Attribute* attributes;
    unsigned count;
};

template <class... A> int launch_on(Handle on, const char* name, unsigned grid, unsigned block, unsigned shared, A... arguments) {
    void* pointers[] = {&arguments..., nullptr};
    return cuLaunchKernel(function(name), grid, 1, 1, block, 1, 1, shared, on, pointers, nullptr);
}
template <class... A> int launch(const char* name, unsigned grid, unsigned block, unsigned shared, A... arguments) {
    return launch_on(stream, name, grid, block, shared, arguments...);
}
template <class... A> int launch_dependent(const char* name, unsigned grid, unsigned block, A... arguments) {
    void* pointers[] = {&arguments..., nullptr};
    Attribute attribute = {};
    attribute.id = 6;
    attribute.value.number = 1;
    const Config config = {{grid, 1, 1}, {block, 1, 1}, 0, stream, &attribute, 1};
    return cuLaunchKernelEx(&config, function(name), pointers, nullptr);
}

// ---- kernels that do what they should -------------------------------------------------------------------------------------------------------

static void kernels_run_over_a_grid() {
    std::vector<int> in(1000);
    for (int i = 0; i < 1000; i++) in[size_t(i)] = i;
    Device<int> from(in), to(1000);
    DO(launch_dependent("multiply", 4, 256, to.at, from.at, 1000, 0.5f));
    const int table[] = {2, 3, 5, 7};
    const auto out = to.read();
    for (int i = 0; i < 1000; i++) CHECK(out[size_t(i)] == i * table[i % 4]);
}

static void variables_of_a_module_can_be_copied() {
    Pointer at = 0;
    size_t bytes = 0;
    DO(cuModuleGetGlobal_v2(&at, &bytes, module_, "table"));
    CHECK(bytes == 16);
    int table[4] = {};
    DO(cuMemcpyDtoH_v2(table, at, bytes));
    CHECK(table[3] == 7);
    DO(cuMemcpyHtoD_v2(at, table, bytes));
    GIVES(NOT_FOUND, cuModuleGetGlobal_v2(&at, &bytes, module_, "nothing"));
}

static void warps_exchange_values() {
    Device<int> to(12 * 64);
    DO(launch("warps", 1, 64, 0, to.at));
    const auto out = to.read();
    auto row = [&](int r, int i) { return out[size_t(64 * r + i)]; };
    for (int i = 0; i < 64; i++) {
        const int lane = i % 32, warp = i / 32, v = 100 + i;
        CHECK(row(0, i) == 100 + 32 * warp + 3);
        CHECK(row(1, i) == 100 + (i ^ 16));
        CHECK(row(2, i) == (lane ? v - 1 : v));
        CHECK(row(3, i) == (lane % 8 < 3 ? v + 5 : v));
        CHECK(row(4, i) == 0x49249249);
        CHECK(row(5, i) == (warp == 1));
        CHECK(row(6, i) == (warp == 0));
        CHECK(row(7, i) == 32 * (100 + 32 * warp) + 31 * 16);
        CHECK(row(8, i) == int(0xffu << lane / 8 * 8));
        CHECK(row(9, i) == (lane < 16 ? 100 + 32 * warp + 1 : 2 * (100 + 32 * warp) + 17 + 18));
        CHECK(row(10, i) == (i ^ 5));
        CHECK(row(11, i) == 32 * warp + 9);
    }
}

static void blocks_reduce_in_shared_memory() {
    std::vector<float> in(256);
    for (int i = 0; i < 256; i++) in[size_t(i)] = float(i);
    Device<float> from(in), to(5 * 256);
    DO(launch("block_total", 5, 256, 0, to.at, from.at));
    for (float v : to.read()) CHECK(v == 32640.0f);
}

static void ended_lanes_are_not_waited_for() {
    Device<int> to(64);
    DO(launch("ended_lanes", 1, 64, 0, to.at));
    const auto out = to.read();
    for (int i = 0; i < 64; i++) CHECK(out[size_t(i)] == (i % 2 ? -1 : 10));
}

static void a_missing_barrier_shows() {
    Device<int> to(4 * 256);
    DO(launch("reverse", 4, 256, 1024, to.at, 1));
    const auto right = to.read();
    for (int i = 0; i < 4 * 256; i++) CHECK(right[size_t(i)] == 255 - i % 256);
    DO(launch("reverse", 4, 256, 1024, to.at, 0));
    CHECK(to.read() != right);
}

static void shared_memory_is_poisoned_for_each_block() {
    Device<unsigned> to(8);
    DO(launch("poison_seen", 4, 64, 256, to.at));
    for (unsigned v : to.read()) CHECK(v == 0xffffffffu);
}

static void parts_of_a_block_have_barriers_of_their_own() {
    Device<int> to(96);
    DO(launch("named_barriers", 1, 96, 256, to.at));
    const auto out = to.read();
    for (int i = 0; i < 96; i++) CHECK(out[size_t(i)] == (i < 64 ? 63 - i : -1));
}

static void blocks_that_wait_for_each_other_are_there_together() {
    const int blocks = 40;
    Device<int> counter(std::vector<int>{0}), to(size_t(blocks) * 32);
    DO(launch("grid_barrier", unsigned(blocks), 32, 0, counter.at, to.at));
    const auto out = to.read();
    for (int i = 0; i < blocks * 32; i++) CHECK(out[size_t(i)] == i / 32);
}

static void ranks_on_two_threads_see_each_other() {
    Device<int> a(std::vector<int>{0}), b(std::vector<int>{0}), from_a(1), from_b(1);
    std::thread other([&] {
        DO(cuCtxSetCurrent(context));
        Handle own;
        DO(cuStreamCreate(&own, 1));
        DO(launch_on(own, "exchange", 1, 32, 0, b.at, a.at, 22, from_a.at));
        DO(cuStreamDestroy_v2(own));
    });
    DO(launch("exchange", 1, 32, 0, a.at, b.at, 11, from_b.at));
    other.join();
    CHECK(from_a.read()[0] == 11 && from_b.read()[0] == 22);
}

static void matrix_instructions_multiply() {
    std::vector<signed char> a8(16 * 32), b8(8 * 32);
    std::vector<float> a(16 * 16), b(8 * 16);
    for (size_t i = 0; i < a8.size(); i++) a8[i] = static_cast<signed char>(i * 37 + i / 7 - 100);
    for (size_t i = 0; i < b8.size(); i++) b8[i] = static_cast<signed char>(i * 59 + i / 5 + 3);
    // Small integers and halves: exact in every format.
    for (size_t i = 0; i < a.size(); i++) a[i] = float(int(i * 7 % 23) - 11) / 2;
    for (size_t i = 0; i < b.size(); i++) b[i] = float(int(i * 5 % 19) - 9) / 4;
    Device<signed char> da8(a8), db8(b8);
    Device<float> da(a), db(b), bf(128), tf(128);
    Device<int> i32(128), i16(128);
    DO(launch("matrices", 1, 32, 0, i32.at, i16.at, bf.at, tf.at, da8.at, db8.at, da.at, db.at));
    const auto o32 = i32.read(), o16 = i16.read();
    const auto obf = bf.read(), otf = tf.read();
    for (size_t r = 0; r < 16; r++) {
        for (size_t c = 0; c < 8; c++) {
            int s32 = 0, s16 = 0;
            float f16 = 0, f8 = 0;
            for (size_t k = 0; k < 32; k++) s32 += a8[r * 32 + k] * b8[c * 32 + k];
            for (size_t k = 0; k < 16; k++) s16 += a8[r * 32 + k] * b8[c * 32 + k];
            for (size_t k = 0; k < 16; k++) f16 += a[r * 16 + k] * b[c * 16 + k];
            for (size_t k = 0; k < 8; k++) f8 += a[r * 16 + k] * b[c * 16 + k];
            const size_t i = r * 8 + c;
            CHECK(o32[i] == s32);
            CHECK(o16[i] == s16);
            CHECK(obf[i] == f16);
            CHECK(otf[i] == f8);
        }
    }
}

static void ldmatrix_gives_rows_or_columns() {
    Device<unsigned> to(8 * 32);
    DO(launch("load_matrices", 1, 32, 512, to.at));
    const auto out = to.read();
    for (unsigned m = 0; m < 4; m++) {
        for (unsigned lane = 0; lane < 32; lane++) {
            const unsigned row = lane / 4, column = lane % 4 * 2;
            const unsigned plain = m * 64 + row * 8 + column, transposed = m * 64 + column * 8 + row;
            CHECK(out[m * 32 + lane] == (plain | (plain + 1) << 16));
            CHECK(out[(4 + m) * 32 + lane] == (transposed | (transposed + 8) << 16));
        }
    }
}

static void numbers_are_those_of_the_gpu() {
    Device<int> to(10);
    DO(launch("numbers", 1, 1, 0, to.at));
    const int wanted[] = {10 + -128 * 127 + -1 * 2 + 127 * -1 + 1 * -128, 1 + 4 * 255 * 255, 2, -4, 2147483647, 0x77552200, 31 + 4 + 8, 1, 1, 1};
    const auto out = to.read();
    for (size_t i = 0; i < 10; i++) {
        if (out[i] != wanted[i]) printf("number %zu is %d, not %d\n", i, out[i], wanted[i]);
        CHECK(out[i] == wanted[i]);
    }
}

static void halves_round_to_nearest_even() {
    const float inf = INFINITY;
    const std::vector<float> in = {1.0f, 65519.0f, 65520.0f, 1e10f, -inf, 0x1p-24f, 0x1p-25f, 0x1.8p-25f, 1.00048828125f, 1.00146484375f, -0.0f};
    const std::vector<uint16_t> wanted = {0x3c00, 0x7bff, 0x7c00, 0x7c00, 0xfc00, 0x0001, 0x0000, 0x0001, 0x3c00, 0x3c02, 0x8000};
    Device<float> from(in), values(65536);
    Device<uint16_t> back(65536), rounded(in.size());
    DO(launch("halves", 1, 256, 0, values.at, back.at, rounded.at, from.at, int(in.size())));
    const auto v = values.read();
    const auto b = back.read();
    for (size_t i = 0; i < 65536; i++) {
        const bool nan = (i & 0x7fff) > 0x7c00;
        CHECK(nan ? std::isnan(v[i]) : b[i] == i);
        const int exponent = int(i >> 10 & 31), mantissa = int(i & 1023);
        if (exponent == 31) continue;
        const double size = exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24);
        CHECK(double(v[i]) == (i >> 15 ? -size : size));
    }
    CHECK(rounded.read() == wanted);
}

// ---- kernels that do not -----------------------------------------------------------------------------------------------------------------------

static void faults_end_their_launch_only() {
    Device<int> to(256);
    GIVES(LAUNCH_FAILED, launch("deadlock", 1, 64, 0));
    GIVES(ILLEGAL_ADDRESS, launch("past_end", 1, 64, 0, to.at, 256));
    GIVES(ILLEGAL_ADDRESS, launch("past_end", 1, 64, 0, to.at, -5000));
    DO(launch("past_shared", 1, 64, 256));
    GIVES(ILLEGAL_ADDRESS, launch("past_shared", 1, 64, 240));
    GIVES(MISALIGNED_ADDRESS, launch("misaligned", 1, 64, 0, to.at));
    GIVES(ILLEGAL_ADDRESS, launch("null_pointer", 1, 64, 0, Pointer(0)));
    GIVES(LAUNCH_FAILED, launch("divides", 1, 64, 0, to.at, 0));
    GIVES(MISALIGNED_ADDRESS, launch("outside_array", 1, 64, 0, to.at, 1));
    GIVES(ILLEGAL_ADDRESS, launch("overflows", 1, 64, 0, to.at));
    GIVES(LAUNCH_FAILED, launch("foreign_mask", 1, 64, 0));
    GIVES(LAUNCH_FAILED, launch("traps", 1, 64, 0));
    DO(launch("no_wait", 1, 64, 0, to.at));
    GIVES(LAUNCH_FAILED, launch_dependent("no_wait", 1, 64, to.at));
    blocks_reduce_in_shared_memory();
}

static void waiting_has_an_end() {
    Device<int> flag(std::vector<int>{0});
    GIVES(LAUNCH_TIMEOUT, launch("wait_for_ever", 3, 32, 0, flag.at));
}

static void launches_over_the_limits_are_refused() {
    Device<int> to(4096);
    GIVES(INVALID_VALUE, launch("reverse", 1, 512, 2048, to.at, 1));
    GIVES(INVALID_VALUE, launch("reverse", 0, 64, 256, to.at, 1));
    GIVES(INVALID_VALUE, launch("reverse", 1, 64, 100 << 10, to.at, 1));
    DO(cuFuncSetAttribute(function("reverse"), 8, 100 << 10));
    DO(launch("reverse", 1, 64, 100 << 10, to.at, 1));
    GIVES(INVALID_VALUE, cuFuncSetAttribute(function("reverse"), 8, 228 << 10));
    Handle f;
    GIVES(NOT_FOUND, cuModuleGetFunction(&f, module_, "nothing"));
    int threads = 0;
    DO(cuFuncGetAttribute(&threads, 0, function("warps")));
    CHECK(threads == 64);
    size_t offset = 0, bytes = 0;
    DO(cuFuncGetParamInfo(function("multiply"), 3, &offset, &bytes));
    CHECK(offset == 20 && bytes == 4);
    GIVES(INVALID_VALUE, cuFuncGetParamInfo(function("multiply"), 4, &offset, &bytes));
}

static void images_of_others_are_refused() {
    Handle m;
    GIVES(INVALID_IMAGE, cuModuleLoadData(&m, "something that is no image, and long enough to be read as a header of sixty-four bytes"));
    std::vector<char> cubin;
    CHECK(compile(prefix, {}, &cubin).empty());
    // The machine of a real cubin.
    cubin[18] = char(190);
    GIVES(NO_BINARY_FOR_GPU, cuModuleLoadData(&m, cubin.data()));
    CHECK(compile("KERNEL(1) broken( {}", {}, &cubin).find("kernels.cu:1") != std::string::npos);
    CHECK(compile("int x;", {"--no-such-option"}, &cubin).find("--no-such-option") != std::string::npos);
    CHECK(compile(prefix + "static_assert(N == 3, \"defined\");", {"-DN=3", "--gpu-architecture=sm_90a"}, &cubin).empty());
}

// ---- memory ----------------------------------------------------------------------------------------------------------------------------------------

static void memory_is_poisoned_bounded_and_counted() {
    size_t before = 0, after = 0, total = 0;
    DO(cuMemGetInfo_v2(&before, &total));
    Pointer at = 0;
    DO(cuMemAlloc_v2(&at, size_t(3) << 30));
    DO(cuMemGetInfo_v2(&after, &total));
    CHECK(before - after == size_t(3) << 30);
    unsigned word = 0;
    DO(cuMemcpyDtoH_v2(&word, at + (size_t(2) << 30), 4));
    CHECK(word == 0xffffffffu);
    DO(cuMemcpyHtoD_v2(at + (size_t(3) << 30) - 4, &word, 4));
    GIVES(INVALID_VALUE, cuMemcpyHtoD_v2(at + (size_t(3) << 30) - 3, &word, 4));
    GIVES(INVALID_VALUE, cuMemcpyDtoH_v2(&word, at - 4, 4));
    Pointer more = 0;
    GIVES(OUT_OF_MEMORY, cuMemAlloc_v2(&more, size_t(15) << 30));
    GIVES(INVALID_VALUE, cuMemAlloc_v2(&more, 0));
    GIVES(INVALID_VALUE, cuMemFree_v2(at + 16));
    DO(cuMemFree_v2(at));
    GIVES(INVALID_VALUE, cuMemFree_v2(at));
    GIVES(INVALID_VALUE, cuMemcpyDtoH_v2(&word, at, 4));
    void* pinned = nullptr;
    DO(cuMemHostAlloc(&pinned, 100, 0));
    memset(pinned, 1, 100);
    Device<char> to(100);
    DO(cuMemcpyHtoDAsync_v2(to.at, pinned, 100, stream));
    CHECK(to.read()[99] == 1);
    DO(cuMemFreeHost(pinned));
}

// ---- graphs ----------------------------------------------------------------------------------------------------------------------------------------

enum { THREAD_LOCAL = 1 };

static void graphs_repeat_what_was_captured() {
    std::vector<float> in(256, 1.0f);
    Device<float> from(in), to(256);
    Handle graph = nullptr, executable = nullptr;
    DO(cuStreamBeginCapture_v2(stream, THREAD_LOCAL));
    DO(launch("block_total", 1, 256, 0, to.at, from.at));
    DO(cuMemcpyDtoDAsync_v2(from.at, to.at, 1024, stream));
    DO(cuStreamEndCapture(stream, &graph));
    CHECK(from.read()[0] == 1.0f);
    DO(cuGraphInstantiateWithFlags(&executable, graph, 0));
    size_t nodes = 0;
    DO(cuGraphGetNodes(graph, nullptr, &nodes));
    CHECK(nodes == 2);
    DO(cuGraphDestroy(graph));
    for (int i = 0; i < 3; i++) DO(cuGraphLaunch(executable, stream));
    DO(cuStreamSynchronize(stream));
    CHECK(from.read()[255] == 256.0f * 256.0f * 256.0f);
    DO(cuGraphExecDestroy(executable));
    GIVES(INVALID_VALUE, cuGraphLaunch(executable, stream));
}

static void captures_refuse_what_cannot_be_captured() {
    Device<char> to(64);
    const auto spoils = [&](int wanted, const std::function<int()>& call) {
        DO(cuStreamBeginCapture_v2(stream, THREAD_LOCAL));
        GIVES(wanted, call());
        Handle graph;
        GIVES(CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
    };
    Pointer at;
    char bytes[8] = {};
    Handle event;
    DO(cuEventCreate(&event, 0));
    spoils(CAPTURE_UNSUPPORTED, [&] { return cuMemAlloc_v2(&at, 100); });
    spoils(CAPTURE_UNSUPPORTED, [&] { return cuMemcpyHtoD_v2(to.at, bytes, 8); });
    spoils(CAPTURE_UNSUPPORTED, [&] { return cuMemsetD32_v2(to.at, 0, 1); });
    spoils(CAPTURE_UNSUPPORTED, [&] { return cuStreamSynchronize(stream); });
    spoils(CAPTURE_UNSUPPORTED, [&] { return cuCtxSynchronize(); });
    spoils(CAPTURE_UNSUPPORTED, [&] { return cuMemcpyPeerAsync(to.at, context, to.at, context, 8, stream); });
    spoils(CAPTURED_EVENT, [&] { return cuEventRecord(event, stream) ? -1 : cuEventQuery(event); });
    // Another thread may do as it likes.
    DO(cuStreamBeginCapture_v2(stream, THREAD_LOCAL));
    std::thread([&] {
        DO(cuCtxSetCurrent(context));
        DO(cuMemcpyHtoD_v2(to.at, bytes, 8));
    }).join();
    Handle graph;
    DO(cuStreamEndCapture(stream, &graph));
    DO(cuGraphDestroy(graph));
}

static void streams_join_a_capture_by_events() {
    Handle other, fork, join, outside, graph;
    DO(cuStreamCreate(&other, 1));
    DO(cuEventCreate(&fork, 0));
    DO(cuEventCreate(&join, 0));
    DO(cuEventCreate(&outside, 0));
    Device<char> to(64);
    const auto forked = [&] {
        DO(cuStreamBeginCapture_v2(stream, THREAD_LOCAL));
        DO(cuEventRecord(fork, stream));
        DO(cuStreamWaitEvent(other, fork, 0));
        DO(cuMemsetD8Async(to.at, 1, 64, other));
    };
    forked();
    DO(cuEventRecord(join, other));
    DO(cuStreamWaitEvent(stream, join, 0));
    DO(cuStreamEndCapture(stream, &graph));
    DO(cuGraphDestroy(graph));
    forked();
    GIVES(CAPTURE_UNJOINED, cuStreamEndCapture(stream, &graph));
    // Not before the capture, nor of anything outside.
    DO(cuEventRecord(outside, other));
    DO(cuStreamBeginCapture_v2(stream, THREAD_LOCAL));
    GIVES(CAPTURE_ISOLATION, cuStreamWaitEvent(stream, outside, 0));
    GIVES(CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
    DO(cuStreamDestroy_v2(other));
    GIVES(INVALID_HANDLE, cuStreamSynchronize(other));
}

static void events_measure_time() {
    Handle first, second;
    DO(cuEventCreate(&first, 0));
    DO(cuEventCreate(&second, 0));
    float ms = -1;
    GIVES(INVALID_HANDLE, cuEventElapsedTime_v2(&ms, first, second));
    DO(cuEventRecord(first, stream));
    DO(cuEventRecord(second, stream));
    DO(cuEventElapsedTime_v2(&ms, first, second));
    CHECK(ms >= 0);
}

int main(int count, char** arguments) {
    if (count != 3) return printf("usage: self_test COMMON_CUH KERNELS_CU\n"), 2;
    // Before their first use.
    setenv("GLIM_EMULATOR_SECONDS", "2", 1);
    setenv("GLIM_EMULATED_GPUS", "2", 1);
    prefix = read_file(arguments[1]);
    std::vector<char> cubin;
    const std::string log = compile(prefix + "\n# 1 \"kernels.cu\"\n" + read_file(arguments[2]), {"--gpu-architecture=sm_90a", "--std=c++17"}, &cubin);
    if (!log.empty()) return printf("the kernels do not compile:\n%s\n", log.c_str()), 1;
    test_name = "start";
    int devices = 0;
    DO(cuInit(0));
    DO(cuDeviceGetCount(&devices));
    CHECK(devices == 2);
    DO(cuDevicePrimaryCtxRetain(&context, 0));
    DO(cuCtxSetCurrent(context));
    DO(cuModuleLoadData(&module_, cubin.data()));
    DO(cuStreamCreate(&stream, 1));

#define TEST(name) {#name, name}
    const struct {
        const char* name;
        void (*run)();
    } tests[] = {
        TEST(kernels_run_over_a_grid), TEST(variables_of_a_module_can_be_copied), TEST(warps_exchange_values), TEST(blocks_reduce_in_shared_memory), TEST(ended_lanes_are_not_waited_for),
        TEST(a_missing_barrier_shows), TEST(shared_memory_is_poisoned_for_each_block), TEST(parts_of_a_block_have_barriers_of_their_own),
        TEST(blocks_that_wait_for_each_other_are_there_together), TEST(ranks_on_two_threads_see_each_other), TEST(matrix_instructions_multiply),
        TEST(ldmatrix_gives_rows_or_columns), TEST(numbers_are_those_of_the_gpu), TEST(halves_round_to_nearest_even), TEST(faults_end_their_launch_only),
        TEST(waiting_has_an_end), TEST(launches_over_the_limits_are_refused), TEST(images_of_others_are_refused),
        TEST(memory_is_poisoned_bounded_and_counted), TEST(graphs_repeat_what_was_captured), TEST(captures_refuse_what_cannot_be_captured),
        TEST(streams_join_a_capture_by_events), TEST(events_measure_time),
    };
    for (const auto& test : tests) {
        test_name = test.name;
        test.run();
    }
    DO(cuModuleUnload(module_));
    printf("emulator: %zu tests, %d failures\n", sizeof(tests) / sizeof(tests[0]), failures);
    return failures ? 1 : 0;
}
