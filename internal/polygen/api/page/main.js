// The page: which part of it is seen, the live stream, and what happens when the
// connection is lost, the tab is hidden, or a token is wanted.

import { $, show, text } from "./dom.js";
import { clock } from "./format.js";
import { Announcer, Held, showLimited } from "./limited.js";
import { closeUser, loadHistory, openUser, showUser } from "./user.js";
import { escapeName, hashOf, ofHash, queryOf } from "./names.js";
import { onUsers, showOrder, showUsers } from "./users.js";
import { Jobs } from "./jobs.js";
import { Policies } from "./policies.js";
import { setToken, token } from "./token.js";
import { showConnection, showFrom, showTotals } from "./head.js";
import { showInstances } from "./instances.js";
import { Stream } from "./stream.js";

const staleAfter = 4000; // ms without an answer; there is one a second

const held = new Held();
const announcer = new Announcer();
const policies = new Policies({ refused: askForToken });
const jobs = new Jobs({ refused: askForToken });

let who = null; // the user who is shown, or null for all
let order = "rate";
let rows = 50;
let stream = null;
let heard = null; // when the last answer came, by this machine's clock
let problem = ""; // why there is no connection
let stale = 0; // timer
let signingIn = false;

// connect opens the stream that what is seen needs.
function connect() {
  stream?.stop();
  stream = null;
  if (document.hidden || signingIn) return;
  const url = who ? `api/v1/live?n=1&${queryOf(who)}` : `api/v1/live?sort=${order}&n=${rows}`;
  const own = new Stream(url, {
    event(name, live) {
      if (name === "live" && stream === own) hear(live);
    },
    state(state, why) {
      if (stream !== own) return;
      if (state === "refused") return askForToken();
      if (state === "open") {
        if (who) loadHistory();
        return;
      }
      problem = why;
      tellConnection();
    },
  });
  stream = own;
  tellConnection();
  watchAge();
  own.start();
}

function hear(live) {
  heard = new Date();
  problem = "";
  const now = performance.now();
  held.see(live, now);
  showFrom(live);
  showTotals(live.totals, live.units ?? []);
  if (who) {
    showUser(live, held);
  } else {
    showLimited(held, live.totals.throttled + live.totals.blocked + live.totals.spent);
    showUsers(live, held);
    showInstances(live.instances);
  }
  const news = announcer.tell(held.list(), now);
  if (news) text($("announce"), news);
  tellConnection();
  watchAge();
}

function watchAge() {
  clearTimeout(stale);
  stale = setTimeout(tellConnection, staleAfter + 50);
}

function tellConnection() {
  if (signingIn) return showConnection("out", "signed out");
  const old = heard && new Date() - heard > staleAfter;
  const why = problem ? ` (${problem})` : "";
  if (old) showConnection("stale", `${problem ? "reconnecting… " : ""}stale since ${clock(heard, new Date())}${why}`);
  else if (problem) showConnection("reconnecting", `reconnecting…${why}`);
  else if (heard) showConnection("live", "live");
  else showConnection("connecting", "connecting…");
}

// route shows what the address names.
function route({ focus }) {
  who = ofHash(location.hash);
  if (who && location.hash !== hashOf(who)) history.replaceState(null, "", hashOf(who));
  if (who) {
    document.title = `${openUser(who)} – Sluice`;
  } else {
    closeUser();
    document.title = "Sluice";
  }
  seeParts();
  if (focus) $(who ? "user-heading" : "overview-heading").focus();
  window.scrollTo(0, 0);
  connect();
}

function seeParts() {
  show($("sign-in"), signingIn);
  show($("overview"), !signingIn && !who);
  show($("user"), !signingIn && Boolean(who));
  show($("sign-out"), !signingIn && token() !== "");
  const overview = !signingIn && !who && !document.hidden;
  policies.visible(overview);
  jobs.visible(overview);
}

function askForToken() {
  const had = token() !== "";
  setToken("");
  signingIn = true;
  stream?.stop();
  stream = null;
  seeParts();
  tellConnection();
  text($("sign-in-note"), had ? "That token was not accepted." : "It is kept until this tab is closed, and sent to this server alone.");
  $("token").value = "";
  $("token").focus();
}

$("sign-in-form").addEventListener("submit", (e) => {
  e.preventDefault();
  const given = $("token").value.trim();
  if (!/^[\x21-\x7e]+$/.test(given)) {
    text($("sign-in-note"), "A token has no spaces and no letters beyond ASCII.");
    return;
  }
  $("token").value = "";
  setToken(given);
  signingIn = false;
  seeParts();
  connect();
});

$("sign-out").addEventListener("click", () => {
  setToken("");
  location.reload(); // and forgets what is shown
});

// The skip link would otherwise be taken for an address of the page's own.
document.querySelector(".skip").addEventListener("click", (e) => {
  e.preventDefault();
  $("main").focus();
});

onUsers({
  order(by) {
    order = by;
    showOrder(order);
    connect();
  },
  rows(n) {
    rows = n;
    connect();
  },
  open: (name) => (location.hash = hashOf({ name: escapeName(name), by: "" })),
});

addEventListener("hashchange", () => route({ focus: true }));
document.addEventListener("visibilitychange", () => {
  seeParts();
  connect();
});
showOrder(order);
route({ focus: false });
