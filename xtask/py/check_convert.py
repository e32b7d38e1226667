#!/usr/bin/env python3
"""Whether other tools read what `glim convert` writes. Run by hand; needs what each command names.

    check_convert.py transformers ORIGINAL CONVERTED
        Loads two Hugging Face folders in float32 (torch, transformers): prints the largest difference of their logits and
        of their tokens over a prompt. 0 if the weights are the same numbers.
    check_convert.py llama FILE.gguf ...
        Loads each file in llama.cpp (xllamacpp) and continues a prompt greedily: prints the text, which must be that of the
        first file.

Last run with transformers 5.17.0, torch 2.11.0 and xllamacpp 2026.10.11549.
"""
import sys

PROMPT = "Once upon a time, there was a little fox who lived in the forest. One day, the fox"
NEW_TOKENS = 48


def with_transformers(original, converted):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    logits, tokens = [], []
    for folder in (original, converted):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
        print(f"{folder}: {type(model).__name__}, {sum(p.numel() for p in model.parameters())} parameters, {info}")
        ids = tokenizer(PROMPT, return_tensors="pt").input_ids
        chat = [{"role": "user", "content": "What is 27 + 58? <|user|> Ünïcödé"}]
        rendered = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        tokens.append((ids.tolist(), tokenizer(rendered).input_ids))
        with torch.no_grad():
            logits.append(model.eval()(ids).logits)
    difference = (logits[0] - logits[1]).abs().max().item()
    print(f"largest difference of {logits[0].numel()} logits: {difference}; same tokens: {tokens[0] == tokens[1]}")
    return difference == 0 and tokens[0] == tokens[1]


def with_llama(files):
    import json

    import xllamacpp

    texts = []
    for file in files:
        params = xllamacpp.CommonParams()
        params.model.path = file
        params.n_ctx, params.n_parallel, params.n_predict = 512, 1, NEW_TOKENS
        params.warmup = False
        server = xllamacpp.Server(params)
        request = {"prompt": PROMPT, "max_tokens": NEW_TOKENS, "temperature": 0, "top_k": 1, "return_tokens": True}
        answer = server.handle_completions(request)
        answer = json.loads(answer) if isinstance(answer, (str, bytes)) else answer
        texts.append(answer["choices"][0]["text"])
        print(f"{file}: {texts[-1]!r}")
        del server
    same = all(text == texts[0] for text in texts)
    print(f"same text: {same}")
    return same and texts[0] != ""


if __name__ == "__main__":
    command, *paths = sys.argv[1:]
    ok = with_transformers(*paths) if command == "transformers" else with_llama(paths)
    sys.exit(not ok)
