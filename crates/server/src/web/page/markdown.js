// The little of Markdown that answers are full of: fenced code, headings, lists, `code`, **bold**. Everything else stays
// the text that it is, line breaks and all. Text becomes text nodes, never markup: what a model writes cannot become a tag,
// a link or a request.

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`\s]*)[^`]*$/;
const HEADING = /^(#{1,6})[ \t]+(.+?)[ \t]*#*$/;
const ITEM = /^([ \t]*)([-*+]|\d{1,9}[.)])[ \t]+(.*)$/;
// Code first, since nothing is bold in it. A run of backticks is closed by a run of the same length only. A span has a longest
// length, so that openers which nothing closes cost no more than that each.
const INLINE = /(?<!`)(`+)(?!`)(.{1,1000}?)(?<!`)\1(?!`)|\*\*(?=\S)(.{1,1000}?)(?<=\S)\*\*/gs;

/**
 * Cuts text into blocks: `{kind: "code", lang, text, open}`, `{kind: "heading", level, text}`, `{kind: "item", mark, depth,
 * text}`, `{kind: "text", text}`. A fence that nothing has closed yet is code to the end, marked `open`.
 */
export function parse(text) {
  const blocks = [];
  let plain = [];
  let code = null;
  const flush = () => {
    const joined = plain.join("\n").replace(/^\n+|\s+$/g, "");
    if (joined !== "") blocks.push({ kind: "text", text: joined });
    plain = [];
  };
  for (const line of text.split(/\r\n|\n/)) {
    if (code) {
      const close = /^ {0,3}(`{3,}|~{3,})[ \t]*$/.exec(line);
      if (close && close[1][0] === code.fence[0] && close[1].length >= code.fence.length) {
        blocks.push({ kind: "code", lang: code.lang, text: code.lines.join("\n"), open: false });
        code = null;
      } else {
        code.lines.push(line);
      }
      continue;
    }
    const fence = FENCE.exec(line);
    const heading = HEADING.exec(line);
    const item = ITEM.exec(line);
    if (fence) {
      flush();
      code = { fence: fence[1], lang: fence[2], lines: [] };
    } else if (heading) {
      flush();
      blocks.push({ kind: "heading", level: heading[1].length, text: heading[2] });
    } else if (item) {
      flush();
      const depth = Math.min(3, Math.floor(item[1].replace(/\t/g, "  ").length / 2));
      blocks.push({ kind: "item", mark: /\d/.test(item[2]) ? item[2] : "•", depth, text: item[3] });
    } else if (line.trim() === "") {
      flush();
    } else {
      plain.push(line);
    }
  }
  if (code) blocks.push({ kind: "code", lang: code.lang, text: code.lines.join("\n"), open: true });
  flush();
  return blocks;
}

/** Cuts a line's text into `{kind: "text" | "code" | "bold", text}`. */
export function inline(text) {
  const spans = [];
  let from = 0;
  for (const found of text.matchAll(INLINE)) {
    if (found.index > from) spans.push({ kind: "text", text: text.slice(from, found.index) });
    if (found[1]) {
      // One blank each side is there to keep a backtick off the fence.
      const code = found[2];
      const padded = code.startsWith(" ") && code.endsWith(" ") && code.trim() !== "";
      spans.push({ kind: "code", text: padded ? code.slice(1, -1) : code });
    } else {
      spans.push({ kind: "bold", text: found[3] });
    }
    from = found.index + found[0].length;
  }
  if (from < text.length) spans.push({ kind: "text", text: text.slice(from) });
  return spans;
}

function spansOf(text) {
  return inline(text).map(({ kind, text }) => {
    if (kind === "text") return document.createTextNode(text);
    const node = document.createElement(kind === "code" ? "code" : "strong");
    // Bold text may hold code; code holds nothing.
    if (kind === "bold") node.append(...spansOf(text));
    else node.textContent = text;
    return node;
  });
}

function nodeOf(block) {
  if (block.kind === "code") {
    const figure = document.createElement("figure");
    figure.className = "code";
    const bar = document.createElement("figcaption");
    const lang = document.createElement("span");
    lang.textContent = block.lang || "text";
    const copy = document.createElement("button");
    copy.type = "button";
    copy.className = "quiet";
    copy.textContent = "Copy";
    copy.dataset.copy = "code";
    bar.append(lang, copy);
    const pre = document.createElement("pre");
    // Long lines scroll inside, so it must be reachable without a mouse.
    pre.tabIndex = 0;
    const code = document.createElement("code");
    code.textContent = block.text;
    pre.append(code);
    figure.append(bar, pre);
    return figure;
  }
  if (block.kind === "item") {
    const item = document.createElement("div");
    item.className = `item depth-${block.depth}`;
    const mark = document.createElement("span");
    mark.className = "mark";
    mark.textContent = block.mark;
    const text = document.createElement("span");
    text.append(...spansOf(block.text));
    item.append(mark, text);
    return item;
  }
  // Headings of an answer are below those of the page.
  const node = document.createElement(block.kind === "heading" ? `h${Math.min(6, block.level + 2)}` : "p");
  node.append(...spansOf(block.text));
  return node;
}

const drawn = new WeakMap();

/** Shows `text` in `into`. Blocks that did not change since the last call keep their nodes, and a selection in them. */
export function render(text, into) {
  const before = drawn.get(into) ?? [];
  const now = parse(text).map((block) => ({ block, key: JSON.stringify(block) }));
  let same = 0;
  while (same < now.length && same < before.length && now[same].key === before[same]) same += 1;
  while (into.childNodes.length > same) into.lastChild.remove();
  into.append(...now.slice(same).map(({ block }) => nodeOf(block)));
  drawn.set(into, now.map(({ key }) => key));
}
