// What a user's state means, in sentences.

import { amount, clock, exact, nameOf, ofBytes, per, percent, windowOf } from "./format.js";

const recently = 3000; // ms; a throttle ends with its second, and may come again in the next

// explain returns sentences as {kind, text}: kind is "refused", "dry", "near" or "".
// at is the cluster's time, in ms.
export function explain(user, at) {
  const now = new Date(at);
  const limits = new Map(user.limits.map((l) => [l.name, l]));
  const said = [];
  for (const w of user.why) said.push(reached(w, limits.get(w.limit), now));
  said.sort((a, b) => (a.kind === "dry") - (b.kind === "dry"));
  if (!said.some((s) => s.kind === "refused")) {
    const last = lately(user, at);
    if (last) said.unshift({ kind: "refused", text: `Refused a moment ago: ${cause(last.limit, limits.get(last.limit))}.${from(limits.get(last.limit))}` });
  }
  for (const name of ["bandwidth.down", "bandwidth.up"]) {
    const l = limits.get(name);
    if (l && l.mode === "enforce" && l.used >= 0.97 * l.max) {
      said.push({ kind: "near", text: `Slowed: moves ${amount(name, l.used)} ${name === "bandwidth.down" ? "down" : "up"}, as much as the limit allows.${from(l)}` });
    }
  }
  if (said.length === 0) said.push(well(user));
  said.push(...named(user, now));
  return said;
}

// lately is the newest decision that had requests refused within the last moments.
function lately(user, at) {
  return user.decisions.find((d) => d.mode === "enforce" && d.kind !== "unblock" && at - Date.parse(d.time) < recently);
}

function reached(w, limit, now) {
  if (limit?.max === 0) {
    const text = `the limit ${nameOf(w.limit)} is 0, so that no such request is allowed.${from(limit)}`;
    return w.mode === "enforce" ? { kind: "refused", text: "Denied: " + text } : { kind: "dry", text: "Would be denied, if this limit were enforced (dry run): " + text };
  }
  const until = w.until ? `; until ${clock(new Date(w.until), now)}${limit?.unit ? ", or some are given back" : ""}` : "; until some of them have ended";
  const text = `${cause(w.limit, limit)}${until}.${from(limit)}`;
  return w.mode === "enforce" ? { kind: "refused", text: "Refused: " + text } : { kind: "dry", text: "Would be refused, if this limit were enforced (dry run): " + text };
}

function cause(name, limit) {
  if (!limit) return `the limit ${name} is reached`;
  if (name === "concurrent") return `${exact(Math.max(limit.used, limit.max))} requests are in progress, and the limit is ${exact(limit.max)}`;
  if (limit.unit) return `${exact(limit.used)} of ${exact(limit.max)} ${limit.unit} ${per(limit.window)} are used (what costs no ${limit.unit} is not refused)`;
  const kind = name.split("/")[0];
  return `more than ${exact(limit.max)} ${kind === "*" ? "" : kind + " "}requests ${per(limit.window)}${limit.burst ? ` and a burst of ${exact(limit.burst)}` : ""}`;
}

// from is where a limit comes from, as a sentence.
export function from(limit) {
  return limit?.origin ? ` The limit comes from ${place(limit.origin)}.` : "";
}

export function place(origin) {
  if (origin.file === "") return `an override by hand (${origin.field})`;
  return `${origin.file} line ${origin.line} (${origin.field}${origin.override ? ", of this user alone" : ""})`;
}

function well(user) {
  if (user.limits.length === 0) return { kind: "", text: `Not limited: the tier ${user.tier || "of this user"} sets no limit.` };
  const near = nearest(user.limits);
  if (near.part === 0) return { kind: "", text: "Not refused. Nothing is used of any limit now." };
  const { limit, used, part } = near;
  const of = ofBytes(limit.name) ? `${amount(limit.name, used)} of ${amount(limit.name, limit.max)}` : `${exact(used)} of ${exact(limit.max)}${limit.unit ? " " + limit.unit : ""}${limit.window ? " " + per(limit.window) : ""}`;
  return { kind: part >= 0.8 ? "near" : "", text: `Not refused. Nearest is the limit ${nameOf(limit.name)}: ${of} (${percent(part)}).` };
}

// mostOf is what counts as used of a limit: of a short window the last one too, or a reader would see the use
// come and go. What was spent yesterday is over.
export const mostOf = (limit) => (limit.unit ? limit.used : Math.max(limit.used, limit.last ?? 0));

// nearest is the limit of which the largest part is used.
export function nearest(limits) {
  let best = { limit: null, used: 0, part: 0 };
  for (const limit of limits) {
    const used = mostOf(limit);
    const part = limit.max > 0 ? used / limit.max : 1;
    if (!best.limit || part > best.part) best = { limit, used, part };
  }
  return best;
}

function named(user, now) {
  const e = user.entry;
  const said = [];
  if (!user.known) {
    said.push({ kind: "", text: `The limit file does not name this user: the limits of the tier ${user.tier || "by default"} apply.` });
  } else if (e?.file) {
    const pattern = e.pattern ? ` by the pattern ${e.pattern}` : "";
    const comment = e.comment ? `: “${e.comment}”` : "";
    said.push({ kind: "", text: `Named in ${e.file} line ${e.line}${pattern}${comment}.` });
    if (e.expired) said.push({ kind: "", text: "What is said there has ended." });
    else if (e.until) said.push({ kind: "", text: `That ends ${clock(new Date(e.until), now)}${e.then ? `; then the tier is ${e.then}` : ""}.` });
  }
  if (e?.override) {
    const { reason, by, until } = e.override;
    said.push({ kind: "", text: `Overridden by hand${by ? ` by ${by}` : ""} until ${clock(new Date(until), now)}${reason ? `: “${reason}”` : ""}.` });
  }
  if (user.by === "key") said.push({ kind: "", text: "Known by the key that HAProxy has: where its limits come from cannot be told." });
  return said;
}

// decided is what a decision was, and why, in two phrases.
export function decided(d, limits) {
  const limit = limits.find((l) => l.name === d.limit);
  const dry = d.mode === "enforce" ? "" : " (dry run: nobody was refused)";
  switch (d.kind) {
    case "throttle":
      return ["throttle" + dry, limit ? `${exact(limit.max)} requests ${per(limit.window)} were reached: refused until the ${windowOf(limit.window)} ended` : "the limit was reached"];
    case "block":
      return ["block" + dry, limit ? `${exact(limit.max)} requests were in progress` : "the limit of requests in progress was reached"];
    case "unblock":
      return ["unblock" + dry, "fewer were in progress"];
    case "refused":
      return [`refused ${exact(d.count ?? 1)}${dry}`, "instances had no free slot for requests"];
    default:
      return [String(d.kind) + dry, String(d.reason ?? "")];
  }
}
