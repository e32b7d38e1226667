// Server-sent events out of a response's body, read as the HTML standard reads them (9.2.6): lines end in CR, LF or CRLF,
// a line that begins with a colon is a comment, an empty line ends an event, an event that the end cuts off is dropped.
// EventSource itself cannot be used: it sends no body and no key.

/** Cuts decoded text, in whatever pieces it arrives, into the data of events. */
export class EventParser {
  #line = "";
  #data = [];
  #afterCr = false;

  /** Takes the next piece and returns the data of each event that it completes. */
  push(text) {
    const complete = [];
    if (this.#afterCr && text !== "") {
      this.#afterCr = false;
      // The second half of a CRLF that was cut in two.
      if (text[0] === "\n") text = text.slice(1);
    }
    const end = /\r\n|\n|\r/g;
    let from = 0;
    for (let found = end.exec(text); found; found = end.exec(text)) {
      const line = this.#line + text.slice(from, found.index);
      this.#line = "";
      from = end.lastIndex;
      this.#afterCr = found[0] === "\r" && from === text.length;
      const data = this.#take(line);
      if (data !== null) complete.push(data);
    }
    this.#line += text.slice(from);
    return complete;
  }

  /** Takes one line; the data of the event if the line ends one that has any. */
  #take(line) {
    if (line === "") {
      if (this.#data.length === 0) return null;
      const data = this.#data.join("\n");
      this.#data = [];
      return data;
    }
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    if (field === "data") {
      const value = colon < 0 ? "" : line.slice(colon + 1);
      this.#data.push(value.startsWith(" ") ? value.slice(1) : value);
    }
    return null;
  }
}

/** The data of each event of a response's body. Leaving the loop early cancels the body, and with it the request. */
export async function* events(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  const parser = new EventParser();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      yield* parser.push(decoder.decode(value, { stream: !done }));
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
