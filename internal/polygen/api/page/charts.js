// A chart for each limit of one user, with the limit drawn in. What a chart shows is
// said in words and in a table, too.

import { el, show, text } from "./dom.js";
import { amount, bytes, clock, count, nameOf, ofBytes, per } from "./format.js";
import { Samples, summary } from "./samples.js";

const most = 12; // charts
const height = 150; // px
const every = 10; // seconds of a row in the table

export class Charts {
  #parent;
  #note;
  #samples = new Samples();
  #charts = new Map(); // name of a limit → Chart

  constructor(parent, note) {
    this.#parent = parent;
    this.#note = note;
  }

  // reset forgets the user.
  reset() {
    for (const c of this.#charts.values()) c.destroy();
    this.#charts.clear();
    this.#samples = new Samples();
  }

  history(h) {
    this.#samples.history(h);
  }

  live(user, now) {
    this.#samples.live(user, now);
    this.draw();
  }

  // draw brings the charts up to date.
  draw() {
    const limits = this.#samples.limits();
    const seconds = this.#samples.seconds();
    const shown = limits.slice(0, most);
    for (const [name, chart] of this.#charts) {
      if (!shown.some((l) => l.name === name)) {
        chart.destroy();
        this.#charts.delete(name);
      }
    }
    for (const limit of shown) {
      let chart = this.#charts.get(limit.name);
      if (!chart) {
        chart = new Chart(this.#parent, limit);
        this.#charts.set(limit.name, chart);
      }
      chart.show(limit, seconds, this.#samples.of(limit.name, seconds));
    }
    this.#note.hidden = limits.length > 0 && limits.length <= most;
    text(this.#note, limits.length > most ? `${limits.length - most} more limits are in the table below.` : "No limit, so nothing to draw.");
  }

  // colours takes them anew, after the theme changed.
  colours() {
    for (const c of this.#charts.values()) c.colours();
  }
}

class Chart {
  #limit;
  #node;
  #plot;
  #words;
  #reached;
  #pointed;
  #body;
  #details;
  #watch;
  #palette;
  #data;
  #top = 1;

  constructor(parent, limit) {
    this.#limit = limit;
    this.#words = el("span");
    this.#reached = el("strong", { hidden: "" }, "At the limit. ");
    this.#pointed = el("span", { class: "pointed", "aria-hidden": "true" });
    this.#body = el("tbody");
    const title = nameOf(limit.name) + (limit.window ? "" : ofBytes(limit.name) ? ", bytes a second" : "");
    const at = el("div", { class: "plot", "aria-hidden": "true" });
    this.#details = el(
      "details",
      {},
      el("summary", {}, `Numbers of ${nameOf(limit.name)}`),
      el(
        "div",
        { class: "scroll", tabindex: "0", role: "region", "aria-label": `Numbers of ${nameOf(limit.name)}` },
        el(
          "table",
          { class: "plain" },
          el("caption", { class: "unseen" }, `Most that was used of ${nameOf(limit.name)} in each ${every} seconds, the newest first`),
          el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "From"), el("th", { scope: "col", class: "number" }, "Most used"))),
          this.#body,
        ),
      ),
    );
    this.#details.addEventListener("toggle", () => this.#table());
    this.#node = el("figure", { class: "chart" }, el("figcaption", {}, el("div", { class: "chart-head" }, el("h3", {}, title), this.#pointed), el("p", { class: "calm" }, this.#reached, this.#words)), at, this.#details);
    parent.append(this.#node);
    this.#palette = palette(this.#node);
    this.#plot = new uPlot(this.#options(at.clientWidth || 320), [[], [], []], at);
    this.#watch = new ResizeObserver(([e]) => {
      const width = Math.floor(e.contentRect.width);
      if (width > 0 && width !== this.#plot.width) this.#plot.setSize({ width, height });
    });
    this.#watch.observe(at);
  }

  #options(width) {
    const value = (n) => (ofBytes(this.#limit.name) ? bytes(n) : count(n));
    const axis = { stroke: () => this.#palette.ink, grid: { stroke: () => this.#palette.grid, width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    return {
      width,
      height,
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 } },
      scales: { x: { time: true }, y: { range: () => [0, this.#top] } },
      axes: [
        { ...axis, space: 70, size: 24, values: (_, ticks) => ticks.map((t) => clock(new Date(t * 1000)).slice(0, t % 60 ? 8 : 5)) },
        { ...axis, size: 58, space: 34, incrs: ofBytes(this.#limit.name) ? binary : whole, values: (_, ticks) => ticks.map(value) },
      ],
      series: [
        {},
        { stroke: () => this.#palette.line, fill: () => this.#palette.fill, width: 1.5, points: { show: false } },
        { stroke: () => this.#palette.limit, width: 1.5, dash: [6, 4], points: { show: false } },
      ],
      hooks: {
        setCursor: [
          (u) => {
            const i = u.cursor.idx;
            const n = i === null || i === undefined ? null : u.data[1][i];
            text(this.#pointed, n === null || n === undefined ? "" : `${clock(new Date(u.data[0][i] * 1000))}  ${amount(this.#limit.name, n)}`);
          },
        ],
      },
    };
  }

  show(limit, seconds, values) {
    this.#limit = limit;
    this.#data = { seconds, values };
    const s = summary(values, limit.max);
    this.#top = Math.max(1, 1.15 * limit.max, 1.08 * (s?.most ?? 0));
    this.#plot.setData([seconds, values, seconds.map(() => limit.max)]);
    text(this.#words, this.#say(limit, s));
    show(this.#reached, s !== null && s.now >= limit.max);
    if (this.#details.open) this.#table();
  }

  #say(limit, s) {
    const dry = limit.mode === "dry-run" ? " Dry run." : "";
    const max = `limit ${amount(limit.name, limit.max)}${limit.window ? " " + per(limit.window) : ""}.${dry}`;
    if (!s) return `Nothing is known yet; ${max}`;
    const reached = s.reached > 0 ? ` Reached in ${s.reached} of ${s.seconds} s.` : "";
    return `${amount(limit.name, s.now)} now, ${amount(limit.name, s.most)} at most; ${max}${reached}`;
  }

  #table() {
    if (!this.#details.open || !this.#data) return;
    const { seconds, values } = this.#data;
    const rows = [];
    for (let i = seconds.length - every; i >= 0; i -= every) {
      const known = values.slice(i, i + every).filter((n) => n !== null);
      if (known.length > 0) rows.push([clock(new Date(seconds[i] * 1000)), amount(this.#limit.name, Math.max(...known))]);
    }
    this.#body.replaceChildren(...rows.map(([at, n]) => el("tr", {}, el("th", { scope: "row" }, at), el("td", { class: "number" }, n))));
  }

  colours() {
    this.#palette = palette(this.#node);
    this.#plot.redraw(false, true);
  }

  destroy() {
    this.#watch.disconnect();
    this.#plot.destroy();
    this.#node.remove();
  }
}

const whole = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7, 1e8, 1e9];
const binary = Array.from({ length: 44 }, (_, i) => 2 ** i);

// palette reads the colours of the style sheet, which a canvas does not know.
function palette(node) {
  const probe = el("span");
  node.append(probe);
  const read = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const colours = { ink: read("muted"), grid: read("line"), line: read("chart"), fill: read("chart-fill"), limit: read("red") };
  probe.remove();
  return colours;
}
