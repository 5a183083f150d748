// Elements without markup: text only ever becomes text. (The page's policy refuses innerHTML as well.)

const SVG = "http://www.w3.org/2000/svg";

/** The element of an id. */
export const get = (id) => document.getElementById(id);

/** A new element; `props`: `text`, `on` (event → handler), else attributes. */
export function el(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** A new SVG element. */
export function svg(tag, props = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

/** Sets an element's text, if it's another one: what doesn't change isn't touched, and isn't read out again. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Shows a notice, or hides it where there is nothing to say. */
export function notice(element, text) {
  setText(element, text);
  element.hidden = text === "";
}

/** Says something to who listens rather than looks. */
export function announce(text) {
  get("announcements").textContent = text;
}

/**
 * Makes the children of `parent` those of `items`, by key, in order. Rows that stay are the same elements, and who has
 * the focus keeps it, although a row that moves would lose it.
 */
export function keyed(parent, items, { key, make, update }) {
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  const rows = new Map([...parent.children].map((row) => [row.dataset.key, row]));
  items.forEach((item, index) => {
    const name = key(item);
    let row = rows.get(name);
    if (row === undefined) {
      row = make(item);
      row.dataset.key = name;
    }
    rows.delete(name);
    update(row, item);
    if (parent.children[index] !== row) parent.insertBefore(row, parent.children[index] ?? null);
  });
  for (const row of rows.values()) row.remove();
  if (focused !== null && focused !== document.activeElement && focused.isConnected) {
    focused.focus({ preventScroll: true });
  }
  return focused === null || focused.isConnected;
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (name === "text") element.textContent = value;
    else if (name === "on") for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}
