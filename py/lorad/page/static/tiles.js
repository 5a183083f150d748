// The figures at the top.

import { el, get, setText } from "./dom.js";
import { count, figure, seconds } from "./format.js";

const MEAN_SECONDS = 5;

export class Tiles {
  constructor() {
    this.last = null;
    this.values = new Map();
  }

  show(overview) {
    const { engine, recent, at } = overview;
    const tokens = recent.tokens.slice(-MEAN_SECONDS);
    const waits = recent.first_tokens;
    this.set("Tokens/s", figure(tokens.reduce((sum, one) => sum + one, 0) / MEAN_SECONDS), `mean of ${MEAN_SECONDS} s`);
    this.set("TTFT p50", seconds(waits.p50_s), `${count(waits.count)} in a minute`);
    this.set("TTFT p95", seconds(waits.p95_s), "last minute");
    this.set("Running", count(engine.running), "sequences");
    this.set("Waiting", count(engine.waiting), `${count(engine.in_flight)} in flight`);
    this.set("Steps", count(engine.steps), this.rate(engine.steps, at));
    this.set("Preemptions", count(engine.preemptions), "since the start");
    this.set("Page-ins", count(engine.page_ins), `${count(engine.evictions)} evictions`);
  }

  rate(steps, at) {
    const last = this.last;
    if (last === null || at - last.at >= 0.5) this.last = { steps, at };
    if (last !== null && at > last.at && steps >= last.steps) this.perSecond = (steps - last.steps) / (at - last.at);
    return this.perSecond === undefined ? "since the start" : `${figure(this.perSecond)}/s`;
  }

  set(name, value, note) {
    let shown = this.values.get(name);
    if (shown === undefined) {
      shown = { value: el("dd", { class: "value" }), note: el("dd", { class: "quiet" }) };
      this.values.set(name, shown);
      get("tiles").append(el("div", { class: "tile" }, el("dt", { text: name }), shown.value, shown.note));
    }
    setText(shown.value, value);
    setText(shown.note, note);
  }
}
