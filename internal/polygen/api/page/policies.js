// The policies as they are decided: the last ones, while they are looked at.

import { $, el, text } from "./dom.js";
import { Stream } from "./stream.js";
import { amount, clock, exact, nameOf } from "./format.js";
import { hashOf, ofHref, shown } from "./names.js";
import { nameOfUser } from "./limited.js";

const most = 200;
const drawEvery = 250; // ms

export class Policies {
  #stream;
  #waiting = []; // heard and not shown, the newest last
  #timer = 0;
  #count = 0; // heard while paused
  #visible = false;
  #state = "";

  constructor({ refused }) {
    this.#stream = new Stream("api/v1/policies", {
      event: (kind, data) => this.#hear(kind, data),
      state: (state, why) => {
        if (state === "refused") return refused();
        this.#state = state === "lost" ? `Not heard now: ${why}; trying again.` : "";
        this.#note();
      },
    });
    $("policies").addEventListener("toggle", () => this.visible(this.#visible));
    $("policies-pause").addEventListener("click", () => {
      $("policies-pause").setAttribute("aria-pressed", String(!this.#paused));
      text($("policies-pause"), this.#paused ? "Go on" : "Pause");
      this.#draw();
    });
    $("policies-clear").addEventListener("click", () => {
      this.#waiting = [];
      $("policy-rows").replaceChildren();
      this.#note();
    });
  }

  get #paused() {
    return $("policies-pause").getAttribute("aria-pressed") === "true";
  }

  // visible tells whether somebody can see the log; it listens only then.
  visible(yes) {
    this.#visible = yes;
    if (yes && $("policies").open) this.#stream.start();
    else this.#stream.stop();
  }

  #hear(kind, data) {
    this.#waiting.push({ ...data, kind });
    if (this.#waiting.length > most) this.#waiting.shift();
    if (this.#paused) this.#count++;
    this.#timer ||= setTimeout(() => this.#draw(), drawEvery);
  }

  #draw() {
    this.#timer = 0;
    if (!this.#paused) {
      const list = $("policy-rows");
      list.prepend(...this.#waiting.reverse().map(row));
      this.#waiting = [];
      this.#count = 0;
      while (list.childElementCount > most) list.lastElementChild.remove();
    }
    this.#note();
  }

  #note() {
    const paused = this.#paused ? `Paused; ${exact(this.#count)} more have come.` : "";
    text($("policies-note"), [this.#state, paused, `The last ${most}, the newest first. They are heard while this is open.`].filter(Boolean).join(" "));
  }
}

function row(p) {
  if (p.kind === "lost") return el("li", { class: "lost" }, `${exact(p.count)} policies came too fast to be shown here`);
  const at = p.time ? el("time", { datetime: p.time }, clock(new Date(p.time))) : "";
  const who = p.href ? el("a", { href: hashOf(ofHref(p.href)) }, el("bdi", {}, nameOfUser(p))) : "";
  return el("li", { "data-kind": p.kind }, at, " ", el("span", { class: "kind" }, p.kind), " ", who, " ", el("span", { class: "what" }, details(p)));
}

// details says in a phrase what a policy does.
function details(p) {
  const said = [];
  if (p.limit) said.push(nameOf(p.limit) + (p.max ? ` (${amount(p.limit, p.max)})` : ""));
  if (p.version) said.push("version " + p.version.slice(0, 12));
  if (p.until) said.push("until " + clock(new Date(p.until), new Date(p.time)));
  if (p.note) said.push(shown(p.note));
  if (p.mode === "dry-run") said.push("dry run");
  return said.join(" · ");
}
