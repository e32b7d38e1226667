// How the blocks of a type lie on the GPU (src/layout.rs), as an argument: `fields` in src/random.rs fills it in.
#pragma once
#include "common.cuh"

// The planes of a type: where each field begins in a block, and its bytes. A type that lies as stored has one field, the block.
struct Fields {
    int count;
    int at[5];
    int bytes[5];
    int reserved;
};
