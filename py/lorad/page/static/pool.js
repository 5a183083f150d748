// `PoolMap`: all pages as cells, those of an owner side by side, and how many each owner has.

import { el, get, keyed, setText, svg } from "./dom.js";
import { bytes, count } from "./format.js";

const CELLS_MAX = 1500;
const CELL = 10;
const HEIGHT_MAX = 260;
const GAP = 1.5;
const COLOURS = 10;
const OWNERS_SHOWN = 14;

export class PoolMap {
  constructor() {
    this.drawing = svg("svg", { role: "img", "aria-labelledby": "pool-title pool-text" });
    this.paths = new Map();
    get("pool-map").append(this.drawing);
    new ResizeObserver(() => this.owners && this.draw()).observe(get("pool-map"));
  }

  show({ pages }) {
    this.total = pages.total;
    this.owners = owners(pages);
    const used = pages.total - pages.free;
    const part = pages.total ? Math.round((100 * used) / pages.total) : 0;
    this.scale = Math.max(1, Math.ceil(pages.total / CELLS_MAX));
    const cell = this.scale === 1 ? "a cell is a page" : `a cell is ${this.scale} pages`;
    setText(
      get("pool-text"),
      `${count(used)} of ${count(pages.total)} pages in use (${part}%), ${bytes(pages.page_bytes)} each, ` +
        `${pages.page_tokens} tokens of KV; ${cell}.`,
    );
    this.draw();
    keyed(get("pool-owners"), this.owners, {
      key: (owner) => owner.key,
      make: () => el("li", {}, el("span", { class: "swatch" }), el("span", { class: "name" }), el("span", { class: "pages" })),
      update: (row, owner) => {
        row.firstChild.setAttribute("class", `swatch ${owner.colour}`);
        setText(row.children[1], owner.name);
        setText(row.children[2], count(owner.pages));
      },
    });
  }

  draw() {
    const cells = Math.ceil(this.total / this.scale);
    const width = get("pool-map").clientWidth || 600;
    const pitch = CELL + GAP;
    // A narrow map has smaller cells rather than many rows.
    const columns = Math.max(16, Math.floor(width / pitch), Math.ceil(Math.sqrt((cells * width) / HEIGHT_MAX)));
    const rows = Math.ceil(cells / columns);
    this.drawing.setAttribute("viewBox", `0 0 ${columns * pitch} ${rows * pitch}`);
    const shapes = new Map(this.owners.map((owner) => [owner.key, ""]));
    let owner = 0;
    let end = this.owners[0]?.pages ?? 0;
    for (let cell = 0; cell < cells; cell += 1) {
      // Whose the cell is: the owner of the page in its middle.
      const page = (cell + 0.5) * this.scale;
      while (page > end && owner < this.owners.length - 1) end += this.owners[(owner += 1)].pages;
      const { key } = this.owners[owner];
      const x = (cell % columns) * pitch;
      const y = Math.floor(cell / columns) * pitch;
      shapes.set(key, `${shapes.get(key)}M${x} ${y}h${CELL}v${CELL}h${-CELL}z`);
    }
    for (const { key, name, colour, pages } of this.owners) {
      let path = this.paths.get(key);
      if (path === undefined) {
        path = svg("path", {}, svg("title"));
        this.paths.set(key, path);
        this.drawing.append(path);
      }
      path.setAttribute("class", colour);
      path.setAttribute("d", shapes.get(key));
      setText(path.firstChild, `${name}: ${count(pages)} pages`);
    }
    for (const [key, path] of this.paths) {
      if (!shapes.has(key)) {
        path.remove();
        this.paths.delete(key);
      }
    }
  }
}

/** Who has pages, in the order of the map. */
function owners(pages) {
  const shown = pages.by_adapter.slice(0, OWNERS_SHOWN);
  const named = shown.map(({ names, parts, generation, pages: held }) => ({
    key: `adapter ${generation}`,
    name: names.join(", ") || parts.join(" + ") || `an older version (${generation.slice(0, 8)})`,
    pages: held,
    colour: `adapter-${hash(generation) % COLOURS}`,
  }));
  const others = pages.adapters - shown.reduce((sum, one) => sum + one.pages, 0);
  const known = pages.free + pages.sequences + pages.prefixes + pages.adapters;
  const found = [
    { key: "sequences", name: "sequences", pages: pages.sequences, colour: "sequences" },
    { key: "prefixes", name: "prefix cache", pages: pages.prefixes, colour: "prefixes" },
    ...distinct(named),
    { key: "others", name: `${pages.adapters_in_pool - shown.length} other adapters`, pages: others, colour: "others" },
    { key: "reserved", name: "reserved", pages: pages.total - known, colour: "reserved" },
    { key: "free", name: "free", pages: pages.free, colour: "free" },
  ];
  return found.filter((owner) => owner.pages > 0 || ["sequences", "prefixes", "free"].includes(owner.key));
}

/** A generation's colour stays as long as no other one that is shown has it. */
function distinct(named) {
  const taken = new Set();
  for (const one of named) {
    let number = Number(one.colour.slice("adapter-".length));
    for (let tries = 0; tries < COLOURS && taken.has(number); tries += 1) number = (number + 1) % COLOURS;
    taken.add(number);
    one.colour = `adapter-${number}`;
  }
  return named;
}

function hash(text) {
  let value = 0;
  for (const letter of text) value = (value * 31 + letter.codePointAt(0)) >>> 0;
  return value;
}
