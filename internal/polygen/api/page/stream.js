// Server-sent events over fetch, which unlike EventSource can send a token and says
// why it failed. A stream that ends is opened again, at growing intervals.

import { headers } from "./token.js";

const silence = 20_000; // ms; the server says something every 15 s
const first = 500; // ms until the first new attempt
const longest = 10_000; // ms between attempts
const largest = 8 << 20; // characters of one event

// Parser cuts a stream of text into events.
export class Parser {
  #rest = "";
  #event = "";
  #data = [];

  // feed takes the next piece and returns the events that it completes.
  feed(piece) {
    const lines = (this.#rest + piece).split(/\r\n|\n|\r(?!$)/);
    this.#rest = lines.pop();
    if (this.#rest.length > largest) throw new Error("an event is too long");
    const events = [];
    for (const line of lines) {
      if (line === "") {
        if (this.#data.length > 0) events.push({ event: this.#event || "message", data: this.#data.join("\n") });
        this.#event = "";
        this.#data = [];
        continue;
      }
      const colon = line.indexOf(":");
      const field = colon < 0 ? line : line.slice(0, colon);
      const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
      if (field === "event") this.#event = value;
      if (field === "data") this.#data.push(value);
    }
    return events;
  }
}

// Stream reads one address for as long as it runs.
export class Stream {
  #url;
  #event;
  #state;
  #stopped = null;

  // event(name, data) is called for each one; state(name, why) with "open", "lost" or
  // "refused" (a token is needed, or another one; it is not tried again).
  constructor(url, { event, state }) {
    this.#url = url;
    this.#event = event;
    this.#state = state;
  }

  start() {
    if (this.#stopped) return;
    this.#stopped = new AbortController();
    this.#run(this.#stopped.signal);
  }

  stop() {
    this.#stopped?.abort();
    this.#stopped = null;
  }

  async #run(signal) {
    for (let attempt = 0; !signal.aborted; attempt++) {
      let why = "the stream ended";
      try {
        await this.#read(signal, () => (attempt = 0));
      } catch (e) {
        if (e.status === 401) {
          if (!signal.aborted) this.#state("refused", e.message);
          return;
        }
        why = e.message;
      }
      if (signal.aborted) return;
      this.#state("lost", why);
      await pause(Math.min(longest, first * 2 ** attempt) * (0.75 + Math.random() / 2), signal);
    }
  }

  // tell hands on an event. An error there is one of the page, not of the stream.
  #tell(event, data) {
    try {
      this.#event(event, data);
    } catch (e) {
      reportError(e);
    }
  }

  async #read(signal, heard) {
    const own = new AbortController();
    const end = () => own.abort();
    signal.addEventListener("abort", end);
    let watch = setTimeout(end, silence);
    try {
      const answer = await fetch(this.#url, { headers: headers(), signal: own.signal, cache: "no-store" });
      if (!answer.ok) throw Object.assign(new Error(await reason(answer)), { status: answer.status });
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      const parser = new Parser();
      let open = false;
      for (;;) {
        const { done, value } = await reader.read();
        if (done || signal.aborted) return;
        clearTimeout(watch);
        watch = setTimeout(end, silence);
        if (!open) {
          open = true;
          this.#state("open", "");
        }
        for (const { event, data } of parser.feed(value)) {
          heard();
          if (!signal.aborted) this.#tell(event, JSON.parse(data));
        }
      }
    } finally {
      clearTimeout(watch);
      signal.removeEventListener("abort", end);
      own.abort();
    }
  }
}

// get reads one JSON answer.
export async function get(url, signal) {
  const answer = await fetch(url, { headers: headers(), signal, cache: "no-store" });
  if (!answer.ok) throw Object.assign(new Error(await reason(answer)), { status: answer.status });
  return answer.json();
}

// reason is what the server says of an error, or its status.
async function reason(answer) {
  try {
    const { error } = JSON.parse((await answer.text()).slice(0, 2000));
    if (typeof error === "string") return error;
  } catch {
    // it was no JSON
  }
  return `status ${answer.status}`;
}

function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}
