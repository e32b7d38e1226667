// A message on the page. Whatever a model, a server or a user wrote gets there as text nodes only.

import { render } from "./markdown.js";

/** Makes an element: properties by name, `data` and `aria` as objects, children as nodes or text. */
export function el(tag, { data = {}, aria = {}, ...properties } = {}, ...children) {
  const node = document.createElement(tag);
  Object.assign(node, properties);
  Object.assign(node.dataset, data);
  for (const [name, value] of Object.entries(aria)) node.setAttribute(`aria-${name}`, value);
  node.append(...children);
  return node;
}

function button(text, action, className = "quiet") {
  return el("button", { type: "button", className, textContent: text, data: { action } });
}

/** Lets a text area grow with its text, up to the height that the style allows. */
export function grow(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + area.offsetHeight - area.clientHeight}px`;
}

const plural = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
const seconds = (s) => (s < 1 ? `${Math.round(s * 1000)} ms` : `${s.toFixed(1)} s`);

const FINISHES = {
  stopped: "stopped by you",
  length: "cut off at the token limit",
  content_filter: "stopped by a filter",
};

/** The line of numbers below an answer. */
export function statsLine(message) {
  const { stats, finish } = message;
  const parts = [];
  if (stats && stats.tokens > 0) {
    parts.push(plural(stats.tokens, "token"));
    if (stats.rate !== null) parts.push(`${stats.rate.toFixed(1)} tokens/s`);
    if (stats.firstAfter !== null) parts.push(`first after ${seconds(stats.firstAfter)}`);
    if (stats.prompt !== null) {
      const cached = stats.cached ? `, ${stats.cached.toLocaleString("en")} from cache` : "";
      parts.push(`prompt ${stats.prompt.toLocaleString("en")}${cached}`);
    }
  }
  if (FINISHES[finish]) parts.push(FINISHES[finish]);
  return parts.join(" · ");
}

/** A number as the JSON text has it: 12345678901234567890 stays what the model wrote, where the browser tells. */
class Written {
  constructor(text) {
    this.text = text;
  }
}

/** The arguments of a call as `[name, type, text]`; `null` while they are not whole. */
function typedArguments(json) {
  let whole;
  try {
    whole = JSON.parse(json, (_, value, context) =>
      typeof value === "number" && context?.source ? new Written(context.source) : value,
    );
  } catch {
    return null;
  }
  if (whole === null || typeof whole !== "object" || Array.isArray(whole) || whole instanceof Written) return null;
  return Object.entries(whole).map(([name, value]) => {
    if (value instanceof Written) return [name, "number", value.text];
    if (typeof value === "string") return [name, "string", value];
    if (value === null) return [name, "null", "null"];
    const type = Array.isArray(value) ? "array" : typeof value;
    return [name, type, type === "boolean" ? String(value) : nested(value)];
  });
}

function nested(value) {
  // JSON.stringify cannot print a number from its text, so the text stands in as a string and loses its quotes again.
  const numbers = [];
  const text = JSON.stringify(
    value,
    (_, inner) => (inner instanceof Written ? `\u0000${numbers.push(inner.text) - 1}\u0000` : inner),
    2,
  );
  return text.replace(/"\\u0000(\d+)\\u0000"/g, (_, index) => numbers[Number(index)]);
}

/** One call of a tool: its name, its arguments, and the box for the result. */
class CallCard {
  #arguments = el("div", { className: "arguments" });
  #result = el("div", { className: "result" });
  #shown = null;

  constructor(call, index) {
    this.call = call;
    this.name = el("code", { className: "name" });
    this.state = el("span", { className: "state" });
    const head = el("header", {}, el("span", { className: "glyph", aria: { hidden: "true" } }, "ƒ"), this.name, this.state);
    this.node = el("section", { className: "call", data: { call: String(index) } }, head, this.#arguments, this.#result);
  }

  update({ live, result }) {
    const { call } = this;
    this.name.textContent = call.name || "…";
    this.node.setAttribute("aria-label", `Call of ${call.name || "a tool"}`);
    this.state.textContent = live ? "writing" : result === undefined ? "waits for a result" : "answered";
    if (this.#shown !== call.arguments || !live) {
      this.#shown = call.arguments;
      const typed = typedArguments(call.arguments);
      this.#arguments.replaceChildren(typed && !live ? table(typed) : el("pre", { textContent: call.arguments }));
    }
    this.#updateResult(live, result);
  }

  #updateResult(live, result) {
    if (live) return;
    const isBox = this.#result.firstChild?.localName === "form";
    if (result !== undefined) {
      this.#result.replaceChildren(el("span", { className: "label" }, "Result"), el("pre", { textContent: result, tabIndex: 0 }));
    } else if (!isBox && typedArguments(this.call.arguments)) {
      const area = el("textarea", {
        rows: 1,
        placeholder: "Its result",
        aria: { label: `Result of ${this.call.name}` },
        data: { enter: "result" },
      });
      this.#result.replaceChildren(el("form", { data: { action: "result" } }, area, el("button", { className: "primary" }, "Send result")));
    }
  }
}

function table(rows) {
  if (rows.length === 0) return el("p", { className: "none" }, "no arguments");
  const list = el("dl", {});
  for (const [name, type, text] of rows) {
    const term = el("dt", {}, el("code", { textContent: name }), el("span", { className: "type", textContent: type }));
    list.append(el("div", {}, term, el("dd", { textContent: text })));
  }
  return list;
}

/** A message's node. `update` brings it up to date with the message; what did not change is left alone. */
export class MessageView {
  #cards = [];

  constructor(message) {
    this.message = message;
    const yours = message.role === "user";
    this.body = el("div", { className: yours ? "text" : "prose" });
    this.actions = el("div", { className: "actions" });
    this.node = el("article", { className: `message ${message.role}`, aria: { label: yours ? "You" : "Answer" } });
    if (yours) {
      this.node.append(this.body, this.actions);
      this.actions.append(button("Copy", "copy"), button("Edit", "edit"));
      return;
    }
    this.thoughts = el("div", { className: "thoughts" });
    this.summary = el("span", { className: "label" });
    this.tail = el("span", { className: "tail", aria: { hidden: "true" } });
    this.reasoning = el(
      "details",
      { className: "reasoning", hidden: true },
      el("summary", {}, this.summary, this.tail),
      this.thoughts,
    );
    this.calls = el("div", { className: "calls" });
    this.error = el("div", { className: "error", hidden: true });
    this.stats = el("p", { className: "stats" });
    this.foot = el("footer", {}, this.stats, this.actions);
    this.node.append(this.reasoning, this.body, this.calls, this.error, this.foot);
  }

  /** `live`: it still grows; `thinking`: by reasoning; `last`: nothing follows; `results`: texts by the call's id. */
  update({ live = false, thinking = false, last = false, results = new Map() }) {
    const { message } = this;
    this.node.classList.toggle("live", live);
    if (message.role === "user") {
      this.body.textContent = message.content;
      return;
    }
    render(message.content, this.body);
    this.#updateReasoning(live && thinking);
    message.calls.forEach((call, index) => {
      const card = (this.#cards[index] ??= new CallCard(call, index));
      if (!card.node.parentNode) this.calls.append(card.node);
      card.update({ live, result: results.get(call.id) });
    });
    this.#updateError();
    this.stats.textContent = live ? "" : statsLine(message);
    this.foot.hidden = live;
    if (!live) {
      const actions = message.content === "" ? [] : [button("Copy", "copy")];
      if (last) actions.push(button("Regenerate", "regenerate"));
      if (actions.length !== this.actions.childElementCount) this.actions.replaceChildren(...actions);
    }
  }

  #updateReasoning(thinking) {
    const { reasoning, stats, content, calls, finish } = this.message;
    const waiting = thinking && reasoning === "" && content === "" && calls.length === 0;
    this.reasoning.hidden = reasoning === "" && !waiting;
    this.reasoning.classList.toggle("thinking", thinking);
    if (this.thoughts.textContent !== reasoning) this.thoughts.textContent = reasoning;
    if (waiting) {
      this.summary.textContent = "Waiting for the first token";
    } else if (thinking) {
      this.summary.textContent = "Thinking";
    } else {
      const amount = stats?.thought ? `, ${plural(stats.thought, "token")}` : "";
      const cut = content === "" && calls.length === 0 && finish === "stopped" ? " (not finished)" : "";
      this.summary.textContent = `Thought${stats?.thoughtFor ? ` for ${seconds(stats.thoughtFor)}` : ""}${amount}${cut}`;
    }
    // The end of the last line, so that one sees it move without unfolding it.
    this.tail.textContent = thinking ? reasoning.slice(-120).split("\n").at(-1) : "";
  }

  #updateError() {
    const { error } = this.message;
    this.error.hidden = error === null;
    if (error === null) {
      this.error.replaceChildren();
      return;
    }
    const kind = typeof error.code === "string" ? error.code : error.type;
    const title = [error.status, kind].filter((part) => part).join(" · ");
    const line = el("p", {}, el("strong", { textContent: title || "Error" }), " ", el("span", { textContent: error.message }));
    const retry = el("div", { className: "retry" });
    if (error.wait) {
      retry.append(el("span", { textContent: `Asking again in ${error.wait} s` }), button("Now", "retry-now"), button("Cancel", "stop"));
    } else {
      retry.append(button("Try again", "regenerate"));
    }
    // Only the countdown changes from second to second: the buttons keep the focus.
    const shown = this.error.querySelector(".retry > span");
    if (error.wait && shown) shown.textContent = retry.firstChild.textContent;
    else this.error.replaceChildren(line, retry);
  }

  /** Puts an editor in the place of a user's message. */
  edit() {
    const area = el("textarea", { value: this.message.content, aria: { label: "Edit your message" }, data: { enter: "edit" } });
    const form = el(
      "form",
      { className: "editor", data: { action: "edit" } },
      area,
      el("div", { className: "actions" }, button("Cancel", "edit-cancel"), el("button", { className: "primary" }, "Send")),
    );
    this.node.replaceChildren(form);
    grow(area);
    area.focus();
  }

  /** Takes the editor away again. */
  editEnd() {
    this.node.replaceChildren(this.body, this.actions);
    this.update({});
  }
}
