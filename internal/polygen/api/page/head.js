// The head of the page: who answers, and the cluster's totals with what they were
// since the page was opened.

import { $, attribute, el, show, text } from "./dom.js";
import { count, rate } from "./format.js";
import { shorten, shown } from "./names.js";

const kept = 300; // samples of a sparkline
const width = 120;
const height = 24;

const tiles = [
  ["rate", "Requests/s", count],
  ["refused", "Refused/s", count],
  ["in_progress", "In progress", count],
  ["down", "Down", rate],
  ["up", "Up", rate],
  ["users", "Users", count],
  ["throttled", "Throttled", count],
  ["blocked", "Blocked", count],
  ["spent", "Spent", count],
].map(([field, name, format]) => {
  const value = el("span", { class: "value" }, "–");
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  for (const [k, v] of Object.entries({ viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true", class: "spark" })) svg.setAttribute(k, v);
  svg.append(line);
  const node = el("div", { class: "tile" }, el("dt", {}, name), el("dd", {}, value, svg));
  if (["throttled", "blocked", "spent"].includes(field)) node.dataset.bad = "";
  $("totals").append(node);
  return { field, format, node, value, line, samples: [] };
});

// showTotals shows a live answer's totals. Where requests cost nothing nobody spends anything.
export function showTotals(totals, units) {
  for (const t of tiles) {
    if (t.field === "spent") show(t.node, units.length > 0);
    const n = totals[t.field] ?? 0;
    text(t.value, t.format(n));
    if ("bad" in t.node.dataset) attribute(t.node, "data-bad", n > 0 ? "yes" : "");
    t.samples.push(n);
    if (t.samples.length > kept) t.samples.shift();
    t.line.setAttribute("points", points(t.samples));
  }
}

// points draws samples between nought and the largest, the last one at the right.
function points(samples) {
  const most = Math.max(1, ...samples);
  const step = width / Math.max(59, samples.length - 1); // a minute, then narrower
  const from = width - step * (samples.length - 1);
  return samples.map((n, i) => `${(from + i * step).toFixed(1)},${(height - 1 - (n / most) * (height - 2)).toFixed(1)}`).join(" ");
}

// showFrom shows who answers, and why it does not fully work. The reason is none of the
// status, which is read aloud: it may be another one each second.
export function showFrom(from) {
  const cut = Boolean(from.degraded);
  text($("polygen"), from.polygen);
  text($("leading"), cut ? "cut off" : from.leading ? "leads" : "follows");
  attribute($("leading"), "data-state", cut ? "cut" : undefined);
  attribute($("leading"), "title", cut ? undefined : from.leading ? "This polygen leads: it publishes the limits." : "This polygen does not lead.");
  text($("degraded"), cut ? "This polygen is cut off: what is seen here may be old." : "");
  text($("degraded-why"), cut ? shorten(shown(from.degraded), 400) : "");
  text($("version"), "limits " + from.version.slice(0, 12));
  attribute($("version"), "title", from.version);
}

// showConnection shows whether what is seen is true now.
export function showConnection(state, words) {
  const node = $("connection");
  if (node.dataset.state !== state) node.dataset.state = state;
  text(node, words);
  document.body.classList.toggle("stale", state === "stale");
}
