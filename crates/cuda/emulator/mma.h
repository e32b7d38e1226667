// Twins of the tensor-core instructions: the same registers in the same lanes as in PTX ISA 9.0, section "Warp-level matrix
// instructions", and the products summed exactly enough.
//
// Sums of integers are exact. Sums of floats are taken in double and rounded once, where the hardware truncates on the way: results
// agree to the last bits only.
#pragma once

// D = A · B + C with A of 16 rows and K columns, B of K rows and 8 columns: every float and integer shape keeps C and D so.
// Lane `l` holds of C and D: rows l/4 and l/4 + 8, columns 2·(l%4) and the next: (r, c), (r, c+1), (r+8, c), (r+8, c+1).
template <class Sum, int A, int B> struct glim_mma_slot {
    Sum* d;
    unsigned a[A], b[B];
    Sum c[4];
};

// `Element::get(word, i)` is the i-th number of a register; there are `Element::per_word`. A register of A holds neighbours in K of one
// row; registers alternate rows l/4 and l/4 + 8, then go on in K.
template <class Element, class Sum, int A, int B> void glim_mma_body(void* const* slots) {
    typedef glim_mma_slot<Sum, A, B> Slot;
    const int per = Element::per_word, k_of_register = 4 * per, K = B * k_of_register;
    typename Element::Wide a[16][K], b[8][K], sum;
    for (int lane = 0; lane < 32; lane++) {
        const Slot* slot = static_cast<const Slot*>(slots[lane]);
        for (int r = 0; r < A; r++) {
            for (int i = 0; i < per; i++) {
                a[lane / 4 + 8 * (r % 2)][r / 2 * k_of_register + lane % 4 * per + i] = Element::get(slot->a[r], i);
            }
        }
        for (int r = 0; r < B; r++) {
            for (int i = 0; i < per; i++) b[lane / 4][r * k_of_register + lane % 4 * per + i] = Element::get(slot->b[r], i);
        }
    }
    for (int lane = 0; lane < 32; lane++) {
        const Slot* slot = static_cast<const Slot*>(slots[lane]);
        for (int i = 0; i < 4; i++) {
            const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
            sum = 0;
            for (int k = 0; k < K; k++) sum += a[row][k] * b[column][k];
            slot->d[i] = static_cast<Sum>(sum + slot->c[i]);
        }
    }
}

template <class Element, class Sum, int A, int B>
inline void glim_mma(const char* what, Sum* d, const unsigned* a, const unsigned* b, const Sum* c) {
    glim_mma_slot<Sum, A, B> slot;
    slot.d = d;
    for (int i = 0; i < A; i++) slot.a[i] = a[i];
    for (int i = 0; i < B; i++) slot.b[i] = b[i];
    for (int i = 0; i < 4; i++) slot.c[i] = c[i];
    // The body reads all lanes' slots, so none may have ended.
    if (glim_ballot(0xffffffffu, what, true) != 0xffffffffu) glim_fail("mma with lanes that have ended");
    glim_warp(0xffffffffu, what, glim_mma_body<Element, Sum, A, B>, slot);
}

struct glim_s8 {
    typedef int Wide;
    static const int per_word = 4;
    static int get(unsigned word, int i) { return static_cast<signed char>(word >> 8 * i); }
};
struct glim_u8 {
    typedef int Wide;
    static const int per_word = 4;
    static int get(unsigned word, int i) { return static_cast<unsigned char>(word >> 8 * i); }
};
struct glim_bf16 {
    typedef double Wide;
    static const int per_word = 2;
    static double get(unsigned word, int i) { return static_cast<double>(__uint_as_float(word >> 16 * i << 16)); }
};
struct glim_f16 {
    typedef double Wide;
    static const int per_word = 2;
    static double get(unsigned word, int i) {
        return static_cast<double>(glim_half_to_float(static_cast<unsigned short>(word >> 16 * i)));
    }
};
// The hardware looks at the upper 19 bits.
struct glim_tf32 {
    typedef double Wide;
    static const int per_word = 1;
    static double get(unsigned word, int) { return static_cast<double>(__uint_as_float(word & 0xffffe000u)); }
};

// mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32: 4 registers of A, 2 of B, 4 of C.
inline void glim_mma_m16n8k32_s8(int* d, const unsigned* a, const unsigned* b, const int* c) {
    glim_mma<glim_s8, int, 4, 2>("mma.m16n8k32.s8", d, a, b, c);
}
// mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32: 2 registers of A, 1 of B.
inline void glim_mma_m16n8k16_s8(int* d, const unsigned* a, const unsigned* b, const int* c) {
    glim_mma<glim_s8, int, 2, 1>("mma.m16n8k16.s8", d, a, b, c);
}
// mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32: 4 registers of A, 2 of B.
inline void glim_mma_m16n8k16_bf16(float* d, const unsigned* a, const unsigned* b, const float* c) {
    glim_mma<glim_bf16, float, 4, 2>("mma.m16n8k16.bf16", d, a, b, c);
}
// mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32: 4 registers of A, 2 of B.
inline void glim_mma_m16n8k16_f16(float* d, const unsigned* a, const unsigned* b, const float* c) {
    glim_mma<glim_f16, float, 4, 2>("mma.m16n8k16.f16", d, a, b, c);
}
// mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32: 2 registers of A, 1 of B.
inline void glim_mma_m16n8k8_bf16(float* d, const unsigned* a, const unsigned* b, const float* c) {
    glim_mma<glim_bf16, float, 2, 1>("mma.m16n8k8.bf16", d, a, b, c);
}
// mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32: 4 registers of A, 2 of B.
inline void glim_mma_m16n8k8_tf32(float* d, const unsigned* a, const unsigned* b, const float* c) {
    glim_mma<glim_tf32, float, 4, 2>("mma.m16n8k8.tf32", d, a, b, c);
}

// ---- ldmatrix ----------------------------------------------------------------------------------------------------------------------------

template <int count> struct glim_ldmatrix_slot {
    const unsigned short* row;
    unsigned* out;
};
template <int count, bool transposed> void glim_ldmatrix_body(void* const* slots) {
    typedef glim_ldmatrix_slot<count> Slot;
    // All reads come before all writes: the hardware reads the whole matrix, and a register may be an address' neighbour.
    unsigned short all[count][8][8];
    for (int m = 0; m < count; m++) {
        for (int r = 0; r < 8; r++) memcpy(all[m][r], static_cast<const Slot*>(slots[8 * m + r])->row, 16);
    }
    for (int lane = 0; lane < 32; lane++) {
        for (int m = 0; m < count; m++) {
            const int major = lane / 4, minor = lane % 4 * 2;
            const unsigned low = transposed ? all[m][minor][major] : all[m][major][minor];
            const unsigned high = transposed ? all[m][minor + 1][major] : all[m][major][minor + 1];
            static_cast<const Slot*>(slots[lane])->out[m] = high << 16 | low;
        }
    }
}
// ldmatrix.sync.aligned.m8n8.x1/.x2/.x4[.trans].shared.b16: lane 8·m + r brings the address of row r of matrix m, 16-byte aligned.
template <int count, bool transposed> inline void glim_ldmatrix(unsigned* out, const void* row) {
    static_assert(count == 1 || count == 2 || count == 4, "ldmatrix loads 1, 2 or 4 matrices");
    const bool used = glim_self()->lane < 8u * count;
    if (used && reinterpret_cast<unsigned long>(row) % 16) glim_fail("ldmatrix of a row that is not 16-byte aligned");
    if (glim_ballot(0xffffffffu, "ldmatrix", true) != 0xffffffffu) glim_fail("ldmatrix with lanes that have ended");
    glim_ldmatrix_slot<count> slot = {static_cast<const unsigned short*>(row), out};
    glim_warp(0xffffffffu, "ldmatrix", glim_ldmatrix_body<count, transposed>, slot);
}
