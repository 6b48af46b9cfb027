// The table of users with most.

import { $, List, attribute, el, show, text } from "./dom.js";
import { ago, count, exact, many, per, percent, rate } from "./format.js";
import { hashOf, ofHref, readable, shorten, shown } from "./names.js";
import { setState, useOf } from "./limited.js";

const body = $("user-rows");

const table = new List(body, {
  key: (u) => u.href,
  make(u) {
    const who = ofHref(u.href);
    const name = who.by === "key" ? shown(u.user) : readable(who.name);
    const link = el("a", { href: hashOf(who), title: name.length > 80 ? shorten(name, 1000) : undefined }, el("bdi", {}, shorten(name)));
    const head = el("th", { scope: "row", role: "rowheader" }, link);
    const cell = (label, css) => el("td", { role: "cell", "data-label": label, class: css });
    const part = {
      name: name.toLowerCase(),
      tier: cell("Tier", "tier"),
      state: el("span", { class: "state" }),
      use: el("span", { class: "use-text" }),
      part: el("span", { class: "use-part" }),
      fill: el("span", { class: "fill" }),
      bar: null,
      rate: cell("Requests/s", "number"),
      refused: cell("Refused/s", "number"),
      running: cell("In progress", "number"),
      down: cell("Down", "number"),
      up: cell("Up", "number"),
      seen: cell("Last seen", "number"),
    };
    part.bar = el("span", { class: "use-bar", "aria-hidden": "true" }, part.fill);
    const state = cell("State", "state-cell");
    state.append(part.state);
    const use = cell("Nearest limit", "use");
    use.append(el("span", { class: "use-line" }, part.use, part.part), part.bar);
    part.node = el("tr", { role: "row" }, head, part.tier, state, use, part.rate, part.refused, part.running, part.down, part.up, part.seen);
    return part;
  },
  update(part, u) {
    const state = held.state(u);
    const css = state === "ok" ? "" : state === "near" ? "near" : "limited " + state;
    if (part.node.className !== css) part.node.className = css;
    text(part.tier, u.tier + (u.known ? "" : " (unnamed)"));
    setState(part.state, state);
    const limit = u.cost ?? u.near;
    text(part.use, u.cost ? spentOf(u.cost) : useOf(u.near));
    const used = limit ? limit.used / Math.max(1, limit.max) : 0;
    text(part.part, limit ? percent(used) : "");
    show(part.bar, Boolean(limit));
    const wide = Math.min(100, Math.round(used * 100)) + "%";
    if (part.fill.style.width !== wide) part.fill.style.width = wide;
    text(part.rate, count(u.rate));
    text(part.refused, u.refused ? count(u.refused) : "");
    text(part.running, exact(u.in_progress));
    text(part.down, rate(u.down));
    text(part.up, rate(u.up));
    text(part.seen, ago(time - Date.parse(u.seen)));
  },
});

// spentOf is how much of a limit of costs is used, in words.
const spentOf = (c) => `${exact(c.used)} of ${exact(c.max)} ${per(c.window)}${c.mode === "dry-run" ? " (dry run)" : ""}`;

// unitOf is the unit of an order by cost; "" of any other.
const unitOf = (sort) => (sort.startsWith("cost:") ? sort.slice("cost:".length) : "");

let held;
let time; // of the cluster, in ms
let last = null;
let resorted = true;
let units = []; // what requests cost
let sorted;

// showUsers shows a live answer. While somebody points at a row or is in one with the
// keyboard, rows stay where they are.
export function showUsers(live, whoIsHeld) {
  held = whoIsHeld;
  time = Date.parse(live.time);
  last = live;
  showUnits(live.units ?? [], live.sort);
  const still = !resorted && (body.contains(document.activeElement) || (matchMedia("(hover: hover)").matches && body.matches(":hover")));
  resorted = false;
  table.set(live.users, still);
  filter();
  const notes = [];
  const unit = unitOf(live.sort);
  text($("use-heading"), unit ? `${unit} used` : "Nearest limit");
  if (live.users.length === 0) notes.push(unit ? `Nobody was charged any ${unit} yet in the present window.` : "No user has been seen yet.");
  else if (unit) notes.push(`Those who were charged most ${unit}, in a day or the longest window that limits them.`);
  else if (live.totals.seen > live.users.length) notes.push(`The first ${live.users.length} of ${many(live.totals.seen, "user")}.`);
  if (live.totals.dropped > 0) notes.push(`${many(live.totals.dropped, "user")} forgotten, for no more than ${exact(live.totals.capacity)} are remembered.`);
  if (still) notes.push("The order is held while you are in the table.");
  const typed = $("find-user").value.trim();
  if (typed && hits === 0) notes.push(`No row has “${shorten(shown(typed))}”. Enter opens the user of just that name.`);
  text($("users-note"), notes.join(" "));
}

// showUnits offers an order by each unit that requests cost.
function showUnits(now, order) {
  if (now.join() === units.join()) return;
  units = now;
  for (const option of $("sort").querySelectorAll("option[value^='cost:']")) option.remove();
  for (const unit of units) $("sort").append(el("option", { value: "cost:" + unit }, `Cost in ${unit}`));
  attribute($("users-tools"), "data-units", units.length > 0 ? "" : undefined);
  // Of a unit that the limit file has no more nobody is listed.
  if (unitOf(order) && !units.includes(unitOf(order))) sorted("rate");
  else $("sort").value = order;
}

let hits = 0;

// filter hides the rows whose names do not contain what is typed.
function filter() {
  const typed = $("find-user").value.trim().toLowerCase();
  hits = 0;
  for (const row of body.rows) {
    const match = !typed || row.cells[0].textContent.toLowerCase().includes(typed);
    show(row, match);
    if (match) hits++;
  }
}

// showOrder marks the column by which the rows are sorted.
export function showOrder(sort) {
  for (const th of $("users").querySelectorAll("th[data-sort]")) attribute(th, "aria-sort", th.dataset.sort === sort ? "descending" : "none");
  $("sort").value = sort;
}

// onUsers calls back when another order, another number of rows, or a user is wanted.
export function onUsers({ order, rows, open }) {
  sorted = (by) => {
    resorted = true;
    order(by);
  };
  for (const th of $("users").querySelectorAll("th[data-sort]")) th.firstElementChild.addEventListener("click", () => sorted(th.dataset.sort));
  $("sort").addEventListener("change", () => sorted($("sort").value));
  $("rows").addEventListener("change", () => rows(Number($("rows").value)));
  $("find-user").addEventListener("input", () => last && showUsers(last, held));
  $("find").addEventListener("submit", (e) => {
    e.preventDefault();
    const name = $("find-user").value.trim();
    if (name) open(name);
  });
}
