// The parts of the page that need no browser: the stream's parser, Markdown, an answer that grows, the request's body.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

const page = new URL("../../crates/server/src/web/page/", import.meta.url);
// The files are modules by how the page loads them; for Node, their type must be said.
const load = (name) => import(`data:text/javascript,${encodeURIComponent(readFileSync(new URL(name, page), "utf8"))}`);

const { EventParser } = await load("sse.js");
const { inline, parse } = await load("markdown.js");
const { Answer, assistant } = await load("answer.js");
const { DEFAULTS, readTools, requestBody } = await load("request.js");

test("events are the same however the stream is cut", () => {
  const stream = "data: a\n\n: ping\n\ndata: b\r\ndata:  c\r\n\r\nevent: x\rid: 1\rdata\r\rdata:é🦀\n\nretry: 5\n\ndata: cut off";
  const whole = ["a", "b\n c", "", "é🦀"];
  assert.deepEqual(new EventParser().push(stream), whole);
  for (let cut = 0; cut <= stream.length; cut += 1) {
    const parser = new EventParser();
    assert.deepEqual([...parser.push(stream.slice(0, cut)), ...parser.push(stream.slice(cut))], whole, `cut at ${cut}`);
  }
  const parser = new EventParser();
  assert.deepEqual([...stream].flatMap((c) => parser.push(c)), whole);
});

test("blocks", () => {
  const cases = [
    ["", []],
    ["a\nb\n\n\nc", [{ kind: "text", text: "a\nb" }, { kind: "text", text: "c" }]],
    ["# T #\ntext", [{ kind: "heading", level: 1, text: "T" }, { kind: "text", text: "text" }]],
    ["#no", [{ kind: "text", text: "#no" }]],
    ["```rust\nlet x = 1;\n\n# not a heading\n```\nend", [
      { kind: "code", lang: "rust", text: "let x = 1;\n\n# not a heading", open: false },
      { kind: "text", text: "end" },
    ]],
    // The shorter fence is content; what is not closed yet goes on to the end.
    ["````\n```\ninner", [{ kind: "code", lang: "", text: "```\ninner", open: true }]],
    ["~~~\n```\n~~~", [{ kind: "code", lang: "", text: "```", open: false }]],
    ["``` a `b` ```", [{ kind: "text", text: "``` a `b` ```" }]],
    ["- a\n  * b\n10) c", [
      { kind: "item", mark: "•", depth: 0, text: "a" },
      { kind: "item", mark: "•", depth: 1, text: "b" },
      { kind: "item", mark: "10)", depth: 0, text: "c" },
    ]],
    ["-no\n-", [{ kind: "text", text: "-no\n-" }]],
    ["<script>alert(1)</script>", [{ kind: "text", text: "<script>alert(1)</script>" }]],
  ];
  for (const [text, blocks] of cases) assert.deepEqual(parse(text), blocks, text);
});

test("spans", () => {
  const cases = [
    ["", []],
    ["a `b` **c**", [["text", "a "], ["code", "b"], ["text", " "], ["bold", "c"]]],
    ["`**x**`", [["code", "**x**"]]],
    ["`` a`b ``", [["code", "a`b"]]],
    ["2 ** 3 ** 4", [["text", "2 ** 3 ** 4"]]],
    ["**a `b` c**", [["bold", "a `b` c"]]],
    ["`open and **open", [["text", "`open and **open"]]],
  ];
  for (const [text, spans] of cases) {
    assert.deepEqual(inline(text).map(({ kind, text }) => [kind, text]), spans, text);
  }
});

test("a span is of at most a thousand characters", () => {
  for (const mark of ["**", "`"]) {
    assert.equal(inline(mark + "x".repeat(1000) + mark).length, 1);
    const [span, ...rest] = inline(mark + "x".repeat(1001) + mark);
    assert.deepEqual([span.kind, rest], ["text", []]);
  }
});

const chunk = (delta, more = {}) => ({ choices: [{ index: 0, delta, finish_reason: null, ...more }] });

test("chunks join to one message", () => {
  const message = assistant();
  const answer = new Answer(message, 1000);
  answer.add(chunk({ role: "assistant", content: "" }), 1100);
  assert.equal(answer.thinking, true);
  // Both names carry the same text: it counts once.
  answer.add(chunk({ reasoning_content: "so ", reasoning: "so " }), 1200);
  answer.add(chunk({ reasoning: "be it" }), 1700);
  answer.add(chunk({ content: "Hi" }), 1800);
  assert.equal(answer.thinking, false);
  answer.add(chunk({ tool_calls: [{ index: 0, id: "call_1", type: "function", function: { name: "f", arguments: "" } }] }), 1900);
  answer.add(chunk({ tool_calls: [{ index: 0, function: { arguments: '{"a":' } }] }), 2000);
  answer.add(chunk({ tool_calls: [{ index: 1, id: "call_2", function: { name: "g", arguments: "{}" } }] }), 2100);
  answer.add(chunk({ tool_calls: [{ index: 0, function: { arguments: "1}" } }] }), 2150);
  answer.add(chunk({}, { finish_reason: "tool_calls" }), 2200);
  answer.add({
    choices: [],
    usage: { prompt_tokens: 9, completion_tokens: 11, prompt_tokens_details: { cached_tokens: 4 }, completion_tokens_details: { reasoning_tokens: 3 } },
  }, 2200);
  assert.deepEqual(message, {
    role: "assistant",
    content: "Hi",
    reasoning: "so be it",
    calls: [{ id: "call_1", name: "f", arguments: '{"a":1}' }, { id: "call_2", name: "g", arguments: "{}" }],
    finish: "tool_calls",
    error: null,
    stats: null,
  });
  assert.deepEqual(answer.stats(2200), {
    tokens: 11, prompt: 9, cached: 4, thought: 3, thoughtFor: 0.5, firstAfter: 0.2, rate: 10,
  });
});

test("the rate is that of the last moments", () => {
  const answer = new Answer(assistant(), 0);
  assert.equal(answer.rate, null);
  const add = (tokens, now) => answer.add({ ...chunk({ content: "x" }), usage: { completion_tokens: tokens } }, now);
  add(1, 1000);
  assert.equal(answer.rate, null);
  add(11, 2000);
  assert.equal(answer.rate, 10);
  add(211, 4000);
  assert.equal(answer.rate, 100);
});

test("a setting left empty is not sent", () => {
  assert.deepEqual(requestBody([{ role: "user", content: "hi" }], { ...DEFAULTS }, null), {
    messages: [{ role: "user", content: "hi" }],
    stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true },
  });
});

test("settings become fields", () => {
  const settings = {
    ...DEFAULTS, system: "Be brief.", thinking: "off", effort: "high", temperature: "0", top_k: "40", seed: "-7", max_tokens: "16",
    tools: '{"name": "f"}', tool_choice: "required",
  };
  const body = requestBody([{ role: "user", content: "hi" }], settings, "m");
  assert.deepEqual(body.messages[0], { role: "system", content: "Be brief." });
  delete body.messages;
  delete body.stream;
  delete body.stream_options;
  assert.deepEqual(body, {
    model: "m",
    temperature: 0,
    top_k: 40,
    seed: -7,
    max_tokens: 16,
    chat_template_kwargs: { enable_thinking: false },
    reasoning_effort: "high",
    tools: [{ type: "function", function: { name: "f" } }],
    tool_choice: "required",
  });
});

test("what was cut off is not sent as if it were whole", () => {
  const cut = { ...assistant(), content: "", calls: [{ id: "call_1", name: "f", arguments: '{"a": ' }] };
  const failed = { ...assistant(), error: { message: "full" } };
  const whole = { ...assistant(), reasoning: "hm", calls: [{ id: "call_2", name: "g", arguments: '{"n": 12345678901234567890}' }] };
  const { messages } = requestBody(
    [{ role: "user", content: "hi" }, cut, failed, whole, { role: "tool", tool_call_id: "call_2", content: "ok" }],
    DEFAULTS,
    null,
  );
  assert.deepEqual(messages, [
    { role: "user", content: "hi" },
    {
      role: "assistant",
      content: null,
      reasoning_content: "hm",
      tool_calls: [{ id: "call_2", type: "function", function: { name: "g", arguments: '{"n": 12345678901234567890}' } }],
    },
    { role: "tool", tool_call_id: "call_2", content: "ok" },
  ]);
});

test("tools are read in the forms that people paste, and what is wrong is said", () => {
  assert.deepEqual(readTools("  "), []);
  assert.equal(readTools('[{"type":"function","function":{"name":"f"}},{"name":"g"}]')[1].function.name, "g");
  assert.throws(() => readTools("["), /^Error: Not JSON: /);
  assert.throws(() => readTools("[{}]"), /Tool 1 has no name/);
  assert.throws(() => readTools("[null]"), /Tool 1 has no name/);
  assert.throws(() => readTools("7"), /Tool 1 has no name/);
});
