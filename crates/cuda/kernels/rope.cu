// Rotary embeddings: the angles of a step's rows, once, and the rotations by them.
#include "q8.cuh"
#include "rope.cuh"

// Cosine and sine of each pair's angle in each row. Grid: (pairs / 64, rows). Block: 64 threads, one a pair.
//
// Exponent, frequency and angle are rounded to f32 where the implementations do that these models were trained with; the
// functions between are computed in double, like the reference's. All layers of a model turn by the same angles, so that this, of which a
// thread has a microsecond's work, is done once a step.
KERNEL(64) angles(const int* positions, float2* out, int pairs, float theta, Rows rows) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y;
    // Before the wait: it depends on nothing but the pair.
    const float exponent = 2.0f * i / (2 * pairs);
    const float frequency = 1.0f / float(pow(double(theta), double(exponent)));
    pdl_wait();
    pdl_go();
    if (i >= pairs) return;
    if (!is_live(rows, r)) {
        // `norms` asks for the angle before it has heard whether the row is live.
        out[u64(r) * pairs + i] = make_float2(1.0f, 0.0f);
        return;
    }
    const double angle = double(float(positions[r]) * frequency);
    out[u64(r) * pairs + i] = make_float2(float(cos(angle)), float(sin(angle)));
}

// Heads of a buffer that are rotated in place, or rounded for a product (`to.q` not null): `ropes` in src/program/ropes.rs fills it in.
struct Heads {
    // The first element of row 0 and head 0 that is rotated or rounded.
    float* x;
    const float2* angles;
    Rounding to;
    // Elements from one row to the next, and from one head to the next; heads; elements of each that are touched.
    int row, head, heads, n;
    int half_split, reserved;
};
constexpr int HEADS = 4;
struct AllHeads {
    Heads of[HEADS];
};

// Rotations of different buffers, and the rounding of the columns that they leave alone. Grid: (rows, buffers, parts). Block: 256
// threads, one a pair, or one for four elements to be rounded.
KERNEL(256) ropes(const __grid_constant__ AllHeads all, Rows rows) {
    pdl_wait();
    pdl_go();
    const Heads& h = all.of[blockIdx.y];
    const int r = blockIdx.x;
    if (!is_computed(rows, r)) return;
    float* x = h.x + u64(r) * h.row;
    const int first = blockIdx.z * blockDim.x, step = gridDim.z * blockDim.x;
    if (!h.to.q) {
        const int pairs = h.n / 2;
        for (int at = first + threadIdx.x; at < h.heads * pairs; at += step) {
            const int head = at / pairs, i = at % pairs;
            const Pair p = pair_of(i, pairs, h.half_split);
            float* to = x + head * h.head;
            turn(to, p, h.angles[u64(r) * pairs + i], make_float2(to[p.a], to[p.b]));
        }
        return;
    }
    const int quads = h.n / 4;
    // Whole warps: neighbours round together.
    for (int base = first; base < h.heads * quads; base += step) {
        const int at = base + threadIdx.x, head = min(at / quads, h.heads - 1), i = 4 * (at - head * quads);
        float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (i < h.n) v = four(x + head * h.head + i, is_aligned16(x + head * h.head));
        h.to.put(u64(r) * h.heads + head, h.n, i, v);
    }
}
