"""Makes `crates/model/tests/golden/mixes.txt`: which type llama.cpp gives each tensor in each mix.

    python xtask/py/golden_mixes.py LIBRARIES            # writes it
    python xtask/py/golden_mixes.py LIBRARIES --check    # exits 1 if it is not what would be written

LIBRARIES: see `llama_quant.py`. The types are those of `llama_quant_compute_types`, which needs names and dimensions and
no file; with an importance matrix, of which that function knows nothing, those that `llama_model_quantize` writes.

The models: GLM-5 as published; the two small ones of `assets/`; and made-up ones for what these do not meet (eight experts
and keys and values in one tensor, no experts, a tied head, few query heads for a key head).

Format: `model NAME layers=… experts=… gqa=… imatrix=…`, then a line `tensor DIMS NAME` for each group of tensors, where `{0-3,7}` stands
for these layers, then for each mix and type a line `MIX TYPE NAME NAME …`; what a mix does not list is F32. Dimensions
have the fastest first.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import GGUFReader, GGUFWriter

from llama_quant import MIXES, SOURCE, Llama

GOLDEN = Path(__file__).resolve().parents[2] / "crates/model/tests/golden/mixes.txt"


def glm(arch, *, layers, dense, hidden, vocab, heads, q_lora, kv_lora, nope, rope, v, ffn, experts, moe_ffn,
        shared=1, index_heads=0, index_dim=0, full=None, mtp=0, kv_b=False, tied=False):
    """Facts and tensors of a model in the form of `glm-dsa`; `kv_b`: keys and values in one tensor."""
    tensors = [("token_embd.weight", [hidden, vocab]), ("output_norm.weight", [hidden])]
    if not tied:
        tensors.append(("output.weight", [hidden, vocab]))
    for layer in range(layers + mtp):
        add = lambda name, *dims: tensors.append((f"blk.{layer}.{name}", list(dims)))
        add("attn_norm.weight", hidden)
        add("attn_q_a.weight", hidden, q_lora)
        add("attn_q_a_norm.weight", q_lora)
        add("attn_q_b.weight", q_lora, heads * (nope + rope))
        add("attn_kv_a_mqa.weight", hidden, kv_lora + rope)
        add("attn_kv_a_norm.weight", kv_lora)
        if kv_b:
            add("attn_kv_b.weight", kv_lora, heads * (nope + v))
        else:
            add("attn_k_b.weight", nope, kv_lora, heads)
            add("attn_v_b.weight", kv_lora, v, heads)
        add("attn_output.weight", heads * v, hidden)
        if index_heads and (layer >= layers or full is None or full[layer]):
            add("indexer.attn_q_b.weight", q_lora, index_heads * index_dim)
            add("indexer.attn_k.weight", hidden, index_dim)
            add("indexer.k_norm.weight", index_dim)
            add("indexer.k_norm.bias", index_dim)
            add("indexer.proj.weight", hidden, index_heads)
        add("ffn_norm.weight", hidden)
        if experts and layer >= dense:
            add("ffn_gate_inp.weight", hidden, experts)
            add("exp_probs_b.bias", experts)
            for name in ("gate", "up"):
                add(f"ffn_{name}_exps.weight", hidden, moe_ffn, experts)
                add(f"ffn_{name}_shexp.weight", hidden, shared * moe_ffn)
            add("ffn_down_exps.weight", moe_ffn, hidden, experts)
            add("ffn_down_shexp.weight", shared * moe_ffn, hidden)
        else:
            add("ffn_gate.weight", hidden, ffn)
            add("ffn_up.weight", hidden, ffn)
            add("ffn_down.weight", ffn, hidden)
        if layer >= layers:
            add("nextn.eh_proj.weight", 2 * hidden, hidden)
            for name in ("enorm", "hnorm", "shared_head_norm"):
                add(f"nextn.{name}.weight", hidden)
    facts = dict(arch=arch, layers=layers + mtp, heads=heads, kv_heads=1, experts=experts)
    return facts, tensors


SMALL = dict(hidden=512, vocab=1024, q_lora=256, kv_lora=256, nope=96, rope=32, v=128, ffn=768, moe_ffn=256, dense=1)

MODELS = {
    "glm-5": glm("glm-dsa", layers=78, dense=3, hidden=6144, vocab=154880, heads=64, q_lora=2048, kv_lora=512, nope=192, rope=64,
                 v=256, ffn=12288, experts=256, moe_ffn=2048, index_heads=32, index_dim=128, mtp=1),
    "tiny-glm5": glm("glm-dsa", layers=6, dense=1, hidden=256, vocab=4096, heads=8, q_lora=256, kv_lora=128, nope=96, rope=32,
                     v=128, ffn=768, experts=8, moe_ffn=256, index_heads=4, index_dim=64, mtp=1),
    "odd-glm52": glm("glm-dsa", layers=5, dense=2, hidden=128, vocab=4096, heads=6, q_lora=192, kv_lora=256, nope=96, rope=16,
                     v=80, ffn=160, experts=10, moe_ffn=32, index_heads=9, index_dim=64, full=[1, 1, 0, 1, 0]),
    "kv-b": glm("deepseek2", layers=27, heads=16, experts=64, kv_b=True, **SMALL),
    "kv-b-8-experts": glm("deepseek2", layers=27, heads=16, experts=8, kv_b=True, **SMALL),
    "kv-b-2-heads": glm("deepseek2", layers=27, heads=2, experts=64, kv_b=True, **SMALL),
    "no-experts-tied": glm("deepseek2", layers=33, heads=16, experts=0, kv_b=True, tied=True, **SMALL),
}  # fmt: skip


def spans(layers):
    """`0-3,7` of sorted layers."""
    runs = []
    for layer in layers:
        if runs and runs[-1][1] == layer - 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def grouped(names):
    """Names with all layers of one suffix in one: `blk.{0-3}.attn_q_a.weight`."""
    groups = {}
    for name in names:
        parts = name.split(".", 2)
        layer, suffix = (int(parts[1]), parts[2]) if parts[0] == "blk" else (None, name)
        groups.setdefault(suffix, []).append(layer)
    return [
        suffix if layers == [None] else f"blk.{{{spans(sorted(layers))}}}.{suffix}"
        for suffix, layers in sorted(groups.items())
    ]


def lines_of(name, facts, tensors, types_in, imatrix):
    gqa = facts["heads"] // facts["kv_heads"]
    head = f"model {name} layers={facts['layers']} experts={facts['experts']} gqa={gqa} imatrix={str(imatrix).lower()}"
    lines = [head]
    for dims in sorted({tuple(dims) for _, dims in tensors}):
        same = [name for name, other in tensors if tuple(other) == dims]
        lines += [f"tensor {'x'.join(map(str, dims))} {group}" for group in grouped(same)]
    for mix in MIXES:
        found = types_in(mix)
        for ty in sorted(set(found.values()) - {"f32", "F32"}):
            lines.append(f"{mix} {ty.upper()} {' '.join(grouped([n for n, t in found.items() if t == ty]))}")
    return lines


def keys(writer, facts):
    """What llama.cpp reads of a `deepseek2` file before it quantises."""
    writer.add_block_count(facts["layers"])
    writer.add_context_length(1024)
    writer.add_embedding_length(SMALL["hidden"])
    writer.add_feed_forward_length(SMALL["ffn"])
    writer.add_head_count(facts["heads"])
    writer.add_head_count_kv(facts["kv_heads"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_key_length(SMALL["nope"] + SMALL["rope"])
    writer.add_value_length(SMALL["v"])
    writer.add_rope_dimension_count(SMALL["rope"])
    writer.add_q_lora_rank(SMALL["q_lora"])
    writer.add_kv_lora_rank(SMALL["kv_lora"])
    writer.add_expert_count(facts["experts"])
    writer.add_expert_used_count(2)
    writer.add_expert_shared_count(1)
    writer.add_expert_feed_forward_length(SMALL["moe_ffn"])
    writer.add_leading_dense_block_count(SMALL["dense"])
    writer.add_expert_weights_scale(1.0)


def with_imatrix(llama):
    """The types in a file that was quantised with an importance matrix: 16 layers, so that an eighth is two."""
    facts, tensors = glm("deepseek2", layers=16, heads=16, experts=3, kv_b=True, **{**SMALL, "hidden": 256, "vocab": 256})
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "in.gguf", Path(folder) / "out.gguf"
        writer = GGUFWriter(source, "deepseek2")
        keys(writer, facts)
        weights = {}
        for name, dims in tensors:
            writer.add_tensor(name, np.full(dims[::-1], 0.5, dtype=np.float32))
            weights[name] = np.ones(dims[0] * (dims[2] if len(dims) > 2 else 1), dtype=np.float32)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

        def types_in(mix):
            llama.quantize(source, target, mix, imatrix=weights)
            return {tensor.name: tensor.tensor_type.name for tensor in GGUFReader(target).tensors}

        return lines_of("imatrix", facts, tensors, types_in, True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libraries", help="folder with libllama.so")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    llama = Llama(args.libraries)
    lines = [
        f"# Which type each tensor gets: {SOURCE}.",
        "# Made by xtask/py/golden_mixes.py, which also says how to read it; sources are F32.",
    ]
    for name, (facts, tensors) in MODELS.items():
        types_in = lambda mix: dict(zip([n for n, _ in tensors], llama.types(facts, tensors, mix, int(T.F32))))
        lines += lines_of(name, facts, tensors, types_in, False)
    lines += with_imatrix(llama)
    text = "\n".join(lines) + "\n"
    if args.check:
        if not GOLDEN.is_file() or GOLDEN.read_text() != text:
            sys.exit(f"{GOLDEN} is not what llama.cpp says")
        return
    GOLDEN.parent.mkdir(parents=True, exist_ok=True)
    GOLDEN.write_text(text)


if __name__ == "__main__":
    main()
