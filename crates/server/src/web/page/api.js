// Talks to the server that served this page. Addresses are relative, so that the page works below a proxy's path too.

import { events } from "./sse.js";

/** What went wrong, in the server's words where it had any. `retryAfter` is in seconds. */
export class ServerError extends Error {
  constructor(message, { status = 0, type = "", code = null, retryAfter = null } = {}) {
    super(message);
    this.status = status;
    this.type = type;
    this.code = code;
    this.retryAfter = retryAfter;
  }

  /** Whether the same request may well succeed in a moment. */
  get passing() {
    return this.status === 429 || this.status === 503;
  }

  /** What is kept with a message. */
  get plain() {
    return { message: this.message, status: this.status, type: this.type, code: this.code };
  }
}

async function request(path, { key, signal, body } = {}) {
  const headers = {};
  if (key) headers.authorization = `Bearer ${key}`;
  if (body) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method: body ? "POST" : "GET",
      headers,
      body: body ? JSON.stringify(body) : undefined,
      signal,
      cache: "no-store",
      redirect: "error",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server cannot be reached.");
  }
  if (!response.ok) throw await refused(response);
  return response;
}

async function refused(response) {
  const text = await response.text().catch(() => "");
  let said = null;
  try {
    said = JSON.parse(text).error;
  } catch {
    // A proxy's page, say.
  }
  const seconds = Number(response.headers.get("retry-after"));
  return new ServerError(said?.message ?? `The server answered with status ${response.status}.`, {
    status: response.status,
    type: said?.type ?? "",
    code: said?.code ?? null,
    retryAfter: seconds > 0 ? seconds : null,
  });
}

/** The chunks of a streamed chat completion. Throws a `ServerError`, also for an error in mid-stream or a cut one. */
export async function* chat(body, { key, signal }) {
  const response = await request("v1/chat/completions", { key, signal, body });
  try {
    for await (const data of events(response.body)) {
      if (data === "[DONE]") return;
      let chunk;
      try {
        chunk = JSON.parse(data);
      } catch {
        throw new ServerError("The server sent an event that is not JSON.");
      }
      if (chunk.error) throw new ServerError(chunk.error.message ?? "The server failed.", chunk.error);
      yield chunk;
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ServerError) throw error;
    throw new ServerError("The connection broke off before the answer was whole.");
  }
  throw new ServerError("The connection ended before the answer was whole.");
}

/** The first model that the server has: `{id, max_model_len}`. */
export async function model(options) {
  const list = await (await request("v1/models", options)).json();
  return list.data?.[0] ?? null;
}

/** What the page shows of the server's metrics: name to value, summed over labels. */
export async function metrics(options) {
  return readMetrics(await (await request("metrics", options)).text());
}

/** Reads the Prometheus text format: each sample's value, summed over its labels. */
export function readMetrics(text) {
  const values = {};
  for (const line of text.split("\n")) {
    const found = /^([A-Za-z_:][\w:]*)(?:\{.*\})?[ \t]+(\S+)/.exec(line);
    if (!found) continue;
    const value = Number(found[2]);
    if (Number.isFinite(value)) values[found[1]] = (values[found[1]] ?? 0) + value;
  }
  return values;
}
