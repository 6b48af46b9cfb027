// The users with background jobs that run or wait. Workers are asked only while somebody can see
// the table, and apart from the stream: one that does not answer holds up nothing else.

import { $, List, el, show, text } from "./dom.js";
import { ago, exact, many } from "./format.js";
import { hashOf, ofHref, readable, shorten, shown } from "./names.js";
import { get } from "./stream.js";

const url = "api/v1/jobs?n=50";
const next = 2000; // ms from an answer to the next question
const seldom = 30_000; // the same while polygen knows no workers

const body = $("job-rows");

const table = new List(body, {
  key: (u) => u.href,
  make(u) {
    const who = ofHref(u.href);
    const name = who.by === "key" ? shown(u.user) : readable(who.name);
    const link = el("a", { href: hashOf(who), title: name.length > 80 ? shorten(name, 1000) : undefined }, el("bdi", {}, shorten(name)));
    const cell = (label, css) => el("td", { role: "cell", "data-label": label, class: css });
    const part = {
      tier: cell("Tier", "tier"),
      running: cell("Running", "number"),
      waiting: cell("Waiting", "number"),
      since: cell("Waiting since", "number"),
      held: cell("Held by", "held"),
    };
    part.node = el("tr", { role: "row" }, el("th", { scope: "row", role: "rowheader" }, link), part.tier, part.running, part.waiting, part.since, part.held);
    return part;
  },
  update(part, u) {
    text(part.tier, u.tier);
    text(part.running, exact(u.running));
    text(part.waiting, exact(u.waiting) + (u.at_least ? "+" : ""));
    text(part.since, u.since ? `${ago(time - Date.parse(u.since))} (job ${u.oldest})` : "–");
    text(part.held, heldBy(u));
  },
});

let time; // of the answer, in ms

// heldBy says why jobs of a user wait.
function heldBy(u) {
  if (u.waiting === 0) return "–";
  if (!u.held) return "no limit of theirs: they wait for a worker";
  return `${u.held.service ? `limit of ${shown(u.held.service)}` : "limit of all jobs"}: ${exact(u.held.max)} at a time`;
}

function showJobs(answer) {
  time = Date.parse(answer.time);
  show($("jobs"), answer.workers.length > 0);
  // Rows stay where they are while somebody points at one or is in one.
  table.set(answer.users, body.contains(document.activeElement) || (matchMedia("(hover: hover)").matches && body.matches(":hover")));
  show($("jobs-table"), answer.users.length > 0);
  text($("jobs-count"), exact(answer.found) + (answer.partial ? " or more" : ""));
  const away = answer.workers.filter((w) => w.problem);
  $("jobs-problems").replaceChildren(...away.map((w) => el("li", {}, el("strong", {}, `No answer of worker ${shown(w.address)}: `), shorten(shown(w.problem), 400))));
  const notes = [];
  if (away.length > 0) notes.push("Jobs that only workers without an answer know are missing.");
  if (answer.users.length === 0 && away.length < answer.workers.length) notes.push("No job runs or waits.");
  if (answer.found > answer.users.length) notes.push(`The first ${answer.users.length} of ${many(answer.found, "user")}.`);
  if (answer.partial) notes.push("There are more users with jobs than workers look at.");
  text($("jobs-note"), notes.join(" "));
}

// Jobs asks again and again while it is visible.
export class Jobs {
  #refused;
  #stopped = null;

  constructor({ refused }) {
    this.#refused = refused;
  }

  // visible tells whether somebody can see the table.
  visible(yes) {
    if (yes === Boolean(this.#stopped)) return;
    this.#stopped?.abort();
    this.#stopped = yes ? new AbortController() : null;
    if (yes) this.#ask(this.#stopped.signal);
  }

  async #ask(signal) {
    let wait = next;
    try {
      const answer = await get(url, signal);
      if (signal.aborted) return;
      showJobs(answer);
      if (answer.workers.length === 0) wait = seldom;
    } catch (e) {
      if (signal.aborted) return;
      if (e.status === 401) return this.#refused();
      text($("jobs-note"), `Not heard now: ${e.message}; trying again.`);
    }
    setTimeout(() => signal.aborted || this.#ask(signal), wait);
  }
}
