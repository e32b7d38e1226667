"""Makes the goldens of glim-quant: blocks of each type, and what gguf-py decodes them to.

    pip install gguf==0.19.0 numpy
    python xtask/py/golden_quant.py            # writes crates/quant/tests/golden/
    python xtask/py/golden_quant.py --check    # exits 1 if a file there is not what would be written

A golden `TYPE.bin` is N blocks, then their N * elements values as f32, all little-endian, with no
header: N follows from the length of the file. The first blocks are edge cases (`EDGE_SCALES`,
`EDGE_FILLS`), the others are random bytes with random finite scales. The random stream is numpy's
legacy one, which is frozen, so each run writes the same bytes.
"""

import argparse
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize

GGUF_VERSION = "0.19.0"
SEED = 20250711
OUT = Path(__file__).resolve().parents[2] / "crates" / "quant" / "tests" / "golden"

# Byte offsets of the f16 scales in a block, and how many blocks to make.
BLOCKED = {
    T.Q8_0: ([0], 40),
    T.Q4_0: ([0], 40),
    T.Q5_0: ([0], 40),
    T.IQ4_NL: ([0], 40),
    T.Q4_K: ([0, 2], 20),
    T.Q5_K: ([0, 2], 20),
    T.Q6_K: ([208], 20),
}
# Values that the element-wise types must carry over: zeros, subnormals, extremes, infinities and a quiet NaN.
FLOATS = {
    T.F32: (
        np.uint32,
        [0, 1 << 31, 1, 0x807FFFFF, 0x00800000, 0x3F800000, 0x7F7FFFFF, 0xFF800000, 0x7F800000, 0x7FC00000],
    ),
    T.F16: (np.uint16, [0, 0x8000, 1, 0x83FF, 0x0400, 0x3C00, 0x7BFF, 0xFC00, 0x7C00, 0x7E00]),
    T.BF16: (np.uint16, [0, 0x8000, 1, 0x807F, 0x0080, 0x3F80, 0x7F7F, 0xFF80, 0x7F80, 0x7FC0]),
}
RANDOM_FLOATS = 500

# Zero, one, minus one, minus zero, smallest and largest subnormal, its negative, largest finite and its negative.
EDGE_SCALES = [0x0000, 0x3C00, 0xBC00, 0x8000, 0x0001, 0x03FF, 0x83FF, 0x7BFF, 0xFBFF]
# All bits clear, all set (largest codes and sub-scales), low nibbles only, high nibbles only.
EDGE_FILLS = [0x00, 0xFF, 0x0F, 0xF0]


def random_scale(rng):
    """A finite f16: any sign and mantissa, any exponent but that of infinities."""
    while True:
        bits = int(rng.randint(0, 1 << 16))
        if bits & 0x7C00 != 0x7C00:
            return bits


def blocks_of(rng, qtype):
    """The blocks of one type, shape [blocks, block bytes]."""
    offsets, count = BLOCKED[qtype]
    _, size = GGML_QUANT_SIZES[qtype]
    blocks = np.frombuffer(rng.bytes(count * size), dtype=np.uint8).reshape(count, size).copy()
    for i, block in enumerate(blocks):
        if i == 0:
            block[:] = 0
            continue
        if i <= len(EDGE_SCALES):
            # Pairs of scales differ, so that d and dmin cannot be confused.
            scales = [EDGE_SCALES[i - 1], EDGE_SCALES[-i]]
            if i <= len(EDGE_FILLS):
                block[:] = EDGE_FILLS[i - 1]
        else:
            scales = [random_scale(rng), random_scale(rng)]
        for offset, bits in zip(offsets, scales):
            block[offset : offset + 2] = np.array([bits], dtype="<u2").view(np.uint8)
    return blocks


def floats_of(rng, qtype):
    """The elements of a type that is not blocked: the edges, then random ones that are no NaN."""
    dtype, edges = FLOATS[qtype]
    size = np.dtype(dtype).itemsize
    bits = np.frombuffer(rng.bytes(RANDOM_FLOATS * size), dtype=np.dtype(dtype).newbyteorder("<"))
    values = {T.F32: bits.view("<f4"), T.F16: bits.view("<f2"), T.BF16: (bits.astype("<u4") << 16).view("<f4")}[qtype]
    bits = np.concatenate([np.array(edges, dtype=dtype), bits[~np.isnan(values)]])
    return bits.astype(np.dtype(dtype).newbyteorder("<")).view(np.uint8).reshape(-1, size)


def golden(qtype):
    # One stream for each type, so that a new type does not change the others.
    rng = np.random.RandomState(SEED + int(qtype))
    blocks = blocks_of(rng, qtype) if qtype in BLOCKED else floats_of(rng, qtype)
    values = dequantize(blocks, qtype)
    assert values.dtype == np.float32
    assert qtype in FLOATS or np.isfinite(values).all()
    return blocks.tobytes() + values.astype("<f4").tobytes()


def same(path, data):
    return path.is_file() and path.read_bytes() == data


def readme(files):
    rows = "\n".join(f"- `{name}`: {len(data)} bytes" for name, data in sorted(files.items()))
    return f"""# Goldens of glim-quant

What gguf-py (PyPI `gguf` {GGUF_VERSION}) decodes blocks to, for comparison bit for bit. Made by

    python xtask/py/golden_quant.py

with seed {SEED} + type id. Each file is blocks, then their values as f32, little-endian, without a
header; the script says which edge cases come first. `--check` tells whether these files are what the
script writes.

{rows}
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the files instead of writing them")
    args = parser.parse_args()
    if version("gguf") != GGUF_VERSION:
        sys.exit(f"gguf {version('gguf')} is installed, expected {GGUF_VERSION}")

    files = {f"{qtype.name.lower()}.bin": golden(qtype) for qtype in [*FLOATS, *BLOCKED]}
    files["README.md"] = readme(files).encode()
    if args.check:
        stale = [name for name, data in files.items() if not same(OUT / name, data)]
        if stale:
            sys.exit(f"not as this script writes them: {', '.join(stale)}")
        print(f"{len(files)} files are as this script writes them")
        return
    OUT.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (OUT / name).write_bytes(data)
    print(f"wrote {len(files)} files, {sum(map(len, files.values()))} bytes, to {OUT}")


if __name__ == "__main__":
    main()
