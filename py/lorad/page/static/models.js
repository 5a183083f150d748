// `Models`: which models the playground asks, picked from however many there are.

import { askJson } from "./api.js";
import { announce, el, get, keyed, notice, setText } from "./dom.js";
import { count } from "./format.js";

const MATCHES_MAX = 12;
const CHOSEN_MAX = 6;
const CHOSEN_FIRST = 3;

export class Models {
  constructor() {
    this.names = [];
    this.chosen = [];
    get("model-filter").addEventListener("input", () => this.draw());
    get("model-filter").addEventListener("keydown", (event) => {
      // Enter takes the first match instead of sending the form.
      if (event.key !== "Enter") return;
      event.preventDefault();
      const [first] = this.matches();
      if (first !== undefined) this.choose(first);
    });
  }

  /** Asks the server for the names that the API key may use. */
  async renew() {
    const isFirst = this.names.length === 0;
    try {
      const { data } = await askJson("api", "GET", "v1/models");
      // Adapters before their base.
      this.names = [...data.filter((card) => card.parent), ...data.filter((card) => !card.parent)].map((card) => card.id);
      notice(get("models-notice"), "");
    } catch (error) {
      this.names = [];
      notice(get("models-notice"), `No models: ${error.message}`);
    }
    this.chosen = this.chosen.filter((name) => this.names.includes(name));
    if (isFirst && this.chosen.length === 0) this.chosen = this.names.slice(0, CHOSEN_FIRST);
    this.draw();
  }

  choose(name) {
    if (this.chosen.includes(name) || this.chosen.length >= CHOSEN_MAX) return;
    this.chosen.push(name);
    announce(`${name} will be asked`);
    this.draw();
    get("model-filter").focus({ preventScroll: true });
  }

  drop(name) {
    this.chosen = this.chosen.filter((other) => other !== name);
    announce(`${name} won't be asked`);
    this.draw();
    get("model-filter").focus({ preventScroll: true });
  }

  matches() {
    const part = get("model-filter").value.toLowerCase();
    return this.names.filter((name) => name.toLowerCase().includes(part) && !this.chosen.includes(name));
  }

  draw() {
    const matches = this.matches();
    const full = this.chosen.length >= CHOSEN_MAX;
    const shown = full ? [] : matches.slice(0, MATCHES_MAX);
    const more = matches.length > shown.length ? `; the first ${shown.length} are shown` : "";
    const text = full ? `${CHOSEN_MAX} are asked, which is the most` : `${count(matches.length)} to choose from${more}`;
    setText(get("model-count"), text);
    chips(get("model-matches"), shown, "Add", "+", (name) => this.choose(name));
    chips(get("model-chosen"), this.chosen, "Remove", "×", (name) => this.drop(name));
  }
}

function chips(list, names, verb, sign, act) {
  keyed(list, names, {
    key: (name) => name,
    make: (name) =>
      el(
        "li",
        {},
        el(
          "button",
          { type: "button", class: "chip", "aria-label": `${verb} ${name}`, on: { click: () => act(name) } },
          el("span", { "aria-hidden": "true", text: sign }),
          el("span", { class: "name", text: name }),
        ),
      ),
    update: () => {},
  });
}
