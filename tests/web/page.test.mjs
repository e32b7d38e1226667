// The built-in page as people use it: in headless Chromium, against the real binary and its built-in model. Where the model
// would not say what a test needs, the test answers in the server's place, in its form.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { browser as launch, open, serve } from "./server.mjs";

const DESKTOP = { viewport: { width: 1280, height: 800 } };
const PHONE = { viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true, deviceScaleFactor: 2 };
const CHAT = "**/v1/chat/completions";

let server;
let chromium;

before(async () => {
  [server, chromium] = await Promise.all([serve(), launch()]);
});

after(async () => {
  await chromium?.close();
  assert.equal(await server?.stop(), 0, "exit code after SIGTERM");
});

/** A test with a page of its own that must end without an error, a warning or a request to anybody else. */
function onPage(name, options, body) {
  test(name, async () => {
    const { page, wrong, context } = await open(chromium, server.url, options);
    try {
      await body(page, wrong);
      assert.deepEqual(wrong, []);
    } finally {
      await context.close();
    }
  });
}

async function ask(page, text) {
  await page.fill("#box", text);
  await page.click("#send");
}

const answered = (page, n = 1) => page.waitForFunction(
  (n) => !document.body.classList.contains("busy") && document.querySelectorAll("article.assistant").length === n,
  n,
);

/** A stream in the server's form that ends by itself. */
const stream = (...deltas) => ({
  contentType: "text/event-stream",
  body: [...deltas.map((delta) => ({ choices: [{ index: 0, delta, finish_reason: null }] })), { choices: [{ index: 0, delta: {}, finish_reason: "stop" }] }]
    .map((chunk) => `data: ${JSON.stringify(chunk)}\n\n`).concat("data: [DONE]\n\n").join(""),
});

/** Lets the server answer as long as it can. */
const endlessly = (page) => page.route(CHAT, (route) => route.continue({
  postData: JSON.stringify({ ...route.request().postDataJSON(), ignore_eos: true }),
}));

onPage("a question is answered, its reasoning is folded, and numbers stand below", DESKTOP, async (page) => {
  await page.click("#panel-open");
  await page.fill("[name=temperature]", "0");
  await ask(page, "What is 27 + 58?");
  await answered(page);
  assert.equal(await page.innerText(".assistant .prose"), "85");
  assert.match(await page.innerText(".assistant summary"), /^Thought/);
  assert.equal(await page.isVisible(".thoughts"), false);
  await page.click(".assistant summary");
  assert.equal(await page.innerText(".thoughts"), "27 + 58: 20 + 50 = 70, 7 + 8 = 15, so 85.");
  assert.match(await page.innerText(".stats"), /^\d+ tokens · [\d.]+ tokens\/s · first after .+ · prompt \d+/);
  assert.equal(await page.innerText("#announce"), "85");

  await ask(page, "What is 27 + 58?");
  await answered(page, 2);
  assert.equal(await page.innerText(".assistant >> nth=1 >> .prose"), "85");
  await page.waitForFunction(() => /Cache in use/.test(document.getElementById("server").textContent));
});

onPage("an answer comes in pieces, and Escape stops it", DESKTOP, async (page) => {
  await endlessly(page);
  await ask(page, "Write a short poem.");
  const length = () => page.locator(".assistant .prose").innerText().then((text) => text.length);
  await page.waitForFunction(() => document.querySelector(".assistant .prose")?.textContent.length > 10);
  const early = await length();
  await page.waitForFunction((early) => document.querySelector(".assistant .prose").textContent.length > early + 10, early);
  assert.match(await page.innerText("#rate"), /tokens/);
  assert.equal(await page.isVisible("#send"), false);
  await page.keyboard.press("Escape");
  await answered(page);
  assert.match(await page.innerText(".stats"), /stopped by you$/);
  const metrics = async () => (await (await fetch(`${server.url}metrics`)).text()).match(/^vllm:num_requests_running.* (\d+)/m)[1];
  while ((await metrics()) !== "0") await new Promise((resolve) => setTimeout(resolve, 50));

  // Half an answer stays, and one can go on from it.
  await page.unroute(CHAT);
  await ask(page, "What is 27 + 58?");
  await answered(page, 2);
});

onPage("everything works with the keyboard alone", DESKTOP, async (page) => {
  const focused = () => page.evaluate(() => document.activeElement.id || document.activeElement.textContent);
  assert.equal(await focused(), "box");
  await page.keyboard.type("What is");
  await page.keyboard.press("Shift+Enter");
  await page.keyboard.type("27 + 58?");
  await page.keyboard.press("Enter");
  await answered(page);
  assert.equal(await page.innerText(".user .text"), "What is\n27 + 58?");
  assert.equal(await focused(), "box");

  // Up from the empty box edits what was said.
  await page.keyboard.press("ArrowUp");
  assert.equal(await page.inputValue(".editor textarea"), "What is\n27 + 58?");
  await page.keyboard.press("Escape");
  assert.equal(await page.locator(".editor").count(), 0);
  await page.keyboard.press("ArrowUp");
  await page.keyboard.press("ControlOrMeta+a");
  await page.keyboard.type("Write a short poem.");
  await page.keyboard.press("Enter");
  await answered(page);
  assert.equal(await page.innerText(".user .text"), "Write a short poem.");

  // From the top: each control is reached in the order of sight, and shows that it is.
  await page.focus(".skip");
  const order = [await focused()];
  for (let n = 0; n < 12 && order.at(-1) !== "send"; n += 1) {
    await page.keyboard.press("Tab");
    order.push(await focused());
    const outline = await page.evaluate(() => getComputedStyle(document.activeElement.id === "box" ? document.getElementById("composer") : document.activeElement).outlineStyle);
    if (order.at(-1) !== "box") assert.notEqual(outline, "none", order.at(-1));
  }
  const wanted = ["To the message box", "clear", "panel-open", "Copy", "Edit", "Copy", "Regenerate", "box", "send"];
  assert.deepEqual(order.filter((name) => wanted.includes(name)), wanted);

  // The panel opens, takes the focus, and gives it back.
  await page.focus("#panel-open");
  await page.keyboard.press("Enter");
  assert.equal(await focused(), "panel-close");
  await page.keyboard.press("Tab");
  await page.keyboard.type("Be brief.");
  await page.keyboard.press("Escape");
  assert.equal(await page.isVisible("#panel"), false);
  assert.equal(await focused(), "panel-open");
});

onPage("a tool is called with typed arguments, and its result goes on", DESKTOP, async (page) => {
  await page.click("#panel-open");
  await page.fill("[name=temperature]", "0");
  await page.fill("#tools", "[{");
  assert.match(await page.innerText("#tools-note"), /^Not JSON/);
  await page.click("#tools-example");
  assert.equal(await page.innerText("#tools-note"), "Offered: get_weather");
  await ask(page, "What is the weather in Oslo?");
  await answered(page);
  assert.equal(await page.innerText(".call .name"), "get_weather");
  assert.equal(await page.innerText(".call dt code"), "city");
  assert.equal(await page.innerText(".call dt .type"), "string");
  assert.equal(await page.innerText(".call dd"), "Oslo");
  await page.fill(".call textarea", '{"weather": "rain", "temperature": 9}');
  await page.keyboard.press("Enter");
  await answered(page, 2);
  assert.equal(await page.innerText(".call .state"), "answered");
  assert.match(await page.innerText(".assistant >> nth=1 >> .prose"), /Oslo/);
});

onPage("arguments keep the digits and the types that the model wrote", DESKTOP, async (page) => {
  const call = { index: 0, id: "call_1", type: "function", function: { name: "f", arguments: "" } };
  await page.route(CHAT, (route) => route.fulfill(stream(
    { tool_calls: [call] },
    { tool_calls: [{ index: 0, function: { arguments: '{"id": 12345678901234567890, "ok": true, "none": null, "list": [1.50, "a"],' } }] },
    { tool_calls: [{ index: 0, function: { arguments: ' "html": "<img src=x onerror=alert(1)>"}' } }] },
  )));
  await ask(page, "go");
  await answered(page);
  const rows = await page.locator(".call dl > div").evaluateAll((rows) => rows.map((row) => [...row.querySelectorAll("code, .type, dd")].map((cell) => cell.textContent)));
  assert.deepEqual(rows, [
    ["id", "number", "12345678901234567890"],
    ["ok", "boolean", "true"],
    ["none", "null", "null"],
    ["list", "array", '[\n  1.50,\n  "a"\n]'],
    ["html", "string", "<img src=x onerror=alert(1)>"],
  ]);
});

onPage("what a model writes stays text", DESKTOP, async (page, wrong) => {
  const evil = '<img src=x onerror="alert(1)"><script>alert(2)</script> [a](javascript:alert(3)) **<b onclick=alert(4)>** `<i>`\n\n```html\n<svg onload=alert(5)>\n```';
  await page.route(CHAT, (route) => route.fulfill(stream({ reasoning_content: evil }, { content: evil.slice(0, 30) }, { content: evil.slice(30) })));
  await ask(page, evil);
  await answered(page);
  assert.equal(await page.locator("article :is(img, script, svg, a, b, i, iframe)").count(), 0);
  assert.ok((await page.innerText(".assistant .prose")).includes('<img src=x onerror="alert(1)"><script>alert(2)</script>'));
  assert.equal(await page.locator(".thoughts").textContent(), evil);
  assert.equal(await page.innerText(".user .text"), evil);
  assert.equal(await page.locator(".code pre").textContent(), "<svg onload=alert(5)>");
  // Even a bug in the page could not: the policy refuses.
  const refused = await page.evaluate(() => {
    try {
      document.body.innerHTML = "<p>";
      return "";
    } catch (error) {
      return error.name;
    }
  });
  assert.equal(refused, "TypeError");
  assert.match(wrong.pop(), /TrustedHTML/);
});

onPage("errors are shown in the server's words", DESKTOP, async (page, wrong) => {
  await page.click("#panel-open");
  await page.fill("[name=temperature]", "9");
  await ask(page, "What is 27 + 58?");
  await answered(page);
  assert.match(await page.innerText(".error"), /400 · invalid_request_error/);
  assert.match(await page.innerText(".error"), /temperature/);
  await page.fill("[name=temperature]", "0");
  await page.click(".error [data-action=regenerate]");
  await page.waitForFunction(() => document.querySelector(".assistant .prose")?.textContent === "85");
  // The browser itself notes the status.
  assert.equal(wrong.length, 1);
  assert.match(wrong.pop(), /400/);
});

onPage("a full queue is asked again when the server says, and an answer that breaks off says so", DESKTOP, async (page, wrong) => {
  let refusals = 1;
  await page.route(CHAT, (route) => refusals-- > 0
    ? route.fulfill({
      status: 429,
      headers: { "retry-after": "1" },
      json: { error: { message: "The queue is full.", type: "rate_limit_error", param: null, code: "rate_limit_exceeded" } },
    })
    : route.fulfill({ contentType: "text/event-stream", body: 'data: {"choices":[{"index":0,"delta":{"content":"half"}}]}\n\ndata: {"error":{"message":"The engine failed.","type":"server_error"}}\n\n' }));
  await ask(page, "hello");
  await page.waitForFunction(() => /The queue is full\.[\s\S]*Asking again in 1 s/.test(document.querySelector(".error")?.innerText ?? ""));
  await answered(page);
  assert.equal(await page.innerText(".assistant .prose"), "half");
  assert.match(await page.innerText(".error"), /The engine failed/);
  assert.match(wrong.pop(), /429/);
});

onPage("an answer can be asked for anew, and a question edited", DESKTOP, async (page) => {
  await ask(page, "What is 27 + 58?");
  await answered(page);
  await page.click("[data-action=regenerate]");
  await answered(page);
  await ask(page, "Write a short poem.");
  await answered(page, 2);
  await page.hover(".user >> nth=0");
  await page.click(".user >> nth=0 >> [data-action=edit]");
  await page.fill(".editor textarea", "What is 10 + 20?");
  await page.click(".editor .primary");
  await answered(page, 1);
  assert.deepEqual(await page.locator(".user .text").allInnerTexts(), ["What is 10 + 20?"]);
});

onPage("the conversation and the settings outlive a reload, the key does not reach the disk", DESKTOP, async (page) => {
  await page.click("#panel-open");
  await page.fill("[name=system]", "Be brief.");
  await page.fill("#key", "sk-secret-key");
  await ask(page, "What is 27 + 58?");
  await answered(page);
  await page.reload();
  assert.equal(await page.innerText(".user .text"), "What is 27 + 58?");
  assert.equal(await page.inputValue("[name=system]"), "Be brief.");
  assert.equal(await page.inputValue("#key"), "sk-secret-key");
  assert.equal(await page.evaluate(() => JSON.stringify({ ...localStorage }).includes("sk-secret-key")), false);
  await page.click("#clear");
  assert.equal(await page.locator("article").count(), 0);
  await page.click("#clear");
  assert.equal(await page.locator("article").count(), 2);
  await page.click("#clear");
  await page.reload();
  assert.equal(await page.isVisible("#welcome"), true);
});

onPage("on a phone nothing is wider than the screen, and every control is large enough for a finger", PHONE, async (page) => {
  const wide = "x".repeat(300);
  const long = { content: `${wide}\n\n\`${wide}\`\n\n- ${wide}\n\n\`\`\`\n${wide}\n\`\`\`` };
  await page.route(CHAT, (route) => route.fulfill(stream({ reasoning_content: wide }, long)));
  await page.tap("#panel-open");
  await fits("the panel");
  assert.equal(await page.evaluate(() => document.getElementById("main").inert), true);
  await page.tap("#panel-close");
  await page.fill("#box", `${wide} and more`);
  await page.tap("#send");
  await answered(page);
  await page.tap(".assistant summary");
  await fits("the conversation");

  async function fits(what) {
    const [page_, small] = await page.evaluate(() => {
      const controls = [...document.querySelectorAll("button, input, select, textarea, summary")].filter((node) => node.checkVisibility() && !node.closest("[inert]"));
      const small = controls.map((node) => [node.id || node.textContent, node.getBoundingClientRect()]).filter(([, box]) => box.height < 43.5 || box.width < 43.5);
      return [document.documentElement.scrollWidth - window.innerWidth, small.map(([name, box]) => `${name}: ${box.width} x ${box.height}`)];
    });
    assert.ok(page_ <= 0, `${what} is ${page_} px too wide`);
    assert.deepEqual(small, [], what);
  }
});

test("a server with keys asks for one, and takes it", async () => {
  const { mkdtempSync, rmSync, writeFileSync } = await import("node:fs");
  const { tmpdir } = await import("node:os");
  const folder = mkdtempSync(`${tmpdir()}/glim-web-`);
  writeFileSync(`${folder}/keys`, "sk-the-only-key\n");
  const locked = await serve("--api-key-file", `${folder}/keys`);
  const context = await chromium.newContext(DESKTOP);
  try {
    const page = await context.newPage();
    await page.goto(locked.url);
    await page.waitForFunction(() => document.activeElement.id === "key");
    await page.keyboard.type("sk-the-only-key");
    await page.waitForSelector("body:not(.offline)");
    await ask(page, "What is 27 + 58?");
    await answered(page);
    assert.notEqual(await page.innerText(".assistant .prose"), "");
  } finally {
    await context.close();
    assert.equal(await locked.stop(), 0);
    rmSync(folder, { recursive: true });
  }
});

for (const [name, options] of [["light", {}], ["dark", { colorScheme: "dark" }]]) {
  onPage(`text has enough contrast in ${name}`, { ...DESKTOP, ...options }, async (page) => {
    await page.click("#panel-open");
    await ask(page, "What is 27 + 58?");
    await answered(page);
    const poor = await page.evaluate(() => {
      const channels = (color) => color.match(/[\d.]+/g).map(Number);
      const light = (color) => channels(color).slice(0, 3).map((c) => c / 255)
        .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
        .reduce((sum, c, index) => sum + c * [0.2126, 0.7152, 0.0722][index], 0);
      const ground = (node) => {
        for (let at = node; at; at = at.parentElement) {
          const color = getComputedStyle(at).backgroundColor;
          if (/^rgb\(/.test(color)) return color;
        }
        return getComputedStyle(document.body).backgroundColor;
      };
      return [...document.querySelectorAll("body *")]
        .filter((node) => node.checkVisibility() && !node.disabled && [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim()))
        .map((node) => {
          const [a, b] = [light(getComputedStyle(node).color), light(ground(node))].sort((a, b) => b - a);
          return [node.textContent.slice(0, 20), (a + 0.05) / (b + 0.05)];
        })
        .filter(([, contrast]) => contrast < 4.5);
    });
    assert.deepEqual(poor, []);
  });
}
