// The page: one conversation, kept as a list of messages, each with its view. Everything that changes the list goes through
// `Chat`; what the user does arrives as events that bubble to the document.

import { Answer, assistant } from "./answer.js";
import { ServerError, chat, metrics, model } from "./api.js";
import { Panel } from "./panel.js";
import { requestBody } from "./request.js";
import { loadConversation, loadKey, loadSettings, saveConversation } from "./store.js";
import { MessageView, grow } from "./view.js";

const $ = (id) => document.getElementById(id);

/** How often a refusal that will pass (429, 503) is asked again by itself, and how long to wait if the server does not say. */
const RETRIES = 5;
const RETRY_SECONDS = 2;
/** Between two looks at the server's metrics, while an answer comes and otherwise, and at a model that is still loading. */
const METRICS_BUSY_MS = 1000;
const METRICS_MS = 3000;
const LOADING_MS = 2000;
/** How much of an answer is read out when it is whole. */
const ANNOUNCED = 2000;
/** So near to its end, the page follows the answer. */
const FOLLOW_PX = 96;

const settings = loadSettings();
const panel = new Panel(settings, loadKey(), () => connect());
const server = { model: null, context: null, metrics: null, connecting: 0 };

const atEnd = () => window.innerHeight + window.scrollY >= document.documentElement.scrollHeight - FOLLOW_PX;
const toEnd = () => window.scrollTo({ top: document.documentElement.scrollHeight });
const say = (text) => ($("announce").textContent = text);

class Chat {
  messages = loadConversation();
  #views = [];
  /** What the last clear took away, until something new is said. */
  #cleared = null;
  /** Settles when the answer that is being written has ended. */
  #ended = Promise.resolve();
  #abort = null;
  /** Ends the wait for the next attempt. */
  #wake = null;
  /** Whether the page keeps the end of the answer in sight. */
  #follow = true;

  constructor() {
    // What a reload interrupted is no longer growing.
    for (const message of this.messages) if (message.role === "assistant" && message.finish === null) message.finish = "stopped";
    this.redraw();
  }

  get busy() {
    return this.#abort !== null;
  }

  /** Shows the messages from `from` on anew. */
  redraw(from = 0) {
    for (const view of this.#views.splice(from)) view?.node.remove();
    for (const message of this.messages.slice(from)) this.#show(message);
    this.refresh();
  }

  #show(message) {
    // A tool's result stands in the card of its call.
    const view = message.role === "tool" ? null : new MessageView(message);
    this.#views.push(view);
    if (view) $("log").append(view.node);
    return view;
  }

  /** Brings every view up to date. */
  refresh() {
    this.#views.forEach((view, index) => {
      const live = this.busy && index === this.messages.length - 1;
      if (!live) view?.update({ last: this.#isLast(index), results: this.#results(index) });
    });
    document.body.classList.toggle("empty", this.messages.length === 0);
    document.body.classList.toggle("busy", this.busy);
    $("send").hidden = this.busy;
    $("stop").hidden = !this.busy;
    $("clear").textContent = this.#cleared ? "Undo" : "Clear";
    $("clear").disabled = this.messages.length === 0 && !this.#cleared;
  }

  #isLast(index) {
    return !this.busy && this.messages.slice(index + 1).every((message) => message.role === "tool");
  }

  #results(index) {
    const results = new Map();
    for (const message of this.messages.slice(index + 1)) {
      if (message.role !== "tool") break;
      results.set(message.tool_call_id, message.content);
    }
    return results;
  }

  /** The message that a node of the page belongs to, and its place. */
  at(node) {
    const article = node.closest("article");
    const index = this.#views.findIndex((view) => view?.node === article);
    return { index, view: this.#views[index], message: this.messages[index] };
  }

  push(message) {
    this.#cleared = null;
    this.messages.push(message);
    this.#show(message);
    this.refresh();
    saveConversation(this.messages);
  }

  /** Drops the messages from `from` on. */
  cut(from) {
    this.messages.splice(from);
    this.redraw(from);
    saveConversation(this.messages);
  }

  /** Takes the whole conversation away, or brings it back. */
  async clear() {
    this.stop();
    await this.#ended;
    if (this.#cleared) {
      this.messages = this.#cleared;
      this.#cleared = null;
      this.redraw();
      saveConversation(this.messages);
      say("The conversation is back.");
    } else {
      this.#cleared = [...this.messages];
      this.cut(0);
      say("The conversation is cleared.");
    }
    $("box").focus();
  }

  stop() {
    this.#abort?.abort();
  }

  retryNow() {
    this.#wake?.();
  }

  /** Asks again for the answer at `index`, or for the first one after a user's message or a result. */
  async regenerate(index) {
    if (this.busy) return;
    this.cut(index);
    await this.generate();
  }

  /** Takes a tool's result; goes on when every call of the message has one. */
  async result(index, call, text) {
    this.push({ role: "tool", tool_call_id: call.id, content: text });
    const results = this.#results(index);
    if (this.messages[index].calls.every(({ id }) => results.has(id))) await this.generate();
  }

  /** Asks the server for the next message and shows it as it comes. */
  async generate() {
    if (this.busy) return;
    this.#ended = this.#generate();
    await this.#ended;
  }

  async #generate() {
    const message = assistant();
    let body;
    try {
      body = requestBody(this.messages, settings, server.model);
    } catch (error) {
      message.error = { message: `The tools in the settings: ${error.message}`, status: 0, type: "", code: null };
      message.finish = "error";
      this.push(message);
      return;
    }
    const abort = (this.#abort = new AbortController());
    this.push(message);
    const view = this.#views.at(-1);
    say("Answering.");
    this.#follow = true;
    pollMetrics();
    try {
      for (let attempt = 0; !(await this.#stream(body, message, view, abort.signal, attempt)); attempt += 1);
    } finally {
      this.#abort = null;
      this.refresh();
      if (this.#follow) toEnd();
      $("rate").textContent = "";
      saveConversation(this.messages);
      say(ended(message));
      pollMetrics();
    }
  }

  /** One attempt. False when another one should follow; whatever else comes out stands in the message. */
  async #stream(body, message, view, signal, attempt) {
    const answer = new Answer(message, performance.now());
    let frame = 0;
    const draw = () => {
      frame = 0;
      message.stats = answer.stats(performance.now());
      view.update({ live: this.busy, thinking: answer.thinking });
      const { rate, tokens } = answer;
      $("rate").textContent = tokens === 0 ? "" : rate === null ? `${tokens} tokens` : `${rate.toFixed(1)} tokens/s`;
      if (this.#follow) toEnd();
    };
    const soon = () => (frame ||= requestAnimationFrame(draw));
    draw();
    try {
      for await (const chunk of chat(body, { key: panel.key, signal })) {
        answer.add(chunk, performance.now());
        soon();
      }
    } catch (error) {
      if (error.name === "AbortError") {
        message.finish = "stopped";
      } else {
        if (!(error instanceof ServerError)) throw error;
        message.error = error.plain;
        if (error.status === 401) panel.askForKey();
        if (error.passing && answer.tokens === 0 && attempt < RETRIES) {
          const again = await this.#countDown(message, view, error.retryAfter ?? RETRY_SECONDS, signal);
          if (again) {
            message.error = null;
            return false;
          }
          message.finish = "stopped";
        } else {
          message.finish = "error";
        }
      }
    } finally {
      cancelAnimationFrame(frame);
    }
    message.stats = answer.stats(performance.now());
    return true;
  }

  /** Waits, telling how long; false if it was stopped. */
  async #countDown(message, view, seconds, signal) {
    const woken = new Promise((resolve) => {
      this.#wake = resolve;
      signal.addEventListener("abort", resolve, { once: true });
    });
    say(`${message.error.message} Asking again in ${seconds} seconds.`);
    let left = Math.ceil(seconds);
    let awake = false;
    woken.then(() => (awake = true));
    while (left > 0 && !awake) {
      message.error.wait = left;
      view.update({ live: true });
      if (this.#follow) toEnd();
      await Promise.race([woken, new Promise((resolve) => setTimeout(resolve, 1000))]);
      left -= 1;
    }
    this.#wake = null;
    delete message.error.wait;
    return !signal.aborted;
  }

  /** The page was scrolled: follow the answer only while its end is in sight. */
  scrolled() {
    this.#follow = atEnd();
    $("latest").hidden = this.#follow;
  }
}

/** What is read out when an answer has ended. */
function ended(message) {
  if (message.error) return message.error.message;
  if (message.finish === "stopped") return "Stopped.";
  if (message.calls.length > 0) return `The model calls ${message.calls.map((call) => call.name).join(", ")}.`;
  return message.content.slice(0, ANNOUNCED) || "The answer is empty.";
}

const talk = new Chat();

async function submit(text) {
  if (text.trim() === "" || talk.busy || !panel.checkTools()) {
    if (!panel.checkTools()) panel.toggle(true);
    return;
  }
  $("box").value = "";
  grow($("box"));
  talk.push({ role: "user", content: text });
  toEnd();
  await talk.generate();
}

async function copy(text, source) {
  try {
    await navigator.clipboard.writeText(text);
    say("Copied.");
    source.textContent = "Copied";
  } catch {
    say("The browser does not allow copying.");
    source.textContent = "Not allowed";
  }
  setTimeout(() => (source.textContent = "Copy"), 1500);
}

const ACTIONS = {
  copy: (source) => copy(talk.at(source).message.content, source),
  edit: (source) => talk.busy || talk.at(source).view.edit(),
  "edit-cancel": (source) => {
    talk.at(source).view.editEnd();
    $("box").focus();
  },
  regenerate: (source) => {
    const { index } = talk.at(source);
    $("box").focus();
    return talk.regenerate(index);
  },
  "retry-now": () => talk.retryNow(),
  stop: () => talk.stop(),
};

const FORMS = {
  send: () => submit($("box").value),
  edit: (form) => {
    const { index, view } = talk.at(form);
    const text = form.querySelector("textarea").value;
    if (text.trim() === "" || talk.busy) return undefined;
    view.editEnd();
    talk.cut(index);
    $("box").focus();
    talk.push({ role: "user", content: text });
    return talk.generate();
  },
  result: (form) => {
    const { index, message } = talk.at(form);
    const call = message.calls[Number(form.closest(".call").dataset.call)];
    $("box").focus();
    return talk.busy ? undefined : talk.result(index, call, form.querySelector("textarea").value);
  },
};

document.addEventListener("click", (event) => {
  const source = event.target.closest("button");
  if (!source) return;
  if (source.dataset.copy === "code") copy(source.closest("figure").querySelector("code").textContent, source);
  ACTIONS[source.dataset.action]?.(source);
});

document.addEventListener("submit", (event) => {
  event.preventDefault();
  FORMS[event.target.dataset.action]?.(event.target);
});

document.addEventListener("input", (event) => {
  if (event.target.localName === "textarea") grow(event.target);
});

// On a touch keyboard Enter is the only way to a new line; there is a button to send.
const typed = window.matchMedia("(pointer: fine), (hover: hover)");

document.addEventListener("keydown", (event) => {
  const { target, key } = event;
  if (key === "Escape") {
    if (talk.busy) talk.stop();
    else if (target.dataset?.enter === "edit") ACTIONS["edit-cancel"](target);
    else if (panel.open && (panel.covers || $("panel").contains(target))) panel.toggle(false);
    else return;
    event.preventDefault();
  } else if (key === "Enter" && target.dataset?.enter && !event.isComposing) {
    if (event.shiftKey || (!typed.matches && !event.ctrlKey && !event.metaKey)) return;
    event.preventDefault();
    target.form.requestSubmit();
  } else if (key === "ArrowUp" && target === $("box") && target.value === "" && !talk.busy) {
    const yours = talk.messages.findLastIndex((message) => message.role === "user");
    if (yours < 0) return;
    event.preventDefault();
    document.querySelectorAll("article.user [data-action=edit]").item(document.querySelectorAll("article.user").length - 1)?.click();
  }
});

for (const example of document.querySelectorAll("#examples button")) {
  example.addEventListener("click", () => {
    if ("tool" in example.dataset) panel.useExampleTool();
    $("box").focus();
    submit(example.textContent);
  });
}

window.addEventListener("scroll", () => talk.scrolled(), { passive: true });
$("latest").addEventListener("click", () => {
  toEnd();
  $("box").focus();
});
$("stop").addEventListener("click", () => {
  talk.stop();
  $("box").focus();
});
$("clear").addEventListener("click", () => talk.clear());

/** Finds out which model is served; asks again while it loads. */
async function connect() {
  const turn = (server.connecting += 1);
  try {
    const found = await model({ key: panel.key });
    if (turn !== server.connecting) return;
    server.model = found?.id ?? null;
    server.context = found?.max_model_len ?? null;
    $("model").textContent = server.model ?? "no model";
    document.title = server.model ? `${server.model} · glim` : "glim";
    document.body.classList.remove("offline");
    pollMetrics();
  } catch (error) {
    if (turn !== server.connecting) return;
    document.body.classList.add("offline");
    if (error.status === 401) {
      $("model").textContent = "needs an API key";
      if (document.activeElement?.id !== "key") panel.askForKey();
      return;
    }
    $("model").textContent = error.status === 503 ? "loading …" : error.message;
    setTimeout(() => turn === server.connecting && connect(), LOADING_MS);
  }
  showServer();
}

const percent = (share) => `${(100 * share).toFixed(share < 0.1 && share > 0 ? 1 : 0)} %`;

function showServer() {
  const rows = [["Model", server.model ?? "unknown", null]];
  if (server.context) rows.push(["Context", `${server.context.toLocaleString("en")} tokens`, null]);
  const now = server.metrics;
  const used = now?.["vllm:kv_cache_usage_perc"];
  const running = now?.["vllm:num_requests_running"];
  const waiting = now?.["vllm:num_requests_waiting"];
  const queries = now?.["vllm:prefix_cache_queries_total"];
  const hits = now?.["vllm:prefix_cache_hits_total"];
  if (used !== undefined) rows.push(["Cache in use", percent(used), used]);
  if (queries > 0) rows.push(["Prompt tokens from cache", percent(hits / queries), hits / queries]);
  if (running !== undefined) rows.push(["Requests", `${running} running, ${waiting ?? 0} waiting`, null]);
  panel.showServer(rows);
  const brief = used === undefined ? [] : [`cache ${percent(used)}`];
  if (running + waiting > 1) brief.push(`${running} running`, `${waiting} waiting`);
  $("load").textContent = brief.join(" · ");
}

let timer = 0;
let looks = 0;

/** Looks at the metrics, now and again while the page is in sight. */
async function pollMetrics() {
  clearTimeout(timer);
  const look = (looks += 1);
  if (document.hidden || document.body.classList.contains("offline")) return;
  try {
    const now = await metrics({ key: panel.key });
    if (look !== looks) return;
    server.metrics = now;
    showServer();
  } catch (error) {
    if (look !== looks) return;
    // Not offered here: a server may keep its metrics to itself.
    if (error.status >= 400 && error.status < 500) return;
    if (error.status === 0) {
      document.body.classList.add("offline");
      $("model").textContent = error.message;
      setTimeout(connect, LOADING_MS);
      return;
    }
  }
  timer = setTimeout(pollMetrics, talk.busy ? METRICS_BUSY_MS : METRICS_MS);
}

document.addEventListener("visibilitychange", () => document.hidden || pollMetrics());
if (typed.matches) $("box").focus();
grow($("box"));
toEnd();
connect();
