"""Makes the goldens of glim-quant and glim-gguf, and the grids of glim-quant, with gguf-py.

    pip install gguf==0.19.0 numpy
    python xtask/py/golden_quant.py            # writes crates/{quant,gguf}/tests/golden/, crates/quant/data/
    python xtask/py/golden_quant.py --check    # exits 1 if a file there is not what would be written
    python xtask/py/golden_quant.py --ggml LIB # also the goldens that need ggml itself (see below)

Decoding, `TYPE.bin`: N blocks, then what gguf-py decodes them to. All little-endian, no header: N follows from the
length of the file. For the types in `BLOCKED` and `FLOATS` the values stand there as f32; for those in `HASHED`, of
which there are many large blocks, so that every row of a grid is met, one CRC-32 for each 32 values (of their f32
bytes). The first blocks are edge cases (`EDGE_SCALES`, `EDGE_FILLS`), the others are random bytes with random finite
scales.

Encoding, `encode_TYPE.bin`: the blocks that gguf-py's `quantize` makes of the f32 in `encode_blocks.bin` (F16 and BF16:
of those in `encode_floats.bin`).

`many_TYPE.bin`: the same for many blocks of numbers that a few integer operations make (`many_numbers`), one CRC-32 for
each `MANY_RUN` encoded blocks.

Of the types in `GGML_ENCODED`, which gguf-py does not encode, these files are made by `ggml_quantize_chunk` without an
importance matrix (NVFP4: of all numbers times 2^-12, since its scales end at 448). For those in `GGML_WEIGHTED` there is
`weighted_TYPE.bin`, made with one: CRCs as in `many_TYPE.bin`, columns weighted by `column_weights`. `rmse.txt` says for
each type the root mean square error of what ggml encodes, on normal numbers and on Student's t with 3 degrees of freedom
(`rmse_numbers`). LIB is a library that exports `ggml_quantize_chunk`: `xllamacpp/xllamacpp.abi3.so` of the PyPI wheel
`xllamacpp` 2026.10.11549. Without `--ggml` these files are left as they are.

Big-endian files: `big_endian.gguf` was written as such by gguf-py's `GGUFWriter`; `big_endian_blocks.gguf` is
`little_endian_blocks.gguf` turned around by gguf-py's own `gguf_convert_endian`.

The random stream is numpy's legacy one, which is frozen, so each run writes the same bytes.
"""

import argparse
import builtins
import ctypes
import logging
import sys
import tempfile
import zlib
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import GGUFEndian, GGUFReader, GGUFWriter, quants
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize, quantize
from gguf.scripts import gguf_convert_endian

GGUF_VERSION = "0.19.0"
GGML_SOURCE = "xllamacpp 2026.10.11549"
SEED = 20250711
CRATES = Path(__file__).resolve().parents[2] / "crates"
QUANT = "quant/tests/golden"
GGUF = "gguf/tests/golden"

# Byte offsets of the f16 scales in a block, and how many blocks to make.
BLOCKED = {
    T.Q8_0: ([0], 40),
    T.Q4_0: ([0], 40),
    T.Q4_1: ([0, 2], 40),
    T.Q5_0: ([0], 40),
    T.Q5_1: ([0, 2], 40),
    T.IQ4_NL: ([0], 40),
    T.Q4_K: ([0, 2], 20),
    T.Q5_K: ([0, 2], 20),
    T.Q6_K: ([208], 20),
    T.MXFP4: ([], 40),
    T.NVFP4: ([], 40),
}
HASHED = {
    T.Q2_K: ([80, 82], 80),
    T.Q3_K: ([108], 80),
    T.IQ4_XS: ([0], 80),
    T.TQ1_0: ([52], 80),
    T.TQ2_0: ([64], 80),
    T.IQ2_XXS: ([0], 80),
    T.IQ2_XS: ([0], 120),
    T.IQ2_S: ([0], 200),
    T.IQ3_XXS: ([0], 80),
    T.IQ3_S: ([0], 80),
    T.IQ1_S: ([0], 400),
    T.IQ1_M: ([], 400),
}
HASHED_VALUES = 32

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
# Scales of one byte: the ends, the first normal ones, one (MXFP4, NVFP4), what NVFP4 calls NaN, its ignored sign.
EDGE_BYTES = {
    T.MXFP4: [0, 1, 2, 3, 0x7F, 0x80, 0xFC, 0xFE, 0xFF],
    T.NVFP4: [0, 1, 7, 8, 0x38, 0x7E, 0x7F, 0x80, 0xFF],
}

ENCODED = [T.Q8_0, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1]
MANY_BLOCKS = 1 << 15
MANY_RUN = 512
# Those that only ggml encodes; of the many blocks they get so many, and a CRC for so many elements.
GGML_SEARCHED = [T.Q2_K, T.Q3_K, T.Q4_K, T.Q5_K, T.Q6_K, T.IQ4_NL, T.IQ4_XS]
GGML_ENCODED = [*GGML_SEARCHED, T.TQ1_0, T.TQ2_0, T.MXFP4, T.NVFP4]
# Those that heed an importance matrix.
GGML_WEIGHTED = [T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, *GGML_SEARCHED]
GGML_MANY_BLOCKS = 1 << 12
GGML_MANY_RUN = 2048
WEIGHTED_COLUMNS = 1024
# The files that need it.
NEED_GGML = [f"{kind}_{qtype.name.lower()}.bin" for qtype in GGML_ENCODED for kind in ("encode", "many")]
NEED_GGML += [f"weighted_{qtype.name.lower()}.bin" for qtype in GGML_WEIGHTED] + ["rmse.txt"]
RMSE_TYPES = [*ENCODED, *GGML_ENCODED]
RMSE_NUMBERS = 1 << 16
# The grids in the order of `tables.rs`; IQ1_M has that of IQ1_S.
GRIDS = [quants.IQ2_XXS, quants.IQ2_XS, quants.IQ2_S, quants.IQ3_XXS, quants.IQ3_S, quants.IQ1_S]


def random_scale(rng):
    """A finite f16: any sign and mantissa, any exponent but that of infinities."""
    while True:
        bits = int(rng.randint(0, 1 << 16))
        if bits & 0x7C00 != 0x7C00:
            return bits


def set_scales(qtype, offsets, block, scales):
    for offset, bits in zip(offsets, scales):
        block[offset : offset + 2] = np.array([bits], dtype="<u2").view(np.uint8)
    if qtype == T.IQ1_M:
        # The scale's nibbles are the top ones of four u16.
        for n in range(4):
            high = 49 + 2 * n
            block[high] = block[high] & 0x0F | (scales[0] >> (4 * n) & 0x0F) << 4


def blocks_of(rng, qtype, offsets, count):
    """The blocks of one type, shape [blocks, block bytes]."""
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
        set_scales(qtype, offsets, block, scales)
        if qtype in EDGE_BYTES and i <= len(EDGE_BYTES[qtype]):
            edges = EDGE_BYTES[qtype]
            block[0] = edges[i - 1]
            if qtype == T.NVFP4:
                block[1:4] = edges[-i], edges[i % len(edges)], edges[(i + 3) % len(edges)]
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
    if qtype in FLOATS:
        blocks = floats_of(rng, qtype)
    else:
        blocks = blocks_of(rng, qtype, *(BLOCKED | HASHED)[qtype])
    values = dequantize(blocks, qtype)
    assert values.dtype == np.float32
    # The largest scales of MXFP4 go beyond f32.
    assert qtype in FLOATS or qtype == T.MXFP4 or np.isfinite(values).all()
    assert qtype in FLOATS or not np.isnan(values).any()
    values = values.astype("<f4")
    if qtype in HASHED:
        runs = values.reshape(-1, HASHED_VALUES)
        values = np.array([zlib.crc32(run.tobytes()) for run in runs], dtype="<u4")
    return blocks.tobytes() + values.tobytes()


def grids():
    """The grids as gguf-py packs them, which it writes in hexadecimal."""
    return b"".join(bytes.fromhex(grid.grid_hex.decode()) for grid in GRIDS)


def input_blocks():
    """Rows of 32 to encode: edge cases, then normal ones of many sizes, some off centre."""
    rng = np.random.RandomState(SEED)
    j = np.arange(32, dtype=np.float32)
    rows = [
        np.zeros(32),
        -np.zeros(32),
        np.full(32, 0.75),
        np.full(32, -3.0),
        j,
        -j,
        j - 16,
        (j - 16) / 2,  # halves between the codes of the types with 16
        (j % 16) * 8.25 - 127,
        np.where(j % 2 == 0, 1.0, -1.0),  # the first of equal extremes counts
        np.where(j % 2 == 0, -1.0, 1.0),
        np.where(j == 5, 127.0, j - 15.5),  # Q8_0 with scale 1: halves
        np.where(j == 31, -1e-3, 0.0),
        np.where(j == 0, 60000.0, 1.0),
        j * 1e-7,  # the scales are subnormal f16
        j * 1e-9,  # and 0
        j * 1e-30,
        j * 4000 - 62000,  # near the end of f16
    ]
    while len(rows) < 96:
        size = 10.0 ** rng.uniform(-6, 4)
        offset = rng.choice([0.0, 0.0, 1.0, -3.0])
        rows.append((rng.standard_normal(32) + offset) * size)
    return np.array(rows, dtype="<f4")


def input_floats():
    """Any f32 but NaNs that are not quiet, and many in the range of f16, halfway between its numbers among them."""
    rng = np.random.RandomState(SEED)
    edges = FLOATS[T.F32][1] + [0xFFC12345, 0x7FFFE000, 0x477FEFFF, 0x477FF000, 0x33000000, 0x33000001, 0x7F7F8000]
    anything = np.frombuffer(rng.bytes(4 * RANDOM_FLOATS), dtype="<u4")
    sign_and_exponent = rng.randint(0, 2, RANDOM_FLOATS) << 31 | rng.randint(127 - 26, 127 + 17, RANDOM_FLOATS) << 23
    tails = rng.choice([0x0000, 0x1000, 0x0FFF, 0x1001, 0x3000, 0x8000, 0x7FFF, 0x8001], RANDOM_FLOATS)
    halfway = sign_and_exponent | rng.randint(0, 1 << 7, RANDOM_FLOATS) << 16 | tails
    bits = np.concatenate([np.array(edges, dtype="<u4"), anything, halfway.astype("<u4")])
    signalling = np.isnan(bits.view("<f4")) & (bits & 0x00400000 == 0)
    return bits[~signalling].view("<f4")


def splitmix64(i):
    """The i-th outputs of splitmix64 that was seeded with 0."""
    x = (i + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def sums_of_four(i):
    """The sum of the four u16 of each splitmix64 output, centred: about normal."""
    return splitmix64(i).view("<u2").reshape(-1, 4).astype(np.int64).sum(axis=1) - 0x20000


def many_numbers():
    """About normal numbers, of another size in each block, all of them exact: the centred sum that element i has, times
    a power of two from the block's number."""
    i = np.arange(MANY_BLOCKS * 32, dtype=np.uint64)
    exponents = (i >> np.uint64(5)).astype(np.int64) % 33 - 34
    return np.ldexp(sums_of_four(i).astype(np.float32), exponents).reshape(-1, 32)


def column_weights():
    """Squares of about normal numbers (one f32 product); none for 16 columns. (Of a block that has none at all ggml
    makes zeros, and we do not.)"""
    i = np.arange(WEIGHTED_COLUMNS, dtype=np.uint64)
    roots = np.ldexp(sums_of_four(i).astype(np.float32), -15)
    roots[512:528] = 0
    return roots * roots


def normals(first):
    """`RMSE_NUMBERS` normal numbers, each made of 17 outputs of splitmix64 from `first` on: of 1024 bits the number that
    are set, which is binomial, and an even fraction in -1/2 .. 1/2, in standard deviations (16). All exact."""
    words = splitmix64(np.arange(first, first + 17 * RMSE_NUMBERS, dtype=np.uint64)).reshape(-1, 17)
    ones = np.bitwise_count(words[:, :16]).sum(axis=1, dtype=np.int64)
    return (ones - 512 + ((words[:, 16] >> np.uint64(40)).astype(np.float64) / (1 << 24) - 0.5)) / 16


def rmse_numbers():
    """Normal numbers, and Student's t with 3 degrees of freedom, of the size of weights. Each operation is rounded as IEEE
    754 says, so they are the same everywhere."""
    z = [normals(n * 17 * RMSE_NUMBERS) for n in range(5)]
    t = z[1] / np.sqrt((z[2] * z[2] + z[3] * z[3] + z[4] * z[4]) / 3)
    return [(numbers * 0.02).astype("<f4").reshape(-1, 1024) for numbers in (z[0], t)]


def crcs(blocks, runs=MANY_BLOCKS // MANY_RUN):
    """One CRC-32 for each `MANY_RUN` encoded blocks, or for each of so many runs."""
    return np.array([zlib.crc32(run.tobytes()) for run in blocks.reshape(runs, -1)], dtype="<u4")


def encodings():
    blocks, floats = input_blocks(), input_floats()
    files = {"encode_blocks.bin": blocks, "encode_floats.bin": floats}
    for qtype in ENCODED:
        files[f"encode_{qtype.name.lower()}.bin"] = quantize(blocks, qtype)
        files[f"many_{qtype.name.lower()}.bin"] = crcs(quantize(many_numbers(), qtype))
    with np.errstate(over="ignore"):
        files["encode_f16.bin"] = quantize(floats, T.F16).astype("<f2")
        files["encode_bf16.bin"] = quantize(floats, T.BF16)
    return {name: data.tobytes() for name, data in files.items()}


def ggml_encodings(library):
    """What ggml has to encode."""
    ggml = ctypes.CDLL(library)
    blocks, many = input_blocks(), many_numbers()
    few = many[:GGML_MANY_BLOCKS].reshape(-1, WEIGHTED_COLUMNS)
    runs = few.size // GGML_MANY_RUN
    files = {}
    for qtype in GGML_ENCODED:
        name = qtype.name.lower()
        factor = np.float32(2.0**-12 if qtype == T.NVFP4 else 1)
        files[f"encode_{name}.bin"] = ggml_quantize(ggml, qtype, blocks.reshape(-1, 256) * factor)
        if qtype == T.IQ4_NL:
            files[f"many_{name}.bin"] = crcs(ggml_quantize(ggml, qtype, many))
        else:
            files[f"many_{name}.bin"] = crcs(ggml_quantize(ggml, qtype, few * factor), runs)
    for qtype in GGML_WEIGHTED:
        weighted = ggml_quantize(ggml, qtype, few, column_weights())
        files[f"weighted_{qtype.name.lower()}.bin"] = crcs(weighted, runs)
    files = {name: data.tobytes() for name, data in files.items()}
    files["rmse.txt"] = rmse_table(ggml).encode()
    return files


def ggml_quantize(ggml, qtype, rows, weights=None):
    """The blocks, flat, that ggml makes of rows; `weights` has one number for each column."""
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    per_block, block_bytes = GGML_QUANT_SIZES[qtype]
    rows = np.ascontiguousarray(rows, dtype="<f4")
    out = np.zeros(rows.size // per_block * block_bytes, dtype=np.uint8)
    pointer = lambda array: None if array is None else array.ctypes.data_as(ctypes.c_void_p)
    written = ggml.ggml_quantize_chunk(
        ctypes.c_int(int(qtype)),
        pointer(rows),
        pointer(out),
        ctypes.c_int64(0),
        ctypes.c_int64(rows.shape[0]),
        ctypes.c_int64(rows.shape[1]),
        pointer(weights),
    )
    assert written == len(out)
    return out


def rmse_table(ggml):
    """Lines of a type and its two errors."""
    lines = ["# type, RMSE of ggml on normal numbers, on Student's t (3)"]
    for qtype in RMSE_TYPES:
        errors = []
        for numbers in rmse_numbers():
            blocks = ggml_quantize(ggml, qtype, numbers).reshape(-1, GGML_QUANT_SIZES[qtype][1])
            decoded = dequantize(blocks, qtype).reshape(numbers.shape)
            errors.append(np.sqrt(np.mean((decoded.astype(np.float64) - numbers) ** 2)))
        lines.append(f"{qtype.name} {errors[0]:.9e} {errors[1]:.9e}")
    return "\n".join(lines) + "\n"


def add_keys(writer):
    """A value of every kind."""
    writer.add_uint8("a.u8", 0x12)
    writer.add_int8("a.i8", -2)
    writer.add_uint16("a.u16", 0x1234)
    writer.add_int16("a.i16", -2)
    writer.add_uint32("a.u32", 0x12345678)
    writer.add_int32("a.i32", -2)
    writer.add_float32("a.f32", 0.1)
    writer.add_bool("a.bool", True)
    writer.add_string("a.string", "größe")
    writer.add_uint64("a.u64", 0x123456789ABCDEF0)
    writer.add_int64("a.i64", -2)
    writer.add_float64("a.f64", 0.1)
    writer.add_array("a.ints", [1, -2, 3])
    writer.add_array("a.floats", [0.5, 0.1])
    writer.add_array("a.bools", [True, False])
    writer.add_array("a.strings", ["a", "", "ß"])


def written(path, writer):
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def endian_files():
    rng = np.random.RandomState(SEED)
    floats = rng.standard_normal((3, 4)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made.gguf"

        writer = GGUFWriter(None, "glm-dsa", endianess=GGUFEndian.BIG)
        add_keys(writer)
        writer.add_tensor("f32", floats)
        writer.add_tensor("f16", floats.astype(np.float16))
        writer.add_tensor("f64", floats.astype(np.float64))
        writer.add_tensor("i8", np.arange(-2, 3, dtype=np.int8))
        writer.add_tensor("i16", np.arange(-2, 3, dtype=np.int16))
        writer.add_tensor("i32", np.arange(-2, 3, dtype=np.int32))
        writer.add_tensor("i64", np.arange(-2, 3, dtype=np.int64))
        big = written(path, writer)

        writer = GGUFWriter(None, "glm-dsa")
        add_keys(writer)
        writer.add_tensor("f32", floats)
        writer.add_tensor("f16", floats.astype(np.float16))
        writer.add_tensor("bf16", quantize(floats, T.BF16).view(np.uint16), raw_dtype=T.BF16)
        for qtype in [T.Q8_0, T.Q4_0, T.Q4_K, T.Q6_K, T.MXFP4, T.NVFP4]:
            _, size = GGML_QUANT_SIZES[qtype]
            blocks = np.frombuffer(rng.bytes(3 * size), dtype=np.uint8).reshape(3, size)
            writer.add_tensor(qtype.name.lower(), blocks, raw_dtype=qtype)
        little_blocks = written(path, writer)
        turn_around(path)
        big_blocks = path.read_bytes()
    return {"big_endian.gguf": big, "little_endian_blocks.gguf": little_blocks, "big_endian_blocks.gguf": big_blocks}


def turn_around(path):
    """gguf-py's converter, which asks on the terminal whether we are sure."""
    logging.getLogger("gguf-convert-endian").setLevel(logging.ERROR)
    asked, tqdm = builtins.input, gguf_convert_endian.tqdm
    builtins.input = lambda _prompt: "YES"
    gguf_convert_endian.tqdm = lambda items, **_: SilentBar(items)
    try:
        gguf_convert_endian.convert_byteorder(GGUFReader(path, "r+"), SimpleNamespace(order="big", dry_run=False))
    finally:
        builtins.input, gguf_convert_endian.tqdm = asked, tqdm


class SilentBar(list):
    """A progress bar that shows nothing."""

    def set_description(self, _text):
        pass


def same(path, data):
    return path.is_file() and path.read_bytes() == data


def listing(files):
    return "\n".join(f"- `{Path(name).name}`: {len(data)} bytes" for name, data in sorted(files.items()))


def rmse_rows(table):
    """The lines of `rmse.txt` as a table of Markdown."""
    rows = [line.split() for line in table.decode().splitlines() if not line.startswith("#")]
    return "\n".join(f"| {name} | {float(normal):.4e} | {float(heavy):.4e} |" for name, normal, heavy in rows)


def quant_readme(files):
    return f"""# Goldens of glim-quant

What gguf-py (PyPI `gguf` {GGUF_VERSION}) decodes blocks to and encodes numbers to, for comparison bit for bit. Made by

    python xtask/py/golden_quant.py

with seed {SEED} + type id. All little-endian, without headers; the script says which edge cases come first, and
`--check` tells whether these files are what it writes.

- `TYPE.bin`: blocks, then their values: as f32, or as one CRC-32 for each {HASHED_VALUES} values where there are many.
- `encode_TYPE.bin`: the blocks made of the f32 in `encode_blocks.bin` (F16, BF16: `encode_floats.bin`).
- `many_TYPE.bin`: the same of {MANY_BLOCKS} blocks of computed numbers, one CRC-32 for each {MANY_RUN} blocks.

gguf-py decodes neither Q8_1 nor Q8_K, formats of activations: blocks of theirs are made by hand, in the unit tests of
`legacy.rs` and `k_quants.rs`.

gguf-py does not encode {", ".join(qtype.name for qtype in GGML_ENCODED)}. Their
files are made by ggml ({GGML_SOURCE}, `ggml_quantize_chunk`, no importance matrix), with

    python xtask/py/golden_quant.py --ggml SITE-PACKAGES/xllamacpp/xllamacpp.abi3.so

- `encode_TYPE.bin`, `many_TYPE.bin`: as above; of the many blocks the first {GGML_MANY_BLOCKS}, one CRC-32 for each
  {GGML_MANY_RUN} elements (but for IQ4_NL). NVFP4: of the numbers times 2^-12.
- `weighted_TYPE.bin`: the same with an importance matrix, in rows of {WEIGHTED_COLUMNS}.
- `rmse.txt`: root mean square error of ggml's blocks, without an importance matrix, on {RMSE_NUMBERS} normal numbers
  (standard deviation 0.02) and as many of Student's t with 3 degrees of freedom, times 0.02. The table below is that.

All blocks of our encoders are equal to these, so the ratio of our RMSE to that of ggml is 1; a test asserts at most 1.02.

| type | RMSE, normal | RMSE, Student's t (3) |
|---|---|---|
{rmse_rows(files[f"{QUANT}/rmse.txt"])}

{listing(files)}
"""


def gguf_readme(files):
    return f"""# Goldens of glim-gguf

Big-endian files by gguf-py (PyPI `gguf` {GGUF_VERSION}): `big_endian.gguf` by its `GGUFWriter`, and
`big_endian_blocks.gguf` by its `gguf_convert_endian` from `little_endian_blocks.gguf`. Made by

    python xtask/py/golden_quant.py

with seed {SEED}. `--check` tells whether these files are what the script writes.

{listing(files)}
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the files instead of writing them")
    parser.add_argument("--ggml", metavar="LIB", help="a library that exports ggml_quantize_chunk")
    args = parser.parse_args()
    if version("gguf") != GGUF_VERSION:
        sys.exit(f"gguf {version('gguf')} is installed, expected {GGUF_VERSION}")

    files = {f"{QUANT}/{qtype.name.lower()}.bin": golden(qtype) for qtype in [*FLOATS, *BLOCKED, *HASHED]}
    files |= {f"{QUANT}/{name}": data for name, data in encodings().items()}
    if args.ggml:
        files |= {f"{QUANT}/{name}": data for name, data in ggml_encodings(args.ggml).items()}
    else:
        files |= {f"{QUANT}/{name}": (CRATES / QUANT / name).read_bytes() for name in NEED_GGML}
    gguf_files = {f"{GGUF}/{name}": data for name, data in endian_files().items()}
    files[f"{QUANT}/README.md"] = quant_readme(files).encode()
    files |= gguf_files
    files[f"{GGUF}/README.md"] = gguf_readme(gguf_files).encode()
    files["quant/data/iq_grids.bin"] = grids()

    if args.check:
        stale = [name for name, data in files.items() if not same(CRATES / name, data)]
        if stale:
            sys.exit(f"not as this script writes them: {', '.join(stale)}")
        print(f"{len(files)} files are as this script writes them")
        return
    for name, data in files.items():
        (CRATES / name).parent.mkdir(parents=True, exist_ok=True)
        (CRATES / name).write_bytes(data)
    print(f"wrote {len(files)} files, {sum(map(len, files.values()))} bytes, below {CRATES}")


if __name__ == "__main__":
    main()
