// The table of users with most.

import { $, List, attribute, el, show, text } from "./dom.js";
import { ago, count, exact, many, percent, rate } from "./format.js";
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
    if (u.endpoint) head.append(" ", el("span", { class: "badge" }, "at " + u.endpoint));
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
    part.node = el("tr", { role: "row" }, head, part.tier, state, use, part.rate, part.running, part.down, part.up, part.seen);
    return part;
  },
  update(part, u) {
    const state = held.state(u);
    const css = state === "ok" ? "" : state === "near" ? "near" : "limited " + state;
    if (part.node.className !== css) part.node.className = css;
    text(part.tier, u.tier + (u.known ? "" : " (unnamed)"));
    setState(part.state, state);
    text(part.use, useOf(u.near));
    const used = u.near ? u.near.used / Math.max(1, u.near.max) : 0;
    text(part.part, u.near ? percent(used) : "");
    show(part.bar, Boolean(u.near));
    const wide = Math.min(100, Math.round(used * 100)) + "%";
    if (part.fill.style.width !== wide) part.fill.style.width = wide;
    text(part.rate, count(u.rate));
    text(part.running, exact(u.in_progress));
    text(part.down, rate(u.down));
    text(part.up, rate(u.up));
    text(part.seen, ago(time - Date.parse(u.seen)));
  },
});

let held;
let time; // of the cluster, in ms
let last = null;
let resorted = true;

// showUsers shows a live answer. While somebody points at a row or is in one with the
// keyboard, rows stay where they are.
export function showUsers(live, whoIsHeld) {
  held = whoIsHeld;
  time = Date.parse(live.time);
  last = live;
  const still = !resorted && (body.contains(document.activeElement) || (matchMedia("(hover: hover)").matches && body.matches(":hover")));
  resorted = false;
  table.set(live.users, still);
  filter();
  const notes = [];
  if (live.users.length === 0) notes.push("No user has been seen yet.");
  else if (live.totals.seen > live.users.length) notes.push(`The first ${live.users.length} of ${many(live.totals.seen, "user")}.`);
  if (live.totals.dropped > 0) notes.push(`${many(live.totals.dropped, "user")} forgotten, for no more than ${exact(live.totals.capacity)} are remembered.`);
  if (still) notes.push("The order is held while you are in the table.");
  const typed = $("find-user").value.trim();
  if (typed && hits === 0) notes.push(`No row has “${shorten(shown(typed))}”. Enter opens the user of just that name.`);
  text($("users-note"), notes.join(" "));
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
  const sorted = (by) => {
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
