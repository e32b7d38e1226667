// An answer as it grows: folds the chunks of a chat completion's stream into one message, and measures it.

/** Over how long the live rate is taken, in milliseconds. */
const RATE_WINDOW = 2000;

/**
 * A message of the assistant, which `Answer` fills. `calls` are `{id, name, arguments}` with the arguments' JSON as text;
 * `finish` is the server's finish_reason, or "stopped" when the user stopped it; `error` is what `api.js` makes of one.
 */
export function assistant() {
  return { role: "assistant", content: "", reasoning: "", calls: [], finish: null, error: null, stats: null };
}

/** Folds chunks into a message. Times are in milliseconds of one clock. */
export class Answer {
  #message;
  #started;
  #first = null;
  #reasoningFrom = null;
  #reasoningTo = null;
  #usage = null;
  #pieces = 0;
  #samples = [];

  constructor(message, now) {
    this.#message = message;
    this.#started = now;
  }

  /** Takes a chunk that arrived at `now`. */
  add(chunk, now) {
    if (chunk.usage) this.#usage = chunk.usage;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    const delta = choice.delta ?? {};
    // Servers write the one, the other, or both with equal text.
    const reasoning = delta.reasoning_content ?? delta.reasoning ?? "";
    if (reasoning !== "") {
      this.#message.reasoning += reasoning;
      this.#reasoningFrom ??= now;
      this.#reasoningTo = now;
    }
    if (delta.content) this.#message.content += delta.content;
    for (const part of delta.tool_calls ?? []) this.#call(part);
    if (reasoning !== "" || delta.content || delta.tool_calls?.length) {
      this.#first ??= now;
      this.#pieces += 1;
    }
    if (choice.finish_reason) this.#message.finish = choice.finish_reason;
    this.#samples.push({ now, tokens: this.tokens });
    while (this.#samples.length > 2 && now - this.#samples[0].now > RATE_WINDOW) this.#samples.shift();
  }

  #call(part) {
    const call = (this.#message.calls[part.index ?? 0] ??= { id: "", name: "", arguments: "" });
    if (part.id) call.id = part.id;
    if (part.function?.name) call.name = part.function.name;
    call.arguments += part.function?.arguments ?? "";
  }

  /** Tokens so far: what the server counted, or the pieces that came from one that does not count while it streams. */
  get tokens() {
    return this.#usage?.completion_tokens ?? this.#pieces;
  }

  /** Tokens a second over the last moments; `null` until there is something to divide. */
  get rate() {
    const [from, to] = [this.#samples[0], this.#samples.at(-1)];
    return to && to.now > from.now ? ((to.tokens - from.tokens) * 1000) / (to.now - from.now) : null;
  }

  /** Whether the last thing that came was reasoning. */
  get thinking() {
    return this.#message.content === "" && this.#message.calls.length === 0 && this.#message.finish === null;
  }

  /** The numbers that stay with the message. */
  stats(now) {
    const usage = this.#usage;
    const decode = this.#first === null ? 0 : (now - this.#first) / 1000;
    const tokens = this.tokens;
    return {
      tokens,
      prompt: usage?.prompt_tokens ?? null,
      cached: usage?.prompt_tokens_details?.cached_tokens ?? null,
      thought: usage?.completion_tokens_details?.reasoning_tokens ?? null,
      thoughtFor: this.#reasoningFrom === null ? null : (this.#reasoningTo - this.#reasoningFrom) / 1000,
      firstAfter: this.#first === null ? null : (this.#first - this.#started) / 1000,
      // The first token is the prompt's work, not decoding.
      rate: decode > 0 && tokens > 1 ? (tokens - 1) / decode : null,
    };
  }
}
