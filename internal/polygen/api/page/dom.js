// The few things that the page does with the document. Data becomes text, never
// markup: anybody who sends requests chooses the names of users.

export const $ = (id) => document.getElementById(id);

// el makes an element. Attributes whose value is undefined are left out.
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

// text sets an element's text, if it is another one.
export function text(node, s) {
  if (node.textContent !== s) node.textContent = s;
}

// attribute sets an attribute, if it is another one; undefined removes it.
export function attribute(node, name, value) {
  if (value === undefined) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else if (node.getAttribute(name) !== value) {
    node.setAttribute(name, value);
  }
}

// show shows or hides an element.
export function show(node, visible) {
  if (node.hidden === visible) node.hidden = !visible;
}

// List keeps the children of an element in line with a list, in place: an item that
// stays keeps its elements, with the focus and the selection in them.
//
// make returns an object with the item's node and whatever update needs.
export class List {
  #parent;
  #key;
  #make;
  #update;
  #parts = new Map();

  constructor(parent, { key, make, update }) {
    this.#parent = parent;
    this.#key = key;
    this.#make = make;
    this.#update = update;
  }

  get size() {
    return this.#parts.size;
  }

  // set shows the items. With still, those that are there stay where they are and
  // new ones come last.
  set(items, still = false) {
    const stay = new Set(items.map((item) => this.#key(item)));
    for (const [key, { node }] of this.#parts) { // before the others are placed, so that none of them has to move
      if (stay.has(key)) continue;
      const next = node.contains(document.activeElement) ? neighbour(node) : null;
      node.remove();
      this.#parts.delete(key);
      next?.querySelector("a")?.focus();
    }
    let place = this.#parent.firstChild;
    for (const item of items) {
      const key = this.#key(item);
      let part = this.#parts.get(key);
      const fresh = !part;
      if (fresh) {
        part = this.#make(item);
        this.#parts.set(key, part);
      }
      this.#update(part, item);
      if (still) {
        if (fresh) this.#parent.append(part.node);
      } else if (part.node === place) {
        place = place.nextSibling;
      } else {
        this.#parent.insertBefore(part.node, place);
      }
    }
  }
}

// neighbour is the next element that is not hidden, or else the one before.
function neighbour(node) {
  for (const step of ["nextElementSibling", "previousElementSibling"]) {
    for (let n = node[step]; n; n = n[step]) if (!n.hidden) return n;
  }
  return null;
}
