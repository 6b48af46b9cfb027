// What keeps people from using the page, as a list of sentences. It is a small part of
// what WCAG 2.2 wants, the part that a program can see.
(() => {
  const problems = [];
  const seen = (e) => e.checkVisibility({ visibilityProperty: true }) && e.getClientRects().length > 0;
  const say = (e) => `<${e.tagName.toLowerCase()}${e.id ? " id=" + e.id : ""}${e.className && typeof e.className === "string" ? " class=" + e.className : ""}>`;
  const byIds = (ids) => ids.split(/\s+/).map((id) => document.getElementById(id)?.textContent ?? "").join(" ");
  const nameOf = (e) =>
    (e.getAttribute("aria-label") ?? (e.hasAttribute("aria-labelledby") ? byIds(e.getAttribute("aria-labelledby")) : null) ??
      (e.labels?.length ? Array.from(e.labels, (l) => l.textContent).join(" ") : e.textContent)).trim();

  // Landmarks and the language.
  for (const [what, n] of [["main", 1], ["body > header", 1], ["h1", 1]]) {
    const found = Array.from(document.querySelectorAll(what)).filter(seen).length;
    if (found !== n) problems.push(`${found} of ${what} are seen, want ${n}`);
  }
  if (!document.documentElement.lang) problems.push("the page says no language");
  if (!document.title) problems.push("the page has no title");
  const ids = Array.from(document.querySelectorAll("[id]"), (e) => e.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) problems.push(`two elements have the id ${id}`);
  for (const e of document.querySelectorAll("[aria-labelledby], [aria-describedby]")) {
    for (const id of `${e.getAttribute("aria-labelledby") ?? ""} ${e.getAttribute("aria-describedby") ?? ""}`.trim().split(/\s+/)) {
      if (!document.getElementById(id)) problems.push(`${say(e)} names ${id}, which is not there`);
    }
  }

  // Headings in the order of the document, in which no level is left out.
  let level = 1;
  for (const h of document.querySelectorAll("main h1, main h2, main h3, main h4")) {
    if (!seen(h)) continue;
    const own = Number(h.tagName[1]);
    if (own > level + 1) problems.push(`${say(h)} comes after a heading of level ${level}`);
    if (!h.textContent.trim()) problems.push(`${say(h)} is empty`);
    level = own;
  }

  // Controls have names, can be reached, and are large enough to hit.
  for (const e of document.querySelectorAll("a[href], button, input, select, summary, [tabindex='0'], [role=region]")) {
    if (!seen(e)) continue;
    if (!nameOf(e)) problems.push(`${say(e)} has no name`);
    if (e.tabIndex < 0) problems.push(`${say(e)} cannot be reached with the keyboard`);
    const { width, height } = e.getBoundingClientRect();
    if (/^(BUTTON|INPUT|SELECT)$/.test(e.tagName) && (width < 24 || height < 24)) problems.push(`${say(e)} is ${width} × ${height} px, want 24`);
  }
  for (const e of document.querySelectorAll("svg, canvas, img")) {
    if (seen(e) && !e.closest("[aria-hidden=true]") && !nameOf(e)) problems.push(`${say(e)} has no text`);
  }

  // Tables say what they are, and what their rows and columns are.
  for (const t of document.querySelectorAll("table")) {
    if (!t.caption?.textContent.trim()) problems.push(`${say(t)} has no caption`);
    for (const th of t.querySelectorAll("th")) if (!th.scope) problems.push(`${say(th)} has no scope`);
    for (const r of t.tBodies[0]?.rows ?? []) if (r.cells[0].tagName !== "TH") problems.push(`a row of ${say(t)} has no heading`);
  }
  for (const e of document.querySelectorAll("#users [aria-sort]")) if (!e.querySelector("button")) problems.push(`${say(e)} is sorted by no button`);

  // Contrast of each text with what it stands on.
  const parse = (c) => {
    const m = /^rgba?\(([^)]+)\)$/.exec(c);
    if (!m) problems.push(`the colour ${c} cannot be read`);
    const [r, g, b, a = 1] = (m?.[1] ?? "0,0,0").split(/[\s,/]+/).map(Number);
    return [r, g, b, a];
  };
  const over = (top, under) => [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
  const ground = (e) => {
    const layers = [];
    for (let p = e; p; p = p.parentElement) {
      const c = parse(getComputedStyle(p).backgroundColor);
      layers.push(c);
      if (c[3] === 1) break;
    }
    return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255, 1]);
  };
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const contrast = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
  let texts = 0;
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let n = walk.nextNode(); n; n = walk.nextNode()) {
    const e = n.parentElement;
    if (!n.data.trim() || !seen(e) || e.closest(".unseen, noscript, option, svg")) continue;
    texts++;
    const under = ground(e);
    const ratio = contrast(over(parse(getComputedStyle(e).color), under), under);
    if (ratio < 4.5) problems.push(`${say(e)} “${n.data.trim().slice(0, 30)}” has a contrast of ${ratio.toFixed(2)}, want 4.5`);
  }
  for (const e of document.querySelectorAll("button, input, select")) {
    if (!seen(e) || getComputedStyle(e).borderTopWidth === "0px") continue;
    const ratio = contrast(parse(getComputedStyle(e).borderTopColor), ground(e.parentElement));
    if (ratio < 3) problems.push(`the border of ${say(e)} has a contrast of ${ratio.toFixed(2)}, want 3`);
  }
  if (texts < 15) problems.push(`only ${texts} texts are seen`);
  return Array.from(new Set(problems));
})();
