// What outlives a reload: the conversation and the settings in localStorage, the API key in sessionStorage, which ends with
// the tab. A browser that refuses to store is no error; nothing is kept then.

import { DEFAULTS } from "./request.js";

const CONVERSATION = "glim.conversation.1";
const SETTINGS = "glim.settings.1";
const KEY = "glim.key";

function read(storage, name) {
  try {
    return window[storage].getItem(name);
  } catch {
    return null;
  }
}

function write(storage, name, value) {
  try {
    if (value === "") window[storage].removeItem(name);
    else window[storage].setItem(name, value);
  } catch {
    // Full, or forbidden.
  }
}

function parsed(text, otherwise) {
  try {
    return text === null ? otherwise : JSON.parse(text);
  } catch {
    return otherwise;
  }
}

const isText = (value) => typeof value === "string";

/** Whether a stored message has the form that the page relies on. */
function whole(message) {
  if (!isText(message?.content)) return false;
  if (message.role === "user") return true;
  if (message.role === "tool") return isText(message.tool_call_id);
  const callIsWhole = (call) => isText(call?.id) && isText(call.name) && isText(call.arguments);
  return (
    message.role === "assistant" &&
    isText(message.reasoning) &&
    Array.isArray(message.calls) &&
    message.calls.every(callIsWhole)
  );
}

export function loadConversation() {
  const messages = parsed(read("localStorage", CONVERSATION), []);
  return Array.isArray(messages) && messages.every(whole) ? messages : [];
}

export function saveConversation(messages) {
  write("localStorage", CONVERSATION, messages.length === 0 ? "" : JSON.stringify(messages));
}

export function loadSettings() {
  const stored = parsed(read("localStorage", SETTINGS), {});
  const known = Object.keys(DEFAULTS).filter((name) => isText(stored?.[name]));
  return { ...DEFAULTS, ...Object.fromEntries(known.map((name) => [name, stored[name]])) };
}

export function saveSettings(settings) {
  write("localStorage", SETTINGS, JSON.stringify(settings));
}

export function loadKey() {
  return read("sessionStorage", KEY) ?? "";
}

export function saveKey(key) {
  write("sessionStorage", KEY, key);
}
