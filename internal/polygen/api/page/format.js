// Numbers and times for people.

// count is a number of things: 7, 1 234, 12.3 k.
export function count(n) {
  if (n >= 999_500) return (n / 1e6).toFixed(n < 9_995_000 ? 2 : 1) + " M";
  if (n >= 10_000) return (n / 1e3).toFixed(n < 99_950 ? 1 : 0) + " k";
  const whole = Math.round(n);
  if (n < 10 && Math.abs(n - whole) >= 0.05) return n.toFixed(1);
  return whole >= 1000 ? `${Math.floor(whole / 1000)}\u202f${String(whole % 1000).padStart(3, "0")}` : String(whole);
}

// exact is a whole number, with its thousands apart.
export function exact(n) {
  return String(Math.round(n)).replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

// bytes is a number of bytes, in the units of the limit file.
export function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (n >= 1023.5 && i < units.length - 1) {
    n /= 1024;
    i++;
  }
  return (i === 0 || n >= 99.95 || Number.isInteger(n) ? String(Math.round(n)) : n.toFixed(1)) + " " + units[i];
}

// rate is bytes per second; nothing is a dash.
export const rate = (n) => (n > 0 ? bytes(n) + "/s" : "–");

// amount is a limit's use or maximum in its own unit.
export const amount = (limit, n) => (ofBytes(limit) ? bytes(n) + "/s" : exact(n));

// ofBytes is whether a limit, by its name, is one of bandwidth.
export const ofBytes = (name) => name === "bandwidth.down" || name === "bandwidth.up";

// percent is a part of one, rounded down so that 100 % is all of it.
export const percent = (part) => Math.floor(part * 100 + 1e-9) + " %";

// nameOf is what a limit is called, with a window if it says one.
export function nameOf(limit) {
  const names = { concurrent: "In progress", "bandwidth.down": "Down", "bandwidth.up": "Up" };
  return names[limit] ?? limit.replace(/^\*/, "All requests");
}

// windowOf is a window of so many seconds.
export function windowOf(seconds) {
  // A day has 23 to 25 hours.
  return { 1: "second", 60: "minute", 3600: "hour" }[seconds] ?? (seconds < 200000 ? "day" : "month");
}

// per is the same after a number of requests, or of what they cost.
export function per(seconds) {
  return (seconds === 3600 ? "an " : "a ") + windowOf(seconds);
}

const two = (n) => String(n).padStart(2, "0");

// clock is the time of day here; with the day, if it is another one than now's.
export function clock(at, now = at) {
  const t = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return at.toDateString() === now.toDateString() ? t : `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${t}`;
}

// utc is the same in UTC.
export function utc(at, now = at) {
  const [day, t] = at.toISOString().slice(0, 19).split("T");
  return now.toISOString().startsWith(day) ? t : `${day} ${t}`;
}

// ago is how long something is past, in ms.
export function ago(ms) {
  const s = Math.floor(ms / 1000);
  if (s < 3) return "now";
  if (s < 60) return `${s} s ago`;
  if (s < 3600) return `${Math.floor(s / 60)} min ago`;
  return s < 86_400 ? `${Math.floor(s / 3600)} h ago` : `${Math.floor(s / 86_400)} d ago`;
}

// many is a number and its noun.
export const many = (n, noun) => `${exact(n)} ${noun}${n === 1 ? "" : "s"}`;
