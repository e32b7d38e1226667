// Kernels of the emulator's own test: each does one thing, and some do what no kernel may do.

__constant__ int table[4] = {2, 3, 5, 7};

KERNEL(256) multiply(int* out, const int* in, int n, float unused) {
    pdl_wait();
    pdl_go();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[i] * table[i % 4];
}

// ---- warps -------------------------------------------------------------------------------------------------------------------------

// Each row of `out` is one collective's answer in 64 threads.
KERNEL(64) warps(int* out) {
    const int i = threadIdx.x, lane = i % 32, n = blockDim.x;
    const int v = 100 + i;
    out[0 * n + i] = __shfl_sync(FULL, v, 3);
    out[1 * n + i] = __shfl_xor_sync(FULL, v, 16);
    out[2 * n + i] = __shfl_up_sync(FULL, v, 1);
    out[3 * n + i] = __shfl_down_sync(FULL, v, 5, 8);
    out[4 * n + i] = int(__ballot_sync(FULL, lane % 3 == 0));
    out[5 * n + i] = __any_sync(FULL, i == 40);
    out[6 * n + i] = __all_sync(FULL, i < 40);
    out[7 * n + i] = __reduce_add_sync(FULL, v);
    out[8 * n + i] = int(__match_any_sync(FULL, lane / 8));
    // Halves of a warp that go their own ways.
    if (lane < 16) out[9 * n + i] = __shfl_sync(0x0000ffffu, v, 1);
    else out[9 * n + i] = __shfl_sync(0xffff0000u, v, 17) + __shfl_sync(0xffff0000u, v, 18);
    unsigned all[32];
    glim_warp_exchange(unsigned(i), all);
    out[10 * n + i] = int(all[lane ^ 5]);
    const unsigned long long wide = 0x100000000ull * unsigned(i) + 7;
    out[11 * n + i] = int(__shfl_sync(FULL, wide, 9) >> 32);
}

KERNEL(256) block_total(float* out, const float* in) {
    __shared__ float room[32];
    out[blockIdx.x * blockDim.x + threadIdx.x] = block_sum(in[threadIdx.x], room);
}

KERNEL(64) ended_lanes(int* out) {
    if (threadIdx.x % 2) return;
    __syncthreads();
    out[threadIdx.x] = __shfl_sync(FULL, 5, 0) + __syncthreads_count(threadIdx.x < 10);
}

// ---- shared memory -------------------------------------------------------------------------------------------------------------------

KERNEL(256) reverse(int* out, int with_barrier) {
    SHARED(int, room);
    room[threadIdx.x] = threadIdx.x;
    if (with_barrier) __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = room[blockDim.x - 1 - threadIdx.x];
}

KERNEL(64) poison_seen(unsigned* out) {
    SHARED(unsigned, dynamic);
    __shared__ unsigned fixed[64];
    out[2 * blockIdx.x] = dynamic[5];
    out[2 * blockIdx.x + 1] = fixed[5];
    __syncthreads();
    dynamic[5] = 1;
    fixed[5] = 1;
}

KERNEL(96) named_barriers(int* out) {
    SHARED(int, room);
    const int part = threadIdx.x / 32;
    if (part < 2) {
        room[threadIdx.x] = threadIdx.x;
        glim_named_barrier(1, 64);
        out[threadIdx.x] = room[63 - threadIdx.x];
    } else {
        out[threadIdx.x] = -1;
    }
}

// ---- between blocks and ranks --------------------------------------------------------------------------------------------------------------

// All blocks wait for the last one of the grid; static shared memory stays each block's own meanwhile.
KERNEL(32) grid_barrier(int* counter, int* out) {
    __shared__ int mine;
    if (threadIdx.x == 0) mine = blockIdx.x;
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicAdd(counter, 1);
        while (*(volatile int*)counter < int(gridDim.x)) glim_pause();
    }
    __syncthreads();
    out[blockIdx.x * 32 + threadIdx.x] = mine;
}

KERNEL(32) exchange(int* mine, volatile int* theirs, int value, int* out) {
    if (threadIdx.x == 0) {
        atomicExch(mine, value);
        while (*theirs == 0) glim_pause();
        *out = *theirs;
    }
}

KERNEL(32) wait_for_ever(volatile int* flag) {
    while (*flag == 0) glim_pause();
}

// ---- matrices ------------------------------------------------------------------------------------------------------------------------------

// One product of each shape, A and B as rows of K numbers, laid into registers as the PTX manual's figures show it.
KERNEL(32) matrices(int* i32, int* i16, float* bf, float* tf, const signed char* a8, const signed char* b8, const float* af, const float* bf_in) {
    const int g = threadIdx.x / 4, t = threadIdx.x % 4;
    int zero[4] = {0, 0, 0, 1000}, d[4];
    u32 a[4], b[2];
    for (int r = 0; r < 4; r++) memcpy(&a[r], a8 + (g + 8 * (r & 1)) * 32 + (r >> 1) * 16 + 4 * t, 4);
    for (int r = 0; r < 2; r++) memcpy(&b[r], b8 + g * 32 + r * 16 + 4 * t, 4);
    glim_mma_m16n8k32_s8(d, a, b, zero);
    for (int r = 0; r < 4; r++) i32[(g + 8 * (r >> 1)) * 8 + 2 * t + (r & 1)] = d[r] - zero[r];
    glim_mma_m16n8k16_s8(d, a, b, zero);
    for (int r = 0; r < 4; r++) i16[(g + 8 * (r >> 1)) * 8 + 2 * t + (r & 1)] = d[r] - zero[r];

    float f_zero[4] = {}, f[4];
    for (int r = 0; r < 4; r++) {
        const float* from = af + (g + 8 * (r & 1)) * 16 + (r >> 1) * 8 + 2 * t;
        a[r] = u32(f2bf(from[0])) | u32(f2bf(from[1])) << 16;
    }
    for (int r = 0; r < 2; r++) {
        const float* from = bf_in + g * 16 + r * 8 + 2 * t;
        b[r] = u32(f2bf(from[0])) | u32(f2bf(from[1])) << 16;
    }
    glim_mma_m16n8k16_bf16(f, a, b, f_zero);
    for (int r = 0; r < 4; r++) bf[(g + 8 * (r >> 1)) * 8 + 2 * t + (r & 1)] = f[r];

    for (int r = 0; r < 4; r++) a[r] = __float_as_uint(af[(g + 8 * (r & 1)) * 16 + (r >> 1) * 4 + t]);
    for (int r = 0; r < 2; r++) b[r] = __float_as_uint(bf_in[g * 16 + r * 4 + t]);
    glim_mma_m16n8k8_tf32(f, a, b, f_zero);
    for (int r = 0; r < 4; r++) tf[(g + 8 * (r >> 1)) * 8 + 2 * t + (r & 1)] = f[r];
}

KERNEL(32) load_matrices(unsigned* out) {
    SHARED(u16, room);
    for (int i = threadIdx.x; i < 4 * 64; i += 32) room[i] = u16(i);
    __syncwarp();
    unsigned plain[4], transposed[4];
    glim_ldmatrix<4, false>(plain, room + 8 * threadIdx.x);
    glim_ldmatrix<4, true>(transposed, room + 8 * threadIdx.x);
    for (int m = 0; m < 4; m++) {
        out[m * 32 + threadIdx.x] = plain[m];
        out[(4 + m) * 32 + threadIdx.x] = transposed[m];
    }
}

// ---- numbers -----------------------------------------------------------------------------------------------------------------------------------

KERNEL(256) halves(float* as_float, u16* back, u16* rounded, const float* in, int n) {
    for (int i = threadIdx.x; i < 65536; i += blockDim.x) {
        as_float[i] = h2f(u16(i));
        back[i] = f2h(as_float[i]);
    }
    for (int i = threadIdx.x; i < n; i += blockDim.x) rounded[i] = f2h(in[i]);
}

KERNEL(1) numbers(int* out) {
    int i = 0;
    out[i++] = __dp4a(int(0x80ff7f01u), int(0x7f02ff80u), 10);
    out[i++] = int(__dp4a(0xffffffffu, 0xffffffffu, 1u));
    out[i++] = __float2int_rn(2.5f);
    out[i++] = __float2int_rn(-3.5f);
    out[i++] = __float2int_rz(1e20f);
    out[i++] = int(__byte_perm(0x33221100u, 0x77665544u, 0x7520u));
    out[i++] = __clz(1) + __ffs(8) + __popc(0xf0f0u);
    out[i++] = int(__brev(1u) >> 31);
    // One rounding: the product alone would lose what the sum leaves.
    const float a = __int_as_float(0x3f800001);
    out[i++] = fmaf(a, a, -1.0f - 2 * (a - 1.0f)) > 0.0f;
    out[i++] = a * a - (1.0f + 2 * (a - 1.0f)) == 0.0f;
}

// ---- what no kernel may do --------------------------------------------------------------------------------------------------------------------------

KERNEL(64) deadlock() {
    if (threadIdx.x < 40) __syncthreads();
    else __shfl_sync(FULL, 1, 0);
}
KERNEL(64) past_end(int* out, int n) { out[n + threadIdx.x] = 1; }
KERNEL(64) past_shared() {
    SHARED(int, room);
    room[threadIdx.x] = 1;
}
KERNEL(64) misaligned(u8* out) { *reinterpret_cast<uint4*>(out + 4) = make_uint4(1, 2, 3, 4); }
KERNEL(64) null_pointer(const int* p) {
    if (*p == 3) __trap();
}
KERNEL(64) divides(int* out, int by) { out[threadIdx.x] = 7 / by; }
KERNEL(64) outside_array(int* out, int i) {
    int values[4] = {1, 2, 3, 4};
    out[0] = values[i + int(threadIdx.x)];
}
__device__ __noinline__ int deep(int n, volatile int* p) {
    volatile int room[256];
    room[n % 256] = *p;
    return n ? deep(n - 1, p) + room[n % 256] : 0;
}
KERNEL(64) overflows(int* out) { out[threadIdx.x] = deep(1000, out); }
KERNEL(64) foreign_mask() { __shfl_sync(1u << (threadIdx.x + 1) % 32, 1, 0); }
KERNEL(64) no_wait(int* out) {
    if (threadIdx.x == 3) return;
    pdl_wait();
    pdl_go();
}
KERNEL(64) traps() { __trap(); }
