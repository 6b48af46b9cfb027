// What a user used in the last minutes, second by second: from the history, then from
// the live answers.

export const span = 300; // seconds shown at most
const least = 60; // seconds shown at least

export class Samples {
  #of = new Map(); // name → {limit, at: second → number}
  #last = 0; // the newest second

  // history takes the answer of the same name.
  history(h) {
    const take = (limit, values) => {
      values.forEach((n, i) => n !== null && this.#set(limit, h.begin + i * h.step, n));
    };
    for (const l of h.limits) take({ name: l.name, max: l.max, window: l.window ?? 0, mode: l.mode }, l.used);
  }

  // live takes the user of a live answer; now is the cluster's time in ms. A second is
  // taken when it is over: of a limit per second the last one is known exactly.
  live(user, now) {
    const second = Math.floor(now / 1000) - 1;
    for (const l of user.limits) {
      this.#set({ name: l.name, max: l.max, window: l.window ?? 0, mode: l.mode }, second, l.window === 1 ? (l.last ?? l.used) : l.used);
    }
    const present = new Set(user.limits.map((l) => l.name));
    for (const name of this.#of.keys()) {
      if (!present.has(name)) this.#of.delete(name);
    }
  }

  #set(limit, second, n) {
    let s = this.#of.get(limit.name);
    if (!s) this.#of.set(limit.name, (s = { limit, at: new Map() }));
    s.limit = limit;
    s.at.set(second, n);
    this.#last = Math.max(this.#last, second);
    if (s.at.size > 2 * span) {
      for (const t of s.at.keys()) {
        if (t <= this.#last - span) s.at.delete(t);
      }
    }
  }

  limits() {
    return Array.from(this.#of.values(), (s) => s.limit);
  }

  // seconds are those shown, the newest last: from the first of which something is known.
  seconds() {
    let first = this.#last;
    for (const s of this.#of.values()) {
      for (const t of s.at.keys()) if (t < first) first = t;
    }
    const n = Math.max(least, Math.min(span, this.#last - first + 1));
    return Array.from({ length: n }, (_, i) => this.#last - n + 1 + i);
  }

  // of returns a limit's use in each of some seconds; null where it is not known.
  of(name, seconds) {
    const at = this.#of.get(name)?.at ?? new Map();
    return seconds.map((t) => at.get(t) ?? null);
  }
}

// summary says in words what a chart shows.
export function summary(values, max) {
  const known = values.filter((n) => n !== null);
  if (known.length === 0) return null;
  let least = Infinity;
  let most = -Infinity;
  let reached = 0;
  for (const n of known) {
    least = Math.min(least, n);
    most = Math.max(most, n);
    if (n >= max) reached++;
  }
  return { now: known[known.length - 1], least, most, reached, seconds: known.length };
}
