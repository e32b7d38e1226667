// The side panel: settings and the server's state. It keeps its fields' texts in the settings, and says at once what is
// wrong with the tools.

import { EXAMPLE_TOOL, readTools } from "./request.js";
import { saveKey, saveSettings } from "./store.js";
import { grow } from "./view.js";

const $ = (id) => document.getElementById(id);

/** Below this width the panel lies over the page; style.css has the same number. */
const narrow = window.matchMedia("(max-width: 68rem)");

export class Panel {
  #settings;
  #key;
  #onKey;

  constructor(settings, key, onKey) {
    this.#settings = settings;
    this.#key = key;
    this.#onKey = onKey;
    for (const field of this.#fields()) field.value = settings[field.name];
    $("key").value = key;
    this.checkTools();
    $("settings").addEventListener("input", (event) => this.#changed(event.target));
    $("settings").addEventListener("submit", (event) => event.preventDefault());
    $("tools-example").addEventListener("click", () => this.useExampleTool());
    $("settings-reset").addEventListener("click", () => this.#reset());
    $("panel-open").addEventListener("click", () => this.toggle());
    $("panel-close").addEventListener("click", () => this.toggle(false));
    narrow.addEventListener("change", () => this.#layOut());
    this.#layOut();
  }

  get key() {
    return this.#key;
  }

  get open() {
    return !$("panel").hidden;
  }

  /** Whether the panel covers the page now. */
  get covers() {
    return this.open && narrow.matches;
  }

  toggle(open = !this.open) {
    $("panel").hidden = !open;
    $("panel-open").setAttribute("aria-expanded", String(open));
    document.body.classList.toggle("with-panel", open);
    this.#layOut();
    // What is not shown has no height.
    if (open) for (const area of $("settings").querySelectorAll("textarea")) grow(area);
    (open ? $("panel-close") : $("panel-open")).focus();
  }

  /** Opens the panel at the key, for a server that asks for one. */
  askForKey() {
    if (!this.open) this.toggle(true);
    $("key").focus();
  }

  useExampleTool() {
    $("tools").value = EXAMPLE_TOOL;
    grow($("tools"));
    this.#changed($("tools"));
  }

  /** Whether the tools can be sent; says why not beside them. */
  checkTools() {
    const note = $("tools-note");
    const field = $("tools");
    let wrong = "";
    try {
      const tools = readTools(field.value);
      const names = tools.map((tool) => tool.function.name).join(", ");
      note.textContent = tools.length === 0 ? "An array of tools as the API takes them." : `Offered: ${names}`;
    } catch (error) {
      wrong = error.message;
      note.textContent = wrong;
    }
    note.classList.toggle("wrong", wrong !== "");
    field.setAttribute("aria-invalid", String(wrong !== ""));
    return wrong === "";
  }

  /** Shows numbers of the server: `[label, text, share]` with `share` from 0 to 1 or `null`. */
  showServer(rows) {
    const list = $("server");
    rows.forEach(([label, text, share], index) => {
      let row = list.children[index];
      if (!row) {
        row = document.createElement("div");
        row.append(document.createElement("dt"), document.createElement("dd"));
        list.append(row);
      }
      row.firstChild.textContent = label;
      row.lastChild.textContent = text;
      row.classList.toggle("share", share !== null);
      row.style.setProperty("--share", String(share ?? 0));
    });
    while (list.childElementCount > rows.length) list.lastChild.remove();
  }

  #fields() {
    const named = [...$("settings").elements].filter((field) => field.name);
    return named.filter((field) => field.name in this.#settings);
  }

  #changed(field) {
    if (field.id === "key") {
      this.#key = field.value.trim();
      saveKey(this.#key);
      this.#onKey();
      return;
    }
    if (!(field.name in this.#settings)) return;
    this.#settings[field.name] = field.value;
    if (field.name === "tools") this.checkTools();
    saveSettings(this.#settings);
  }

  #reset() {
    for (const field of this.#fields()) {
      field.value = "";
      this.#settings[field.name] = "";
    }
    this.checkTools();
    saveSettings(this.#settings);
  }

  /** What is covered can be neither read nor reached. */
  #layOut() {
    for (const id of ["bar", "main", "dock"]) $(id).inert = this.covers;
  }
}
