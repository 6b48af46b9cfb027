// One user: whether requests are refused and why, what was used, and who decided what.

import { $, List, attribute, el, show, text } from "./dom.js";
import { ago, amount, clock, count, exact, nameOf, per, percent, rate, utc, windowOf } from "./format.js";
import { historyOf, readable, shorten, shown } from "./names.js";
import { decided, explain, mostOf, nearest, place } from "./why.js";
import { setState } from "./limited.js";
import { Charts } from "./charts.js";
import { get } from "./stream.js";

const charts = new Charts($("user-charts"), $("user-charts-note"));
document.addEventListener("sluice:theme", () => charts.colours());

const number = () => el("td", { class: "number" });

const why = new List($("user-why"), {
  key: (s) => s.at,
  make: () => ({ node: el("p") }),
  update: (part, s) => {
    text(part.node, s.text);
    attribute(part.node, "class", s.kind || undefined);
  },
});

const limits = new List($("user-limits"), {
  key: (l) => l.name,
  make: (l) => {
    const p = { used: number(), last: number(), max: number(), window: el("td"), mode: el("td"), origin: el("td", { class: "origin" }) };
    p.node = el("tr", {}, el("th", { scope: "row" }, nameOf(l.name)), p.used, p.last, p.max, p.window, p.mode, p.origin);
    return p;
  },
  update: (p, l) => {
    const most = mostOf(l);
    attribute(p.node, "class", most >= l.max ? (l.mode === "enforce" ? "limited" : "near") : most >= 0.8 * l.max ? "near" : undefined);
    text(p.used, amount(l.name, l.used));
    text(p.last, l.last === undefined ? "–" : amount(l.name, l.last));
    text(p.max, amount(l.name, l.max) + (l.burst ? ` + burst ${exact(l.burst)}` : "") + (l.except ? ` except ${l.except.join(", ")}` : ""));
    text(p.window, l.window ? windowOf(l.window) : "–");
    text(p.mode, l.mode);
    text(p.origin, l.origin ? place(l.origin) : "–");
  },
});

const budgetOf = (limit) => limit.unit ?? nameOf(limit.name.split("/")[0]);

const budgets = new List($("user-budgets"), {
  key: (b) => b.name,
  make: (b) => {
    const p = { state: el("span", { class: "state" }), used: el("span", { class: "use-text" }), part: el("span", { class: "use-part" }), fill: el("span", { class: "fill" }), reset: el("p", { class: "calm" }) };
    p.node = el(
      "li",
      {},
      el("h3", {}, `${budgetOf(b)} ${per(b.window)}`, " ", p.state),
      el("p", { class: "use-line" }, p.used, p.part),
      el("span", { class: "use-bar", "aria-hidden": "true" }, p.fill),
      p.reset,
    );
    return p;
  },
  update: (p, b) => {
    const part = b.used / Math.max(1, b.max);
    const state = part >= 1 ? "spent" : part >= 0.8 ? "near" : "ok";
    attribute(p.node, "data-state", state);
    setState(p.state, state);
    text(p.used, `${exact(b.used)} of ${exact(b.max)} used, ${exact(b.left)} left${b.mode === "dry-run" ? " (dry run: nobody is refused)" : ""}`);
    text(p.part, percent(part));
    p.fill.style.width = Math.min(100, Math.floor(part * 100)) + "%";
    const [at, now] = [new Date(b.resets), new Date(b.now)];
    const debt = Math.min(b.max, Math.max(0, b.used - b.max));
    text(p.reset, `Begins anew at ${clock(at, now)} here, ${utc(at, now)} UTC${b.unit && debt > 0 && b.mode === "enforce" ? `, with a debt of ${exact(debt)}` : ""}.`);
  },
});

const started = new List($("user-started"), {
  key: (s) => s.class,
  make: (s) => {
    const p = { offered: number(), admitted: number(), refused: number(), limit: el("td") };
    p.node = el("tr", {}, el("th", { scope: "row" }, s.class === "*" ? "all together" : shown(s.class)), p.offered, p.admitted, p.refused, p.limit);
    return p;
  },
  update: (p, s) => {
    text(p.offered, count(s.admitted + s.refused));
    text(p.admitted, count(s.admitted));
    text(p.refused, count(s.refused));
    text(p.limit, s.limit || "no limit of its own");
  },
});

const places = new List($("user-places"), {
  key: (p) => p.instance,
  make: (i) => {
    const p = { running: number(), slots: number(), down: number(), downShare: number(), up: number(), upShare: number() };
    p.node = el("tr", {}, el("th", { scope: "row" }, el("bdi", {}, shown(i.instance))), p.running, p.slots, p.down, p.downShare, p.up, p.upShare);
    return p;
  },
  update: (p, i) => {
    text(p.running, exact(i.in_progress));
    text(p.slots, i.slots ? exact(i.slots) : "–");
    text(p.down, rate(i.down));
    text(p.downShare, rate(i.down_share));
    text(p.up, rate(i.up));
    text(p.upShare, rate(i.up_share));
  },
});

const decisions = new List($("user-decisions"), {
  key: (d) => d.at,
  make: () => {
    const p = { at: el("th", { scope: "row" }), kind: el("td"), limit: el("td"), because: el("td") };
    p.node = el("tr", {}, p.at, p.kind, p.limit, p.because);
    return p;
  },
  update: (p, { first, last, times, limits, now }) => {
    const [kind, because] = decided(last, limits);
    const [from, to] = [first, last].map((d) => clock(new Date(d.time), now));
    text(p.at, from === to ? to : `${from} – ${to}`);
    text(p.kind, kind + (times > 1 ? `, ${times} times` : ""));
    text(p.limit, nameOf(last.limit));
    text(p.because, because);
  },
});

let present = null; // who is shown
let fetching = null;

// openUser shows a user of whom nothing is known yet.
export function openUser(who) {
  closeUser();
  present = who;
  const name = readable(who.name);
  $("user-heading").replaceChildren(el("bdi", {}, shorten(name, 400)));
  attribute($("user-verdict"), "data-state", undefined);
  setState($("user-state"), "…");
  text($("user-tier"), "");
  text($("user-seen"), "");
  why.set([]);
  show($("user-budget"), false);
  for (const list of [budgets, limits, started, places, decisions]) list.set([]);
  for (const note of ["user-limits-note", "user-started-note", "user-places-note", "user-decisions-note", "user-charts-note"]) show($(note), false);
  return shorten(name);
}

// closeUser forgets who was shown.
export function closeUser() {
  fetching?.abort();
  fetching = null;
  present = null;
  charts.reset();
}

// loadHistory reads what was used before; the live answers go on from there.
export async function loadHistory() {
  const path = present && historyOf(present);
  if (!path) return;
  fetching?.abort();
  fetching = new AbortController();
  const { signal } = fetching;
  try {
    const h = await get(path, signal);
    if (signal.aborted) return;
    charts.history(h);
    charts.draw();
  } catch {
    // The charts begin now: a user who was not looked at before has no history.
  }
}

// showUser shows a live answer's user.
export function showUser(live, held) {
  const user = live.user;
  if (!user || !present) return;
  const now = Date.parse(live.time);
  const state = held.state(user);
  const close = state === "ok" && nearest(user.limits).part >= 0.8 ? "near" : state;
  setState($("user-state"), close);
  attribute($("user-verdict"), "data-state", close);
  text($("user-tier"), `tier ${user.tier || "–"}${user.group ? ", group " + user.group : ""}${user.known ? "" : " (not in the limit file)"}`);
  text($("user-seen"), user.seen ? "seen " + ago(now - Date.parse(user.seen)) : "not seen lately");
  why.set(explain({ ...user, by: present.by }, now).map((s, at) => ({ ...s, at })));

  limits.set(user.limits);
  const budgeted = user.limits.filter((l) => l.resets);
  // The longest window first: the day is what people mean by a budget.
  budgets.set(budgeted.sort((a, b) => (budgetOf(a) === budgetOf(b) ? b.window - a.window : budgetOf(a) < budgetOf(b) ? -1 : 1)).map((l) => ({ ...l, now })));
  show($("user-budget"), budgeted.length > 0);
  const starts = startedOf(user);
  started.set(starts);
  show($("user-started-note"), starts.length === 0);
  places.set(user.instances);
  decisions.set(runs(user.decisions).map((r, at) => ({ ...r, at, limits: user.limits, now: new Date(now) })));
  show($("user-limits-note"), user.limits.length === 0);
  show($("user-places-note"), user.instances.length === 0);
  show($("user-decisions-note"), user.decisions.length === 0);
  charts.live(user, now);
}

// startedOf are the requests that a user offers, all of them first, then by their number,
// each with the limits that are of that class.
function startedOf(user) {
  const admitted = user.started ?? {};
  const refused = user.refused ?? {};
  const offered = (name) => (admitted[name] ?? 0) + (refused[name] ?? 0);
  return Object.keys({ ...admitted, ...refused })
    .sort((a, b) => (b === "*") - (a === "*") || offered(b) - offered(a) || (a < b ? -1 : 1))
    .map((name) => ({
      class: name,
      admitted: admitted[name] ?? 0,
      refused: refused[name] ?? 0,
      limit: user.limits.filter((l) => l.window && !l.unit && l.name.split("/")[0] === name).map((l) => `${exact(l.max)} per ${windowOf(l.window)}`).join(", "),
    }));
}

// runs puts decisions together that are the same again and again. The newest come first.
function runs(list) {
  const all = [];
  for (const d of list) {
    const r = all[all.length - 1];
    if (r && d.kind !== "refused" && r.first.kind === d.kind && r.first.limit === d.limit && r.first.mode === d.mode) {
      r.first = d;
      r.times++;
    } else {
      all.push({ first: d, last: d, times: 1 });
    }
  }
  return all;
}
