// `Actions`: what an operator does to adapters, and how far the server is with it.

import { adapterPath, askJson } from "./api.js";
import { announce, el, get, keyed, notice, setText } from "./dom.js";
import { seconds } from "./format.js";

const DONE = { load: "loaded", reload: "reloaded", unload: "unloaded", prewarm: "in pages", restore: "brought back" };

export class Actions {
  /** `onChanged()`: something was done that the figures should tell now. */
  constructor(onChanged) {
    this.onChanged = onChanged;
    this.states = null;
    this.begun = new Set();
    get("load").addEventListener("submit", (event) => {
      event.preventDefault();
      this.load();
    });
    get("unload-form").addEventListener("submit", (event) => {
      event.preventDefault();
      get("unload").close("unload");
    });
    get("unload-cancel").addEventListener("click", () => get("unload").close(""));
    get("unload").addEventListener("close", () => this.closed());
  }

  load() {
    const name = get("load-name").value;
    const body = {
      source: get("load-source").value,
      pinned: get("load-pinned").checked,
      reload: get("load-reload").checked,
    };
    this.act(`loading ${name}`, () => askJson("operator", "PUT", adapterPath(name), { body }));
  }

  pin(name, pinned) {
    const what = pinned ? `pinning ${name}` : `unpinning ${name}`;
    this.act(what, () => askJson("operator", "PATCH", adapterPath(name), { body: { pinned } }));
  }

  prewarm(name) {
    this.act(`prewarming ${name}`, () => askJson("operator", "POST", "v1/lora_prewarm", { body: { names: [name] } }));
  }

  /** Asks first: it takes the name from everybody. */
  unload(name) {
    this.asked = { name, from: document.activeElement };
    setText(get("unload-title"), `Unload ${name}?`);
    get("unload-let").checked = true;
    get("unload").returnValue = "";
    get("unload").showModal();
    get("unload-cancel").focus();
  }

  closed() {
    const { name, from } = this.asked;
    const target = from?.isConnected ? from : get("adapters-title");
    target.focus({ preventScroll: true });
    if (get("unload").returnValue !== "unload") return;
    const query = get("unload-cut").checked ? "?within_seconds=0" : "";
    this.act(`unloading ${name}`, () => askJson("operator", "DELETE", adapterPath(name) + query));
  }

  async act(what, call) {
    notice(get("action-notice"), "");
    announce(what);
    try {
      const answer = await call();
      if (answer.object === "operation") this.begun.add(answer.id);
    } catch (error) {
      notice(get("action-notice"), `${what}: ${error.message}`);
    }
    this.onChanged();
  }

  /** The operations that run and the last that ended, newest first. The end of one is said aloud, and why one failed that was begun here. */
  show(operations) {
    const states = new Map(operations.map((operation) => [operation.id, operation.state]));
    for (const operation of operations) {
      const before = this.states?.get(operation.id);
      const isNews = this.states !== null && before !== operation.state && operation.state !== "running";
      if (isNews) announce(describe(operation));
      if (operation.state !== "running" && this.begun.delete(operation.id) && operation.state === "failed") {
        notice(get("action-notice"), describe(operation));
      }
    }
    this.states = states;
    keyed(get("operations"), [...operations].reverse(), {
      key: (operation) => operation.id,
      make: () => el("li"),
      update: (row, operation) => {
        row.dataset.state = operation.state;
        setText(row, describe(operation));
      },
    });
  }
}

function describe({ kind, adapters, state, stage, progress, seconds: took, error, warnings = [] }) {
  const names = adapters.join(", ");
  if (state === "failed") return `${names}: ${kind} failed: ${error.message}`;
  if (state === "succeeded") return [`${names}: ${DONE[kind] ?? kind} in ${seconds(took)}`, ...warnings].join("; ");
  const far = progress?.total ? `, ${Math.floor((100 * progress.done) / progress.total)}%` : "";
  return `${names}: ${kind}, ${stage.replace("_", " ")}${far}`;
}
