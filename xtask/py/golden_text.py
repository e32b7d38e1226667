"""Makes the goldens of glim-text with the reference implementations: `tokenizers` and `jinja2`.

    pip install tokenizers==0.23.3 jinja2==3.1.6 regex==2026.11.19
    python xtask/py/golden_text.py encode                # crates/text/tests/golden/encode.json
    python xtask/py/golden_text.py pretok                # …/pretok.json: how the pre-tokenizers cut
    python xtask/py/golden_text.py features              # …/features.json: small templates and what they print
    python xtask/py/golden_text.py tiny                  # …/tiny_template.json: the built-in template, whole texts
    python xtask/py/golden_text.py fetch-templates DIR   # the two GLM templates out of an sdist on PyPI, by pip
    python xtask/py/golden_text.py templates DIR         # …/templates.json: SHA-256 of what they print
    python xtask/py/golden_text.py fetch-vocabs DIR      # vocabularies and test vectors of llama.cpp, from that sdist

With `--check` nothing is written; exit code 1 if a file is not what would be written. The two `fetch-…` need only pip
and Python's own library. What they fetch is read, never copied into the repository.
"""

import argparse
import copy
import hashlib
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "crates" / "text" / "tests" / "golden"
TINY = ROOT / "assets" / "odd-glm52"

SDIST = "llama-cpp-python==0.3.36"
TEMPLATE_FOLDER = "vendor/llama.cpp/models/templates/"
TEMPLATES = {
    "GLM-4.6.jinja": "8804f445c761b9f259e3c1126a579d481a22ca09b2a3d32bcc4eb91bc36e0301",
    "GLM-4.7-Flash.jinja": "d63ad536c3c81880043e22ec7fd08db42b4d8fb7c89c7138bc562bfa25281375",
}
VOCAB_FOLDER = "vendor/llama.cpp/models/"
# The vocabulary and the ids of each text; the texts are the same for all.
VOCABS = {
    "ggml-vocab-gpt-2.gguf.inp": "be0a11f7071f0c67d3053a2d377d8f35f0dbcb77ff11a60300fb57d36b477cf0",
    "ggml-vocab-llama-bpe.gguf": "97272e430d53bc7688f52d5e0ad8ea8f163ede9f1bbd1694feaa504797d5d96e",
    "ggml-vocab-llama-bpe.gguf.out": "118abf2034a197fc5c9dec5204dfdeee7004c7c70952ae577f66b99e212fab9b",
    "ggml-vocab-qwen2.gguf": "44c2f46b715f585c6ab513970e8a006bfa5badd6108560054921cf598d154d8c",
    "ggml-vocab-qwen2.gguf.out": "de785bb305cc6fa9d43908ed5da337f853c0b79e971348fcfb9f0915a39c5363",
    "ggml-vocab-deepseek-llm.gguf": "867f77537b54565f0d81d508c04edc41aa1d4ffc1a92745f225b4c1b02755f76",
    "ggml-vocab-deepseek-llm.gguf.out": "87cfc1a8a9a7ef25d04d28c26a67b6a620af7be938c9bd0feeb4d319b9302832",
    "ggml-vocab-gpt-2.gguf": "cedc56ca6e2e89f63e781696d1fd76b4b1d49e6720dee86463e915f6e90016ac",
    "ggml-vocab-gpt-2.gguf.out": "48e8c4cb3ad5c37915b225f872222567c1c4dd4d66951aa53460c8d152ff6d60",
    "ggml-vocab-starcoder.gguf": "fedb892b4e1bd3c1f2fcdae356440b14fb458f4264d586e5c987ed93df4e174d",
    "ggml-vocab-starcoder.gguf.out": "3ef12183c57ad076f9defd8e5eb454f509f5f0865cad35646abb4c4b2d2c5764",
    "ggml-vocab-refact.gguf": "ac3ceda902fed91ccf74312b305d9b86c37e4f8e35fa9cc6ef3ce34fca7d4678",
    "ggml-vocab-refact.gguf.out": "c7e5c1c5dc1dfd3e0d56576bf699d2aca0b760b80779523ea9d323aad6cd1b88",
}

# Plain text; added tokens in it are not matched.
TEXTS = [
    "",
    " ",
    "  leading",
    "trailing  ",
    "a",
    "Hello, world!",
    "12345",
    "1234567890 12 3",
    "3.14159e-10",
    "(bar",
    "(bar) [baz] {qux}",
    "foo(bar)",
    "I'm you're he's we'll they've I'd can't",
    "I'M YOU'RE HE'S WE'LL THEY'VE I'D CAN'T",
    "'s 'S 'ſ 'x ''s",
    "don’t",
    "tabs\tand\t\ttabs",
    "line\nline\n\nline",
    "line\r\nline\r\n\r\n",
    "   \n   \n",
    " \n",
    "\n ",
    "a  b   c    d",
    "a \n b",
    "x\u00a0y\u2003z\u3000w",
    "x \u00a0",
    "\x0b\x0c\x1c\x1d\x85\u2028\u2029",
    "a\x1cb\u200bc\ufeffd",
    "def f(x):\n    return x**2  # square\n\n\nprint(f(3))",
    "fn main() {\n\tprintln!(\"{}\", 1 << 3);\n}\n",
    "<div class=\"a\">&amp;</div>",
    "{\"key\": [1, 2.5, null, true], \"k2\": \"v\"}",
    "https://example.org/a/b?c=d&e=f#g",
    "user@example.org",
    "!!!???...---***",
    " !!! \n\n",
    "=====\n-----\n",
    "snake_case camelCase PascalCase SCREAMING_CASE kebab-case",
    "naïve café résumé",
    "e\u0301 n\u0303 a\u0308\u0323",
    "ÅÄÖ åäö ß ẞ İı ǅ",
    "Привет, мир!",
    "Γειά σου Κόσμε",
    "你好，世界！今天天气怎么样？",
    "こんにちは、世界。カタカナ ﾊﾝｶｸ",
    "안녕하세요 세계",
    "مرحبا بالعالم ١٢٣٤",
    "שלום עולם",
    "हिन्दी में नमस्ते १२३",
    "ไทยภาษา",
    "😀😃 👩‍👩‍👧‍👦 🇩🇪 👍🏽",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛𝟜",
    "½ ² ① Ⅷ ㊿",
    "∑∫√∞ ≤ ≥ ≠ → ⇒",
    "a\u0000b\u0001c",
    "\U0010ffff\ufdd0\ue000",
    "\ufffd",
    "<|user|>Hello<|assistant|><think></think>",
    "[gMASK]<sop>/nothink </think><tool_call>",
    "Ġ Ċ âĢĶ",
    "supercalifragilisticexpialidocious antidisestablishmentarianism",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    " " * 100 + "x" + "\n" * 50 + "y",
    "The quick brown fox jumps over the lazy dog. " * 5,
]
# More plain text, for the pre-tokenizers: what one of them cuts unlike the others.
PRETOK_TEXTS = [
    "x1y22z333w4444 ²³ ١٢٣٤٥",
    "#include <stdio.h> //comment @user $var -flag",
    "中文abc漢字123かなカナ한글ไทย",
    "   中文   abc   ",
    "\tabc \u3000中 \u2003。",
    "A\u212aB\u2126C\u1f71D ǅ ﬁ Ａｂ 𐐀𐐨 ʔ",
    "«quoted» “curly” ‘single’ …—– ，。！？【】",
    "a\u0301\u0302b \u0301c 1\u20e3",
    "€5 £6 ¥7 +8 =9 <10> ^11 |12 ~13 `14",
    "\r\n\r\n  \r\n \t\n\n end \n",
]
# Template text; added tokens in it are matched.
TEMPLATE_TEXTS = [
    "[gMASK]<sop><|system|>Be terse.<|user|>Hello<|assistant|><think>",
    "<think></think>Nice to meet you, Mia!<|user|>",
    "  <|user|>  <|user|>\n",
    "<|user|<|user|>|>",
    "x/nothinky",
    "<tool_call>f<arg_key>k</arg_key><arg_value>12345</arg_value></tool_call><|observation|>",
    "<<think>><think",
]

# What the small templates see.
CONTEXT = {
    "messages": [
        {"role": "user", "content": "  a</think> b  c \n"},
        {"role": "assistant", "content": "x,y,,z", "tool_calls": [{"items": 1, "b": [1.0, 2.50, -0.0, 1e16, 1e-5, 123456789.125]}]},
    ],
    "text": "<b>\"it's\"</b> & é 😀\u2028\x7f\x01/\\",
    "big": 18446744073709551615,
    "nested": {"z": {"b": 1, "a": [True, None, {}, []]}, "a": "ü", "m": -3},
    "lines": "one\r\ntwo\x0bthree\u2028four\n",
    "blank": " \x1c\u00a0x\u3000\x1f ",
    "none": None,
    "flag": True,
}
FEATURES = [
    "{{ text }}",
    "{{ text | tojson }}",
    "{{ text | tojson(ensure_ascii=True) }}",
    "{{ text | tojson(ensure_ascii=False) }}",
    "{{ nested | tojson }}",
    "{{ nested | tojson(indent=2) }}",
    "{{ nested | tojson(indent=2, sort_keys=True) }}",
    "{{ nested | tojson(False, 4) }}",
    "{{ nested | tojson(separators=(',', ':')) }}",
    "{{ nested | tojson(sort_keys=true, ensure_ascii=true) }}",
    "{{ nested | tojson(indent='\t') }}",
    "{{ messages | tojson }}",
    "{{ [1, 'a', none, 1.5, (1, 2), {1: 2, true: 3, none: 4}] | tojson }}",
    "{{ big | tojson }} {{ big }} {{ big + 1 }}",
    "{{ messages }}",
    "{{ nested }} {{ nested.z }} {{ none }} {{ flag }} {{ not flag }} {{ missing }}",
    "{{ [1.0, 1e22, 0.1, 'a\\'b', \"c\\\"d'\", 'é\n\x01'] }}",
    "{{ 1.0 }} {{ 3 / 2 }} {{ 4 // 3 }} {{ 7 % 4 }} {{ 2 ** 10 }} {{ 1e16 }}",
    "{{ (1, 2) }} {{ (1,) }} {{ [] }} {{ {} }}",
    "{{ 'a' ~ 1 ~ none ~ true ~ missing }}",
    "{% for m in messages %}{{ loop.index0 }}{{ loop.index }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex0 }} {% endfor %}",
    "{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
    "{% for m in messages %}{% if m.role == 'user' %}{% continue %}{% endif %}{{ m.role }}{% endfor %}",
    "{% for k, v in messages[1].tool_calls[0].items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in nested | items %}{{ k }};{% endfor %}{{ nested.keys() | list }}{{ nested.values() | list }}",
    "{{ nested.get('a') }}{{ nested.get('q') }}{{ nested.get('q', 5) }}{{ nested['a'] }}",
    "{% set ns = namespace(n=0, s='') %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% set ns.s = ns.s + m.role[0] %}{% endfor %}{{ ns.n }}{{ ns.s }}",
    "{% macro f(a, b='B') %}[{{ a }}|{{ b }}]{% endmacro %}{{ f(1) }}{{ f('x', b=2) }}",
    "{{ messages[0].content.split('</think>') }}{{ messages[0].content.split('</think>')[-1].strip() }}",
    "{{ messages[0].content.split() }}{{ messages[0].content.split(none, 1) }}{{ messages[0].content.rsplit(none, 1) }}{{ 'a b '.split(none, 1) }}",
    "{{ messages[1].content.split(',') }}{{ messages[1].content.split(',', 1) }}{{ messages[1].content.rsplit(',', 1) }}{{ messages[1].content.split(sep=',', maxsplit=2) }}",
    "{{ ''.split() }}{{ ''.split(',') }}{{ '  '.split() }}{{ 'aXXbXX'.split('XX') }}{{ 'aaa'.split('aa') }}{{ 'aaa'.rsplit('aa') }}",
    "[{{ blank.strip() }}][{{ blank.lstrip() }}][{{ blank.rstrip() }}][{{ blank | trim }}]",
    "[{{ 'xxaxx'.strip('x') }}][{{ 'xyaxy'.lstrip('yx') }}][{{ 'axyx'.rstrip('x') }}]",
    "{{ lines.splitlines() }}{{ lines.splitlines(true) }}",
    "{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith(('x', 'bc')) }}{{ 'abc'.startswith('') }}{{ 'b' in 'abc' }}{{ 'q' not in nested }}{{ 'a' in nested }}",
    "{{ 'a-b-c'.partition('-') }}{{ 'a-b-c'.rpartition('-') }}{{ 'abc'.partition('-') }}{{ 'abc'.removeprefix('a') }}{{ 'abc'.removesuffix('bc') }}",
    "{{ 'aBc'.upper() }}{{ 'aBc'.lower() }}{{ 'abc def'.title() }}{{ 'abC'.capitalize() }}{{ 'a.b'.replace('.', '::') }}{{ 'abcabc'.find('c') }}{{ 'aa'.count('a') }}{{ ', '.join(['a', 'b']) }}",
    "{{ '12'.isdigit() }}{{ 'a1'.isalnum() }}{{ 'ab'.isalpha() }}{{ 'AB'.isupper() }}{{ ' '.isspace() }}",
    "{{ messages[::-1][0].role }}{{ messages[-1].role }}{{ 'abcdef'[1:-1] }}{{ messages[:1] | length }}{{ 'abc' | length }}",
    "{{ messages is iterable }}{{ nested is mapping }}{{ text is string }}{{ text is iterable }}{{ none is none }}{{ missing is defined }}{{ 1 is number }}{{ 1.5 is float }}{{ 1 is integer }}{{ flag is boolean }}{{ flag is true }}{{ none is iterable }}{{ 1 is iterable }}{{ messages is sequence }}{{ text is sequence }}{{ nested is sequence }}{{ 1 is sequence }}{{ missing is iterable }}",
    "{{ messages | map(attribute='role') | join(', ') }}{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ messages | rejectattr('tool_calls', 'defined') | list | length }}",
    "{{ missing | default('d') }}{{ '' | default('d', true) }}{{ messages | first | tojson }}{{ (messages | last).role }}{{ nested | string }}{{ 1.0 | string }}",
    "{{ 'yes' if flag else 'no' }}{{ 'yes' if missing }}{{ missing or 'or' }}{{ none or {} }}{{ 0 and 1 }}",
    "  {%- if flag %}\n  a\n  {%- endif %}\n  {% if flag %}\n    b\n    {% endif %}\nc {%- set x = 1 -%}  \n d\n",
    "\n{% for i in range(3) %}\n  {{ i }}\n{% endfor %}\n\n",
    "a\r\n{% if flag %}\r\nb\r\n{% endif %}\r\nc\r\n",
    "{# comment #}\na{# b -#}   c\n  {#- d #} e",
    "{% raw %}{{ x }}{% endraw %}{{ '{{' }}",
    "{% set x %}  block {{ flag }}  {% endset %}[{{ x }}]",
    "a{%- generation -%} b {% endgeneration %} c{% set y = 1 %}{% generation %}{% set y = 2 %}{{ y }}{% endgeneration %}{{ y }}",
    "{% for i in [3, 1, 2] | sort %}{{ i }}{% endfor %}{{ [1, 2, 3] | sum }}{{ [1, 2] + [3] }}{{ 'ab' * 2 }}",
    "{{ dict(a=1, b='x') | tojson }}{{ {'b': 1, 'a': 2} | dictsort }}{{ nested | length }}",
    "{% for a in [1, 2] recursive %}{{ a }}{% else %}none{% endfor %}{% for a in [] %}{% else %}none{% endfor %}",
    "{% if messages[0].role == 'user' and messages[0]['content'] is string %}{{ messages[0].nope is defined }}{{ messages[0].nope is none }}{% endif %}",
    "{{ '%s-%d' | format('a', 3) }}{{ 'x{}y'.format(1) }}{{ '%.2f' | format(1.5) }}{{ 'a\\n\\tb\\\\' }}",
    "{% filter upper %}abc{% endfilter %}{% with a = 1 %}{{ a }}{% endwith %}{{ a }}",
]


def write(name, value, check):
    """Writes a golden, or compares it with what is there."""
    path = GOLDEN / name
    text = json.dumps(value, ensure_ascii=True, indent=1) + "\n"
    # Ids on one line, and the visible mark of a cut as itself: half the size, and easier to read.
    text = re.sub(r"\[\n\s*(-?\d+(?:,\s+-?\d+)*)\s+\]", lambda ids: "[" + "".join(ids[1].split()) + "]", text)
    text = text.replace(json.dumps(CUT)[1:-1], CUT)
    if not check:
        path.write_text(text, encoding="utf-8")
    elif not path.exists() or path.read_text(encoding="utf-8") != text:
        sys.exit(f"{path} is not what this script writes")
    print(f"{path.name}: {len(text)} bytes")


def versions(*names):
    from importlib.metadata import version

    return {name: version(name) for name in names}


def encode(check):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(TINY / "tokenizer.json"))

    def plain(text):
        # The pipeline of the library without its search for added tokens.
        pieces = tokenizer.pre_tokenizer.pre_tokenize_str(text) if text else []
        return [token.id for piece, _ in pieces for token in tokenizer.model.tokenize(piece)]

    def template(text):
        return tokenizer.encode(text, add_special_tokens=False).ids

    golden = {
        "versions": versions("tokenizers"),
        "text": [{"text": text, "ids": plain(text)} for text in TEXTS],
        "template": [{"text": text, "ids": template(text)} for text in TEMPLATE_TEXTS],
    }
    # Where no added token occurs, the library as a whole must agree.
    added = [token["content"] for token in json.loads((TINY / "tokenizer.json").read_text())["added_tokens"]]
    for case in golden["text"]:
        if not any(token in case["text"] for token in added):
            assert case["ids"] == template(case["text"]), case
    write("encode.json", golden, check)


CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CASED = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿ\u0386\u0388-\u038a\u038c\u038e-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚ\u1e00-\u1f15\u1f18-\u1f1d"
    "\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3"
    "\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffcℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ"
    "𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)


def split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def byte_level(use_regex):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


# The pre-tokenizers as the published `tokenizer.json` write them: of Llama 3 (which GLM shares), Qwen 2, DeepSeek LLM,
# DeepSeek V3, GPT-2, SmolLM.
PRETOKENIZERS = {
    "llama-bpe": [split(rf"{CONTRACTIONS}|{LETTERS}|\p{{N}}{{1,3}}|{REST}"), byte_level(False)],
    "qwen2": [split(rf"{CONTRACTIONS}|{LETTERS}|\p{{N}}|{REST}"), byte_level(False)],
    "deepseek-llm": [
        split("[\r\n]"),
        split(rf"\s?[{CASED}]+"),
        split("\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+"),
        split(r"\s+$"),
        split("[一-龥\u0800-一\uac00-\ud7ff]+"),
        {"type": "Digits", "individual_digits": False},
        byte_level(False),
    ],
    "deepseek-v3": [
        split(r"\p{N}{1,3}"),
        split("[一-龥\u3040-ゟ゠-ヿ]+"),
        split(
            "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*"
            "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
        ),
        byte_level(False),
    ],
    "gpt-2": [byte_level(True)],
    "smollm": [{"type": "Digits", "individual_digits": True}, byte_level(True)],
}
# Marks where a text is cut.
CUT = "\N{SYMBOL FOR UNIT SEPARATOR}"


def cut_with_regex(parts, text):
    """What a chain of cuts means, with another regular-expression engine."""
    import regex

    pieces = [text] if text else []
    for part in parts:
        match part["type"]:
            case "Split":
                pattern = part["pattern"]["Regex"]
            case "Digits":
                pattern = r"\p{N}" if part["individual_digits"] else r"\p{N}+"
            case "ByteLevel" if part["use_regex"]:
                pattern = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
            case _:
                continue
        cuts = regex.compile(f"({pattern})")
        pieces = [piece for whole in pieces for piece in cuts.split(whole) if piece]
    return pieces


def pretok(check):
    from tokenizers import Tokenizer
    from tokenizers.models import BPE

    def chain_of(parts):
        # The library reads a pre-tokenizer only as a part of a tokenizer.
        whole = json.loads(Tokenizer(BPE()).to_str())
        whole["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": parts}
        return Tokenizer.from_str(json.dumps(whole)).pre_tokenizer

    golden = {"versions": versions("tokenizers", "regex"), "cut": CUT, "texts": {}}
    for name, parts in PRETOKENIZERS.items():
        chain = chain_of(parts)
        golden["texts"][name] = []
        for text in TEXTS + PRETOK_TEXTS:
            assert CUT not in text
            pieces = [text[start:end] for _, (start, end) in chain.pre_tokenize_str(text)] if text else []
            assert pieces == cut_with_regex(parts, text), (name, text)
            golden["texts"][name].append(CUT.join(pieces))
    write("pretok.json", golden, check)


def compile_template(source):
    """The template as transformers' `_compile_jinja_template` compiles it (utils/chat_template_utils.py, 5.24)."""
    import jinja2
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(jinja2.ext.Extension):
        """`{% generation %}`, whose only effect on the text is a scope of its own."""

        tags = {"generation"}

        def parse(self, parser):
            lineno = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(lineno)

        def _body(self, caller):
            return caller()

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    return environment.from_string(source)


def prepare(messages):
    """What a server does to messages before rendering: arguments become objects, an assistant's null content text."""
    messages = copy.deepcopy(messages)
    for message in messages:
        if message["role"] == "assistant" and message.get("content", "") is None:
            message["content"] = ""
        for call in message.get("tool_calls", []):
            function = call.get("function", call)
            if isinstance(function["arguments"], str):
                function["arguments"] = json.loads(function["arguments"] or "{}")
    return messages


def render_all(source):
    template = compile_template(source)
    for conversation in json.loads((GOLDEN / "conversations.json").read_text()):
        text = template.render(
            messages=prepare(conversation["messages"]),
            tools=conversation.get("tools"),
            documents=None,
            add_generation_prompt=conversation.get("add_generation_prompt", True),
            **conversation.get("kwargs", {}),
        )
        yield conversation["name"], text


def features(check):
    cases = [{"template": source, "text": compile_template(source).render(**copy.deepcopy(CONTEXT))} for source in FEATURES]
    write("features.json", {"versions": versions("jinja2"), "context": CONTEXT, "cases": cases}, check)


def tiny(check):
    source = (TINY / "chat_template.jinja").read_text()
    texts = [{"name": name, "text": text} for name, text in render_all(source)]
    write("tiny_template.json", {"versions": versions("jinja2"), "conversations": texts}, check)


def fetch(folder, sdist_folder, files):
    """Lets pip fetch the sdist (pip also prepares its metadata, which is not used) and takes files out."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temp:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--no-binary", SDIST.split("==")[0], "--dest", temp, SDIST]
        subprocess.run(command, check=True)
        (archive,) = Path(temp).glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            top = tar.next().name.split("/")[0]
            for name, expected in files.items():
                data = tar.extractfile(f"{top}/{sdist_folder}{name}").read()
                found = hashlib.sha256(data).hexdigest()
                if found != expected:
                    sys.exit(f"{name} in {archive.name} has SHA-256 {found}, expected {expected}")
                (folder / name).write_bytes(data)
                print(folder / name)


def templates(folder, check):
    golden = {"versions": versions("jinja2"), "source": SDIST, "templates": []}
    for name, expected in TEMPLATES.items():
        data = (folder / name).read_bytes()
        if hashlib.sha256(data).hexdigest() != expected:
            sys.exit(f"{folder / name} is not the template that {SDIST} carries")
        conversations = [
            {"name": title, "bytes": len(text.encode()), "sha256": hashlib.sha256(text.encode()).hexdigest()}
            for title, text in render_all(data.decode())
        ]
        golden["templates"].append({"file": name, "sha256": expected, "conversations": conversations})
    write("templates.json", golden, check)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ["encode", "pretok", "features", "tiny"]:
        commands.add_parser(name)
    for name in ["fetch-templates", "templates", "fetch-vocabs"]:
        commands.add_parser(name).add_argument("dir", type=Path)
    args = parser.parse_args()
    match args.command:
        case "encode":
            encode(args.check)
        case "pretok":
            pretok(args.check)
        case "features":
            features(args.check)
        case "tiny":
            tiny(args.check)
        case "fetch-templates":
            fetch(args.dir, TEMPLATE_FOLDER, TEMPLATES)
        case "fetch-vocabs":
            fetch(args.dir, VOCAB_FOLDER, VOCABS)
        case "templates":
            templates(args.dir, args.check)


if __name__ == "__main__":
    main()
