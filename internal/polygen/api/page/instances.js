// The instances and their health.

import { $, List, el, show, text } from "./dom.js";
import { shown } from "./names.js";
import { setState } from "./limited.js";

const rows = new List($("instance-rows"), {
  key: (i) => i.name,
  make(i) {
    const state = el("span", { class: "state" });
    const problem = el("span", {});
    const version = el("td", {});
    return { node: el("tr", {}, el("th", { scope: "row" }, el("bdi", {}, shown(i.name))), el("td", {}, state, " ", problem), version), state, problem, version };
  },
  update(part, i) {
    setState(part.state, i.problem ? "problem" : i.current ? "ok" : "behind");
    text(part.problem, i.problem ?? "");
    const behind = i.behind >= 1 ? ` for ${Math.floor(i.behind)} s` : "";
    text(part.version, i.gone ? "" : i.current ? `current (${i.version.slice(0, 12)})` : i.version ? `behind${behind} (${i.version.slice(0, 12)})` : `none yet${behind}`);
  },
});

export function showInstances(list) {
  rows.set(list);
  const there = list.filter((i) => !i.gone).length;
  text($("instances-count"), String(there));
  show($("instances-note"), there === 0);
  text($("instances-note"), there === 0 ? "No instance is there: nobody is limited." : "");
}
