// `Adapters`: one page of them, filtered and in order, with what an operator can do to each.

import { Actions } from "./actions.js";
import { el, get, keyed, setText } from "./dom.js";
import { ago, bytes, count } from "./format.js";

const LIMIT = 25;

export class Adapters {
  /** `onQuery(fields)`: another page is wanted. */
  constructor(onQuery, onChanged) {
    this.onQuery = onQuery;
    this.offset = 0;
    this.matching = 0;
    this.actions = new Actions(onChanged);
    get("adapters-query").addEventListener("submit", (event) => event.preventDefault());
    get("adapters-query").addEventListener("input", () => this.go(0));
    get("previous").addEventListener("click", () => this.go(this.offset - LIMIT));
    get("next").addEventListener("click", () => this.go(this.offset + LIMIT));
    this.go(0);
  }

  go(offset) {
    this.offset = Math.max(offset, 0);
    const [filter, tier, sort] = ["filter", "tier", "sort"].map((id) => get(id).value);
    this.onQuery({ filter, tier, sort, offset: this.offset, limit: LIMIT });
  }

  show({ adapters, operations, at }) {
    const { data, total, matching, offset, tiers } = adapters;
    if (offset !== this.offset) return;
    if (offset > 0 && data.length === 0) {
      this.go(Math.max(0, LIMIT * (Math.ceil(matching / LIMIT) - 1)));
      return;
    }
    const counts = Object.entries(tiers).map(([tier, number]) => `${count(number)} ${tier}`);
    setText(get("adapters-text"), [`${count(total)} adapters`, ...counts.sort()].join(", ") + ".");
    const kept = keyed(get("adapters").tBodies[0], data, {
      key: (card) => card.name,
      make: (card) => this.row(card),
      update: (row, card) => this.update(row, card, at),
    });
    if (!kept) get("adapters-title").focus({ preventScroll: true });
    const last = offset + data.length;
    const which = matching === 0 ? "none" : `${count(offset + 1)} to ${count(last)} of ${count(matching)}`;
    setText(get("pager-text"), which);
    enable(get("previous"), offset > 0);
    enable(get("next"), last < matching);
    this.actions.show(operations);
  }

  row(card) {
    const { name } = card;
    const cell = (kind = "") => el("td", kind ? { class: kind } : {});
    const button = (text, act) => el("button", { type: "button", text, "aria-label": `${text} ${name}`, on: { click: act } });
    const pin = button("Pin", () => this.actions.pin(name, pin.dataset.pinned !== "true"));
    const row = el(
      "tr",
      {},
      el("th", { scope: "row", class: "name" }),
      el("td", {}, el("span", { class: "tier" }), el("span", { class: "pinned", text: "pinned" })),
      cell("code"),
      ...Array.from({ length: 5 }, () => cell("number")),
      cell("time"),
      el(
        "td",
        { class: "actions" },
        pin,
        button("Prewarm", () => this.actions.prewarm(name)),
        button("Unload", () => this.actions.unload(name)),
      ),
    );
    return row;
  }

  update(row, card, now) {
    const [name, tier, generation, rank, size, pages, running, waiting, used, actions] = row.children;
    const loaded = card.generation !== undefined;
    setText(name, card.name);
    name.setAttribute("title", card.source);
    setText(tier.children[0], card.state === "reloading" ? `${card.tier}, reloading` : card.tier);
    tier.children[0].dataset.tier = card.tier;
    tier.children[0].setAttribute("title", card.error ? card.error.message : "");
    tier.children[1].hidden = !card.pinned;
    setText(generation, loaded ? card.generation.slice(0, 8) : "–");
    generation.setAttribute("title", card.generation ?? "");
    setText(rank, loaded ? count(card.rank) : "–");
    setText(size, loaded ? bytes(card.bytes) : "–");
    setText(pages, loaded ? `${count(card.pages_held)} of ${count(card.pages)}` : "–");
    setText(running, loaded ? count(card.running) : "–");
    setText(waiting, loaded ? count(card.waiting) : "–");
    setText(used, ago(now, card.last_used));
    row.classList.toggle("busy", loaded && card.running + card.waiting > 0);
    const [pin, prewarm] = actions.children;
    const word = card.pinned ? "Unpin" : "Pin";
    pin.dataset.pinned = card.pinned;
    setText(pin, word);
    pin.setAttribute("aria-label", `${word} ${card.name}`);
    enable(pin, loaded);
    enable(prewarm, loaded && card.tier === "cold");
  }
}

/** A button that can't be used now stays where the focus is, and says so. */
function enable(button, usable) {
  button.setAttribute("aria-disabled", String(!usable));
}

document.addEventListener(
  "click",
  (event) => {
    if (event.target.closest?.("button[aria-disabled='true']")) event.stopImmediatePropagation();
  },
  { capture: true },
);
