// Who is limited now: remembered for a few moments, announced when it changes, listed.

import { $, List, el, show, text } from "./dom.js";
import { hashOf, ofHref, readable, shorten } from "./names.js";
import { amount, nameOf } from "./format.js";

// A throttle ends with its second, and a user who goes on comes under the next one:
// who was limited this long ago still is shown so.
const holdFor = 3000; // ms

// Held remembers who is limited.
export class Held {
  #users = new Map(); // href → {summary, until}

  // see takes a live answer. now is this machine's time, which only goes forward.
  see(live, now) {
    for (const list of [live.users, live.limited]) {
      for (const u of list) {
        if (u.state !== "ok") this.#users.set(u.href, { summary: u, until: now + holdFor });
      }
    }
    for (const [href, h] of this.#users) {
      if (h.until <= now) this.#users.delete(href);
    }
  }

  // state of a summary: "throttled", "blocked", "spent", "denied", "near" or "ok".
  state(u) {
    if (u.state !== "ok") return u.state;
    return this.#users.get(u.href)?.summary.state ?? (u.near?.max && u.near.used >= 0.8 * u.near.max ? "near" : "ok");
  }

  list() {
    return Array.from(this.#users.values(), (h) => h.summary).sort((a, b) => (a.href < b.href ? -1 : 1));
  }
}

export const stateText = { ok: "ok", near: "near limit", throttled: "throttled", blocked: "blocked", spent: "spent", denied: "denied" };

// setState shows a state as text and colour.
export function setState(node, state) {
  text(node, stateText[state] ?? state);
  if (node.dataset.state !== state) node.dataset.state = state;
}

// useOf is a user's nearest limit, in words.
export function useOf(near) {
  if (!near) return "no limit";
  const dry = near.mode === "dry-run" ? " (dry run)" : "";
  return `${nameOf(near.limit)} ${amount(near.limit, near.used)} of ${amount(near.limit, near.max)}${dry}`;
}

// nameOfUser is what a user is called on the page.
export function nameOfUser(u) {
  const who = ofHref(u.href);
  return shorten(who.by === "key" ? u.user : readable(who.name));
}

const rows = new List($("limited"), {
  key: (u) => u.href,
  make: (u) => {
    const state = el("span", { class: "state" });
    const use = el("span", { class: "use-text" });
    const node = el("li", {}, el("a", { href: hashOf(ofHref(u.href)) }, el("bdi", {}, nameOfUser(u))), " ", state, " ", use);
    return { node, state, use };
  },
  update: (part, u) => {
    setState(part.state, u.state);
    text(part.use, useOf(u.near));
  },
});

// showLimited lists them.
export function showLimited(held, total) {
  const list = held.list();
  rows.set(list);
  show($("limited-none"), list.length === 0);
  show($("limited"), list.length > 0);
  text($("limited-count"), list.length > 0 ? (total > list.length ? `${list.length} of ${total}` : String(list.length)) : "");
}

// Announcer tells those who do not see the page who has come to be limited and who no
// longer is: so often at most.
const announceEvery = 6000; // ms

export class Announcer {
  #known = null; // null: the first list is not news
  #last = -Infinity;

  // tell takes the list, and returns what to say: "" for nothing.
  tell(list, now) {
    const present = new Map(list.map((u) => [u.href, u]));
    if (this.#known === null) {
      this.#known = present;
      return "";
    }
    if (now - this.#last < announceEvery) return "";
    const come = list.filter((u) => this.#known.get(u.href)?.state !== u.state);
    const gone = Array.from(this.#known.values()).filter((u) => !present.has(u.href));
    if (come.length + gone.length === 0) return "";
    this.#known = present;
    this.#last = now;
    const parts = [];
    for (const state of ["throttled", "blocked", "spent", "denied"]) parts.push(names(come.filter((u) => u.state === state), stateText[state]));
    parts.push(names(gone, "no longer limited"));
    return parts.filter(Boolean).join(" ");
  }
}

function names(users, what) {
  if (users.length === 0) return "";
  const some = users.slice(0, 3).map((u) => nameOfUser(u));
  const more = users.length - some.length;
  return `${some.join(", ")}${more > 0 ? ` and ${more} more` : ""} ${users.length === 1 ? "is" : "are"} ${what}.`;
}
