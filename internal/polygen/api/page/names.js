// Names of users in addresses. A name is bytes of any kind, so it is kept escaped:
// every byte but letters, digits, "_", "~" and "-" is %XX. Such a name is right in a
// path, in a query and after "#" alike.

// canonical escapes a name that is escaped in any way.
export function canonical(escaped) {
  return escapeBytes(bytesOf(escaped));
}

// escapeName escapes a name as somebody types it.
export function escapeName(name) {
  return escapeBytes(new TextEncoder().encode(name));
}

// readable is a name for people, in which no character does anything.
export function readable(escaped) {
  return shown(new TextDecoder().decode(bytesOf(escaped)));
}

// shown makes characters visible that would hide, or turn around what follows; and
// spaces, in a name of nothing else.
export function shown(name) {
  const hidden = name.trim() ? /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu : /[^]/gu;
  return name.replace(hidden, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
}

// shorten cuts a name that would fill the page.
export function shorten(name, most = 80) {
  const characters = Array.from(name.slice(0, 4 * most));
  return characters.length > most ? characters.slice(0, most - 1).join("") + "…" : name;
}

// ofHref reads who is meant from the API's href.
export function ofHref(href) {
  const [path, query = ""] = href.split("?", 2);
  return { name: canonical(path.slice(path.lastIndexOf("/") + 1)), by: new URLSearchParams(query).get("by") ?? "" };
}

// hashOf is the page's own address of a user.
export function hashOf({ name, by }) {
  return `#/${by === "key" ? "key" : "user"}/${name}`;
}

// ofHash reads it back: null for any other address.
export function ofHash(hash) {
  const m = /^#\/(user|key)\/(.+)$/s.exec(hash);
  return m && { name: canonical(m[2]), by: m[1] === "key" ? "key" : "" };
}

// queryOf asks for a user in a query.
export function queryOf({ name, by }) {
  return `user=${name}${by ? "&by=" + by : ""}`;
}

// historyOf is the path of a user's history, or null: no browser asks for a path
// that ends in "..", however it is escaped.
export function historyOf({ name, by }) {
  if (name === "%2E" || name === "%2E%2E") return null;
  return `api/v1/history/${name}${by && "?by=" + by}`;
}

function bytesOf(escaped) {
  const raw = new TextEncoder().encode(escaped);
  const bytes = [];
  for (let i = 0; i < raw.length; i++) {
    const code = raw[i] === 0x25 ? /^[0-9a-fA-F]{2}$/.exec(String.fromCharCode(raw[i + 1], raw[i + 2])) : null;
    bytes.push(code ? parseInt(code[0], 16) : raw[i]);
    if (code) i += 2;
  }
  return Uint8Array.from(bytes);
}

function escapeBytes(bytes) {
  let s = "";
  for (const b of bytes) {
    const c = String.fromCharCode(b);
    s += /[A-Za-z0-9_~-]/.test(c) ? c : "%" + b.toString(16).toUpperCase().padStart(2, "0");
  }
  return s;
}
