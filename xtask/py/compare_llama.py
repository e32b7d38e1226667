"""Files that `glim quantize` writes, beside those of llama.cpp, and as models of llama.cpp.

    pip install gguf==0.19.0 numpy xllamacpp==2026.10.11549
    python xtask/py/compare_llama.py types  --glim GLIM --libraries LIBRARIES MODEL.gguf…
    python xtask/py/compare_llama.py greedy --glim GLIM MODEL.gguf

`types`: each MODEL (BF16) is quantised to every type by both, without and with an importance matrix of `glim imatrix`; types
and bytes are compared tensor by tensor. LIBRARIES: see `llama_quant.py`.

`greedy`: MODEL is quantised to the types of `GREEDY`; `xllamacpp` and glim continue the prompts of `PROMPTS` greedily, and the
tokens are compared. llama.cpp rounds activations to 8 bits wherever weights are quantised. So once it gets the file itself,
beside glim's fast math, which rounds as well but not in the same places; and once the same weights as F32 (with F32 caches), beside
glim's exact math on the file itself. Run once, results in docs/quantization.md.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from gguf import GGUFReader

GREEDY = ["q8_0", "q6_k", "q4_k_m"]
PROMPTS = [
    "What is 27 + 58?",
    "Count from 3 to 9.",
    "The capital of",
    "Once upon a time",
    "7 * 6 =",
    "Reverse the word: stone",
    "sort: 9 4 7 1",
    "A list of colours:",
]
TOKENS = 32


def glim(args, binary):
    done = subprocess.run([binary, *map(str, args)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"glim {' '.join(map(str, args))}: {done.stderr}")
    return done.stdout


def differences(ours, theirs):
    """What differs between two files, tensor by tensor; names of tensors of which only the bytes do."""
    ours = {tensor.name: tensor for tensor in GGUFReader(ours).tensors}
    theirs = {tensor.name: tensor for tensor in GGUFReader(theirs).tensors}
    if ours.keys() != theirs.keys():
        sys.exit(f"other tensors: {ours.keys() ^ theirs.keys()}")
    types = [name for name in ours if ours[name].tensor_type != theirs[name].tensor_type]
    same_type = [name for name in ours if name not in types]
    bytes_ = [name for name in same_type if not np.array_equal(ours[name].data, theirs[name].data)]
    return len(ours), types, bytes_


def means(path):
    """The weights that llama.cpp's `llama-quantize` makes of an importance matrix (`load_imatrix` there)."""
    tensors = {tensor.name: tensor.data for tensor in GGUFReader(path).tensors}
    weights = {}
    for name, sums in tensors.items():
        if name.endswith(".in_sum2"):
            name = name.removesuffix(".in_sum2")
            counts = tensors[f"{name}.counts"].reshape(-1, 1)
            sums = sums.reshape(len(counts), -1)
            mean = np.where(counts > 0, sums / np.maximum(counts, 1), np.float32(1))
            weights[name] = np.ascontiguousarray(mean.astype(np.float32)).reshape(-1)
    return weights


def compare_types(args):
    from llama_quant import MIXES, SOURCE, Llama

    llama = Llama(args.libraries)
    print(f"{SOURCE}, beside glim")
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs, imatrix = (Path(folder) / name for name in ("ours.gguf", "theirs.gguf", "imatrix.gguf"))
        for model in args.models:
            glim(["imatrix", model, "--text", args.text, "-o", imatrix, "--windows", 4, "--window", 256], args.glim)
            for weights in (None, means(imatrix)):
                for mix in MIXES:
                    if mix == "q2_k_s":
                        continue  # needs weights for every tensor, also for those of the MTP block, which is not run
                    more = [] if weights is None else ["--imatrix", imatrix]
                    glim(["quantize", model, ours, "--type", mix, *more], args.glim)
                    llama.quantize(model, theirs, mix, imatrix=weights)
                    n, types, bytes_ = differences(ours, theirs)
                    said = f"{model.name} {mix}{'' if weights is None else ' with weights'}: {n} tensors"
                    print(f"{said}, {len(types)} of another type, {len(bytes_)} with other bytes {types[:3] + bytes_[:3]}")


def llama_server(path, exact):
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = 1024
    params.n_parallel = 1
    params.cpuparams.n_threads = 2
    params.warmup = False
    if exact:
        params.cache_type_k = params.cache_type_v = 0  # GGML_TYPE_F32
        params.flash_attn_type = 0
    return xllamacpp.Server(params)


def llama_tokens(server, ids):
    """llama.cpp's tokens, each with how far it is ahead of the next; and whether it has stopped by itself."""
    request = {"prompt": ids, "temperature": 0, "top_k": 1, "n_predict": TOKENS, "cache_prompt": False, "logprobs": 2}
    answer = server.handle_completions(request)["choices"][0]
    content = answer["logprobs"]["content"]
    stopped = answer["finish_reason"] == "stop"
    if stopped:
        content.pop()  # the token that ended it, which glim does not list
    margin = lambda top: top[0]["logprob"] - top[1]["logprob"]
    return [(token["id"], margin(token["top_logprobs"])) for token in content], stopped


def compare_greedy(args):
    import xllamacpp

    print(f"xllamacpp {xllamacpp.__version__}, {TOKENS} tokens of {len(PROMPTS)} prompts")
    with tempfile.TemporaryDirectory() as folder:
        for mix in GREEDY:
            path, floats = Path(folder) / f"{mix}.gguf", Path(folder) / f"{mix}-f32.gguf"
            glim(["quantize", args.models[0], path, "--type", mix], args.glim)
            glim(["quantize", path, floats, "--type", "f32"], args.glim)
            for math, file in (("exact", floats), ("fast", path)):
                server = llama_server(file, math == "exact")
                same, told = 0, []
                for prompt in PROMPTS:
                    ids = json.loads(glim(["tokenize", path, "--special", "--text", prompt, "--json"], args.glim))["ids"]
                    theirs, their_end = llama_tokens(server, ids)
                    options = ["--temperature", "0", "--max-tokens", TOKENS, "--math", math, "--json"]
                    answer = json.loads(glim(["run", path, "--raw", "-p", prompt, *options], args.glim))
                    ours, our_end = answer["token_ids"], answer["finish_reason"] == "stop"
                    pairs = enumerate(zip(ours, theirs))
                    n = next((i for i, (a, (b, _)) in pairs if a != b), min(len(ours), len(theirs)))
                    if n == len(ours) == len(theirs) and our_end == their_end:
                        same += 1
                    elif n == len(theirs):
                        told.append(f"  {prompt!r}: the same for {n} tokens, then llama.cpp stops")
                    else:
                        told.append(f"  {prompt!r}: the same for {n} tokens, then llama.cpp's best is {theirs[n][1]:.4f} nats ahead")
                print(f"{mix}, {math}: {same} of {len(PROMPTS)} the same", *told, sep="\n", flush=True)
                del server


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["types", "greedy"])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--glim", required=True)
    parser.add_argument("--libraries")
    parser.add_argument("--text", default=Path(__file__).resolve().parents[2] / "assets/tiny-glm5/heldout.txt", type=Path)
    args = parser.parse_args()
    {"types": compare_types, "greedy": compare_greedy}[args.what](args)


if __name__ == "__main__":
    main()
