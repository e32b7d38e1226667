#!/usr/bin/env python3
"""Near-ties of the indexer in the reference computations, for `glim eval --against`.

A reference holds what transformers computed in float32. Where two index scores at the last selected place are equal up to
rounding (or exactly equal: every head's ReLU is 0), which of them is chosen is an accident of the order of summation and of
torch's selection algorithm, and every later row that attends to that one sees the difference. This script runs the same
computation again, checks that it reproduces the reference, and writes what transformers chose in those rows:

    PROMPT.tie_rows  [m, 2] i32      (index of the full layer, position), ascending
    PROMPT.tie_topk  [m, topk] i32   chosen positions, ascending

    golden_ties.py HF_DIR REFERENCE OUT [--gguf FILE] [--latent-norm-eps X]

With --gguf the weights of HF_DIR are replaced by the dequantised ones of the file. Made with transformers 5.17.0, torch
2.11.0, gguf 0.19.0 on a CPU; other versions may break ties otherwise. Run by hand: the output is committed.
"""
import argparse
import json
import os

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import save_file

# A row is written if the score at the last place is ahead of the next one by no more than this: half of what eval accepts.
MARGIN = 5e-5


def gguf_weights(path, config):
    """The dequantised tensors of a glm-dsa GGUF under their Hugging Face names."""
    import gguf

    reader = gguf.GGUFReader(path)
    t = {x.name: gguf.quants.dequantize(x.data, x.tensor_type) for x in reader.tensors}
    t = {k: v.reshape([int(n) for n in reversed(next(x for x in reader.tensors if x.name == k).shape)]) for k, v in t.items()}
    out = {
        "model.embed_tokens.weight": t["token_embd.weight"],
        "model.norm.weight": t["output_norm.weight"],
        "lm_head.weight": t["output.weight"],
    }
    names = {
        "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
        "attn_q_a": "self_attn.q_a_proj", "attn_q_a_norm": "self_attn.q_a_layernorm", "attn_q_b": "self_attn.q_b_proj",
        "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa", "attn_kv_a_norm": "self_attn.kv_a_layernorm",
        "attn_output": "self_attn.o_proj", "indexer.attn_q_b": "self_attn.indexer.wq_b",
        "indexer.attn_k": "self_attn.indexer.wk", "indexer.k_norm": "self_attn.indexer.k_norm",
        "indexer.proj": "self_attn.indexer.weights_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj", "ffn_gate_inp": "mlp.gate", "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
        "ffn_up_shexp": "mlp.shared_experts.up_proj", "ffn_down_shexp": "mlp.shared_experts.down_proj",
    }
    for layer in range(config["num_hidden_layers"]):
        src, dst = f"blk.{layer}.", f"model.layers.{layer}."
        for a, b in names.items():
            for kind in ("weight", "bias"):
                if f"{src}{a}.{kind}" in t:
                    out[f"{dst}{b}.{kind}"] = t[f"{src}{a}.{kind}"]
        k, v = t[src + "attn_k_b.weight"], t[src + "attn_v_b.weight"]
        kv = np.concatenate([k.transpose(0, 2, 1), v], axis=1)
        out[dst + "self_attn.kv_b_proj.weight"] = kv.reshape(-1, kv.shape[-1])
        if src + "exp_probs_b.bias" in t:
            out[dst + "mlp.gate.e_score_correction_bias"] = t[src + "exp_probs_b.bias"]
            gate, up = t[src + "ffn_gate_exps.weight"], t[src + "ffn_up_exps.weight"]
            out[dst + "mlp.experts.gate_up_proj"] = np.concatenate([gate, up], axis=1)
            out[dst + "mlp.experts.down_proj"] = t[src + "ffn_down_exps.weight"]
    return {k: torch.from_numpy(np.ascontiguousarray(v, dtype=np.float32)) for k, v in out.items()}


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("hf_dir")
    args.add_argument("reference")
    args.add_argument("out")
    args.add_argument("--gguf")
    args.add_argument("--latent-norm-eps", type=float)
    args = args.parse_args()

    from transformers import AutoModelForCausalLM
    from transformers.models.glm_moe_dsa.modeling_glm_moe_dsa import GlmMoeDsaIndexer

    model = AutoModelForCausalLM.from_pretrained(args.hf_dir, dtype=torch.float32, attn_implementation="eager").eval()
    config = json.load(open(os.path.join(args.hf_dir, "config.json")))
    if args.gguf:
        wanted = set(model.state_dict())
        weights = gguf_weights(args.gguf, config)
        assert set(weights) == wanted, sorted(set(weights) ^ wanted)[:8]
        model.load_state_dict(weights)
    for name, module in model.named_modules():
        if args.latent_norm_eps is not None and name.endswith(("q_a_layernorm", "kv_a_layernorm")):
            module.variance_epsilon = args.latent_norm_eps

    seen, swaps = [], set()
    topk = config["index_topk"]
    original = torch.Tensor.topk

    def recording(scores, k, *rest, **kwargs):
        result = original(scores, k, *rest, **kwargs)
        if recording.on:
            picks = result.indices.detach()[0].clone()
            for layer, position in swaps:
                if layer == len(seen):
                    best = original(scores[0, position], topk + 1).indices
                    picks[position] = torch.cat([best[: topk - 1], best[topk:]])
            seen.append((scores.detach()[0].clone(), picks))
            result = torch.return_types.topk((result.values, picks[None]))
        return result

    recording.on = False
    torch.Tensor.topk = recording
    for module in model.modules():
        if isinstance(module, GlmMoeDsaIndexer):
            module.register_forward_pre_hook(lambda *_: setattr(recording, "on", True))
            module.register_forward_hook(lambda *_: setattr(recording, "on", False))

    out = {}
    with safe_open(args.reference, "np") as ref:
        for name in sorted(k.split(".")[0] for k in ref.keys() if k.endswith(".input_ids")):
            ids = torch.from_numpy(ref.get_tensor(f"{name}.input_ids").astype(np.int64))[None]
            expected = ref.get_tensor(f"{name}.logits")

            def run():
                seen.clear()
                with torch.no_grad():
                    logits = model(ids, use_cache=False).logits[0].numpy()
                return np.abs(logits[-len(expected):] - expected).max()

            def ties():
                found = []
                for layer, (scores, picks) in enumerate(seen):
                    for position in range(topk, scores.shape[0]):
                        s = torch.sort(scores[position, : position + 1], descending=True).values
                        if (margin := float(s[topk - 1] - s[topk])) <= MARGIN:
                            found.append((margin, layer, position, sorted(picks[position].tolist())))
                return found

            swaps.clear()
            diff = run()
            # The reference may come from a machine that sums in another order: find the one choice that explains it.
            if diff > 1e-4:
                for margin, layer, position, _ in sorted(ties()):
                    swaps.clear()
                    swaps.add((layer, position))
                    if (diff := run()) <= 1e-4:
                        print(f"{name}: the reference chose otherwise at full layer {layer}, position {position}, margin {margin:.1e}")
                        break
                else:
                    raise SystemExit(f"{name}: no single near-tie explains the difference of {diff:.2e}")
            found = sorted(t[1:] for t in ties())
            rows, chosen = [list(t[:2]) for t in found], [t[2] for t in found]
            print(f"{name}: {len(rows)} near-ties in {len(seen)} layers; this run is within {diff:.2e} of the reference")
            if rows:
                out[f"{name}.tie_rows"] = np.array(rows, dtype=np.int32)
                out[f"{name}.tie_topk"] = np.array(chosen, dtype=np.int32)
    save_file(out, args.out + ".tmp", metadata={"made_by": "golden_ties.py, transformers 5.17.0, torch 2.11.0"})
    os.replace(args.out + ".tmp", args.out)


if __name__ == "__main__":
    main()
