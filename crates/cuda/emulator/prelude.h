// CUDA C++ as far as the kernels use it, for a C++17 compiler: put in front of every kernel file.
//
// Includes nothing but `abi.h`: a kernel file then compiles in tenths of a second.
#pragma once
#include "abi.h"

// ---- qualifiers --------------------------------------------------------------------------------------------------------------

#define __host__
#define __device__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __restrict__ __restrict
#define __align__(n) __attribute__((aligned(n)))
#define __grid_constant__
// `nvrtc.cpp` looks for this word in the preprocessed text to find a kernel's name and its limit.
#define __global__ glim_kernel_of
#define __launch_bounds__(...) glim_kernel_bounds(__VA_ARGS__)
// All thread-local storage of a module is shared memory: the driver finds it as one range, poisons it before each block and swaps
// it when it changes blocks.
#define __shared__ static thread_local
#define __CUDA_ARCH__ 900
#define __CUDACC_RTC__ 1

// ---- types ---------------------------------------------------------------------------------------------------------------------

typedef unsigned long size_t;
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
typedef unsigned long uintptr_t;

#define GLIM_VECTORS(type, name, align2, align4) \
    struct alignas(sizeof(type)) name##1 { type x; }; \
    struct alignas(align2) name##2 { type x, y; }; \
    struct name##3 { type x, y, z; }; \
    struct alignas(align4) name##4 { type x, y, z, w; }; \
    inline name##1 make_##name##1(type x) { return {x}; } \
    inline name##2 make_##name##2(type x, type y) { return {x, y}; } \
    inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; } \
    inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
GLIM_VECTORS(signed char, char, 2, 4)
GLIM_VECTORS(unsigned char, uchar, 2, 4)
GLIM_VECTORS(short, short, 4, 8)
GLIM_VECTORS(unsigned short, ushort, 4, 8)
GLIM_VECTORS(int, int, 8, 16)
GLIM_VECTORS(unsigned int, uint, 8, 16)
GLIM_VECTORS(float, float, 8, 16)
GLIM_VECTORS(long long, longlong, 16, 16)
GLIM_VECTORS(unsigned long long, ulonglong, 16, 16)
GLIM_VECTORS(double, double, 16, 16)
#undef GLIM_VECTORS

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// ---- who am I --------------------------------------------------------------------------------------------------------------------

static inline __attribute__((always_inline)) glim_fiber* glim_self() {
    unsigned long frame = reinterpret_cast<unsigned long>(__builtin_frame_address(0));
    unsigned long stack = frame & ~static_cast<unsigned long>(GLIM_STACK_BYTES - 1);
    return reinterpret_cast<glim_fiber*>(stack + GLIM_STACK_BYTES - sizeof(glim_fiber));
}

#define threadIdx (glim_self()->thread_index)
#define blockIdx (glim_self()->block->block_index)
#define blockDim (glim_self()->block->block_size)
#define gridDim (glim_self()->block->grid_size)
#define warpSize 32

inline void* glim_dynamic_shared() { return glim_self()->block->dynamic_shared; }
inline unsigned glim_dynamic_shared_bytes() { return glim_self()->block->dynamic_shared_bytes; }
inline unsigned long long glim_nanoseconds() { return glim_self()->scheduler->nanoseconds(); }
inline long long clock64() { return static_cast<long long>(glim_nanoseconds()); }

// A step of a loop that waits for another block or rank.
inline void glim_pause() { glim_self()->scheduler->pause(glim_self()); }
inline void __nanosleep(unsigned) { glim_pause(); }

[[noreturn]] inline void glim_fail(const char* why) {
    glim_self()->scheduler->fail(glim_self(), why);
    __builtin_unreachable();
}
[[noreturn]] inline void __trap() { glim_fail("trap"); }
[[noreturn]] inline void glim_assert_failed() { glim_fail("assertion failed"); }
#define assert(condition) ((condition) ? void() : glim_assert_failed())

// The driver checks that no thread of a launch with the PDL attribute ends without a wait.
inline void glim_pdl_wait() { glim_self()->waited = true; }
inline void glim_pdl_go() {
    if (!glim_self()->waited) glim_fail("pdl_go before pdl_wait");
    glim_self()->went = true;
}

// ---- bits, without a library --------------------------------------------------------------------------------------------------------

template <class To, class From> inline To glim_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "the same size");
    To to;
    __builtin_memcpy(&to, &from, sizeof(to));
    return to;
}
inline unsigned __float_as_uint(float f) { return glim_bits<unsigned>(f); }
inline int __float_as_int(float f) { return glim_bits<int>(f); }
inline float __uint_as_float(unsigned u) { return glim_bits<float>(u); }
inline float __int_as_float(int i) { return glim_bits<float>(i); }
inline long long __double_as_longlong(double d) { return glim_bits<long long>(d); }
inline double __longlong_as_double(long long i) { return glim_bits<double>(i); }

inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __ffsll(long long v) { return __builtin_ffsll(v); }
inline int __clz(int v) { return v ? __builtin_clz(static_cast<unsigned>(v)) : 32; }
inline int __clzll(long long v) { return v ? __builtin_clzll(static_cast<unsigned long long>(v)) : 64; }
inline unsigned __brev(unsigned v) {
    unsigned out = 0;
    for (int i = 0; i < 32; i++) out |= (v >> i & 1u) << (31 - i);
    return out;
}
inline unsigned long long __brevll(unsigned long long v) {
    return static_cast<unsigned long long>(__brev(static_cast<unsigned>(v))) << 32 | __brev(static_cast<unsigned>(v >> 32));
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    unsigned long long both = static_cast<unsigned long long>(b) << 32 | a;
    unsigned out = 0;
    for (int i = 0; i < 4; i++) out |= static_cast<unsigned>(both >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return out;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
    return static_cast<unsigned>(((static_cast<unsigned long long>(high) << 32 | low) << (by & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> (by & 31));
}
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32); }
inline int __mulhi(int a, int b) { return static_cast<int>(static_cast<long long>(a) * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}

template <class A, class B> inline int glim_dp4a(unsigned a, unsigned b, int sum) {
    for (int i = 0; i < 4; i++) {
        sum = static_cast<int>(static_cast<unsigned>(sum) +
                               static_cast<unsigned>(static_cast<A>(a >> 8 * i) * static_cast<B>(b >> 8 * i)));
    }
    return sum;
}
inline int __dp4a(int a, int b, int sum) {
    return glim_dp4a<signed char, signed char>(static_cast<unsigned>(a), static_cast<unsigned>(b), sum);
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned sum) {
    return static_cast<unsigned>(glim_dp4a<unsigned char, unsigned char>(a, b, static_cast<int>(sum)));
}

// Saturating and plain byte arithmetic, as the SIMD-in-a-word intrinsics do it.
inline unsigned __vsub4(unsigned a, unsigned b) {
    unsigned out = 0;
    for (int i = 0; i < 32; i += 8) out |= (((a >> i & 0xff) - (b >> i & 0xff)) & 0xff) << i;
    return out;
}
inline unsigned __vadd4(unsigned a, unsigned b) {
    unsigned out = 0;
    for (int i = 0; i < 32; i += 8) out |= (((a >> i & 0xff) + (b >> i & 0xff)) & 0xff) << i;
    return out;
}
inline unsigned __vsubss4(unsigned a, unsigned b) {
    unsigned out = 0;
    for (int i = 0; i < 32; i += 8) {
        int d = static_cast<signed char>(a >> i) - static_cast<signed char>(b >> i);
        d = d < -128 ? -128 : d > 127 ? 127 : d;
        out |= (static_cast<unsigned>(d) & 0xff) << i;
    }
    return out;
}
inline unsigned __vcmpne4(unsigned a, unsigned b) {
    unsigned out = 0;
    for (int i = 0; i < 32; i += 8) out |= ((a ^ b) >> i & 0xff ? 0xffu : 0u) << i;
    return out;
}
inline unsigned __vcmpeq4(unsigned a, unsigned b) { return ~__vcmpne4(a, b); }

// ---- arithmetic ---------------------------------------------------------------------------------------------------------------------
// Compiled without contraction, so a product and a sum stay two roundings, and `fmaf` is one.

extern "C" {
float expf(float) noexcept;
float exp2f(float) noexcept;
float expm1f(float) noexcept;
float logf(float) noexcept;
float log2f(float) noexcept;
float log10f(float) noexcept;
float log1pf(float) noexcept;
float powf(float, float) noexcept;
float sinf(float) noexcept;
float cosf(float) noexcept;
float tanhf(float) noexcept;
float erff(float) noexcept;
float fmodf(float, float) noexcept;
double exp(double) noexcept;
double exp2(double) noexcept;
double log(double) noexcept;
double log2(double) noexcept;
double log1p(double) noexcept;
double pow(double, double) noexcept;
double sin(double) noexcept;
double cos(double) noexcept;
double tanh(double) noexcept;
double fmod(double, double) noexcept;
int printf(const char*, ...);
void* memcpy(void*, const void*, size_t) noexcept;
void* memset(void*, int, size_t) noexcept;
}
inline float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float sqrtf(float v) { return __builtin_sqrtf(v); }
inline double sqrt(double v) { return __builtin_sqrt(v); }
inline float rsqrtf(float v) { return 1.0f / __builtin_sqrtf(v); }
inline double rsqrt(double v) { return 1.0 / __builtin_sqrt(v); }
inline float fabsf(float v) { return __builtin_fabsf(v); }
inline double fabs(double v) { return __builtin_fabs(v); }
inline float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }
inline float fminf(float a, float b) { return __builtin_fminf(a, b); }
inline double fmax(double a, double b) { return __builtin_fmax(a, b); }
inline double fmin(double a, double b) { return __builtin_fmin(a, b); }
inline float floorf(float v) { return __builtin_floorf(v); }
inline float ceilf(float v) { return __builtin_ceilf(v); }
inline float truncf(float v) { return __builtin_truncf(v); }
inline float rintf(float v) { return __builtin_rintf(v); }
inline float nearbyintf(float v) { return __builtin_nearbyintf(v); }
inline float roundf(float v) { return __builtin_roundf(v); }
inline double floor(double v) { return __builtin_floor(v); }
inline double rint(double v) { return __builtin_rint(v); }
inline float copysignf(float a, float b) { return __builtin_copysignf(a, b); }
inline float ldexpf(float v, int e) { return __builtin_ldexpf(v, e); }
inline bool isnan(float v) { return __builtin_isnan(v); }
inline bool isinf(float v) { return __builtin_isinf(v); }
inline bool isfinite(float v) { return __builtin_isfinite(v); }
inline bool isnan(double v) { return __builtin_isnan(v); }
inline bool isinf(double v) { return __builtin_isinf(v); }
inline bool isfinite(double v) { return __builtin_isfinite(v); }

inline float __expf(float v) { return expf(v); }
inline float __logf(float v) { return logf(v); }
inline float __log2f(float v) { return log2f(v); }
inline float __powf(float a, float b) { return powf(a, b); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float v) { return 1.0f / v; }
inline float __fsqrt_rn(float v) { return __builtin_sqrtf(v); }
inline float __frsqrt_rn(float v) { return static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(v))); }
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float __saturatef(float v) { return v > 0.0f ? (v < 1.0f ? v : 1.0f) : 0.0f; }

// The GPU's conversions saturate, and NaN becomes 0 (32 bits).
inline int glim_to_int(float rounded) {
    if (rounded != rounded) return 0;
    if (rounded >= 2147483648.0f) return 2147483647;
    if (rounded < -2147483648.0f) return -2147483647 - 1;
    return static_cast<int>(rounded);
}
inline unsigned glim_to_uint(float rounded) {
    if (!(rounded > 0.0f)) return 0;
    if (rounded >= 4294967296.0f) return 4294967295u;
    return static_cast<unsigned>(rounded);
}
inline int __float2int_rn(float v) { return glim_to_int(__builtin_rintf(v)); }
inline int __float2int_rz(float v) { return glim_to_int(__builtin_truncf(v)); }
inline int __float2int_rd(float v) { return glim_to_int(__builtin_floorf(v)); }
inline int __float2int_ru(float v) { return glim_to_int(__builtin_ceilf(v)); }
inline unsigned __float2uint_rn(float v) { return glim_to_uint(__builtin_rintf(v)); }
inline unsigned __float2uint_rz(float v) { return glim_to_uint(__builtin_truncf(v)); }
inline float __int2float_rn(int v) { return static_cast<float>(v); }
inline float __uint2float_rn(unsigned v) { return static_cast<float>(v); }
inline float __double2float_rn(double v) { return static_cast<float>(v); }

// 16-bit floats: round to nearest even; a NaN becomes the one that the GPU's conversion gives.
inline float glim_half_to_float(unsigned short h) {
    unsigned sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3ffu;
    if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | mantissa << 13 | (mantissa ? 0x400000u : 0));
    if (exponent) return __uint_as_float(sign | (exponent + 112) << 23 | mantissa << 13);
    float value = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -value : value;
}
inline unsigned short glim_float_to_half(float f) {
    unsigned bits = __float_as_uint(f), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7fff;
    // From here on the nearest is infinity: half way between the largest number and the next that there would be.
    if (magnitude >= 0x477ff000u) return static_cast<unsigned short>(sign | 0x7c00u);
    if (magnitude < 0x38800000u) {
        // Subnormal: units of 2^-24; the sum rounds as it should, since that is its last bit.
        float units = __uint_as_float(magnitude) * 0x1p24f;
        return static_cast<unsigned short>(sign | static_cast<unsigned>(__builtin_rintf(units)));
    }
    unsigned rounded = magnitude + 0xfffu + (magnitude >> 13 & 1);
    return static_cast<unsigned short>(sign | ((rounded - 0x38000000u) >> 13));
}
inline unsigned short glim_float_to_bfloat(float f) {
    unsigned bits = __float_as_uint(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

// `min` and `max` of two arithmetic types: of floats a NaN loses, of integers the usual conversions hold.
inline float min(float a, float b) { return __builtin_fminf(a, b); }
inline float max(float a, float b) { return __builtin_fmaxf(a, b); }
inline double min(double a, double b) { return __builtin_fmin(a, b); }
inline double max(double a, double b) { return __builtin_fmax(a, b); }
#define GLIM_MIN_MAX(a_type, b_type, type) \
    inline type min(a_type a, b_type b) { return (type)a < (type)b ? (type)a : (type)b; } \
    inline type max(a_type a, b_type b) { return (type)a > (type)b ? (type)a : (type)b; }
GLIM_MIN_MAX(int, int, int)
GLIM_MIN_MAX(unsigned, unsigned, unsigned)
GLIM_MIN_MAX(int, unsigned, unsigned)
GLIM_MIN_MAX(unsigned, int, unsigned)
GLIM_MIN_MAX(long, long, long)
GLIM_MIN_MAX(unsigned long, unsigned long, unsigned long)
GLIM_MIN_MAX(long long, long long, long long)
GLIM_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
#undef GLIM_MIN_MAX
inline int abs(int v) { return v < 0 ? -v : v; }
inline float abs(float v) { return __builtin_fabsf(v); }
inline long long llabs(long long v) { return v < 0 ? -v : v; }

// ---- memory -------------------------------------------------------------------------------------------------------------------------
// Atomics are real: another rank's kernels may run on another thread of the machine.

inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

template <class T> inline T __ldg(const T* p) { return *p; }
template <class T> inline T __ldcs(const T* p) { return *p; }
template <class T> inline T __ldcg(const T* p) { return *p; }
template <class T> inline void __stcs(T* p, T v) { *p = v; }
template <class T> inline void __stcg(T* p, T v) { *p = v; }

template <class T> struct glim_same { typedef T type; };
template <class T> using glim_value = typename glim_same<T>::type;

template <class T> inline T atomicCAS(T* p, glim_value<T> expected, glim_value<T> desired) {
    __atomic_compare_exchange_n(p, &expected, desired, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return expected;
}
template <class T> inline T atomicExch(T* p, glim_value<T> v) {
    T old;
    __atomic_exchange(p, &v, &old, __ATOMIC_SEQ_CST);
    return old;
}
template <class T, class F> inline T glim_atomic(T* p, F next) {
    T old, wanted;
    __atomic_load(p, &old, __ATOMIC_SEQ_CST);
    do wanted = next(old);
    while (!__atomic_compare_exchange(p, &old, &wanted, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return old;
}
template <class T> inline T atomicAdd(T* p, glim_value<T> v) { return glim_atomic(p, [=](T old) { return T(old + v); }); }
template <class T> inline T atomicSub(T* p, glim_value<T> v) { return glim_atomic(p, [=](T old) { return T(old - v); }); }
template <class T> inline T atomicMax(T* p, glim_value<T> v) { return glim_atomic(p, [=](T old) { return old > v ? old : v; }); }
template <class T> inline T atomicMin(T* p, glim_value<T> v) { return glim_atomic(p, [=](T old) { return old < v ? old : v; }); }
template <class T> inline T atomicAnd(T* p, glim_value<T> v) { return glim_atomic(p, [=](T old) { return T(old & v); }); }
template <class T> inline T atomicOr(T* p, glim_value<T> v) { return glim_atomic(p, [=](T old) { return T(old | v); }); }
template <class T> inline T atomicXor(T* p, glim_value<T> v) { return glim_atomic(p, [=](T old) { return T(old ^ v); }); }
inline unsigned atomicInc(unsigned* p, unsigned limit) {
    return glim_atomic(p, [=](unsigned old) { return old >= limit ? 0u : old + 1; });
}
template <class T> inline T atomicAdd_system(T* p, glim_value<T> v) { return atomicAdd(p, v); }
template <class T> inline T atomicExch_system(T* p, glim_value<T> v) { return atomicExch(p, v); }
template <class T> inline T atomicCAS_system(T* p, glim_value<T> e, glim_value<T> d) { return atomicCAS(p, e, d); }

#include "collectives.h"
#include "mma.h"
