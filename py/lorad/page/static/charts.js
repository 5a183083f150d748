// `Charts`: tokens per second and times to the first token over the last minute, as SVG.

import { el, get, setText, svg } from "./dom.js";
import { count, figure, seconds } from "./format.js";

const WIDTH = 320;
const HEIGHT = 96;
const TOP = 6;

export class Charts {
  constructor() {
    this.tokens = new Chart("Tokens per second", ["tokens"]);
    this.waits = new Chart("Time to the first token", ["p95", "p50"]);
  }

  show({ recent }) {
    const most = Math.max(...recent.tokens);
    this.tokens.draw([recent.tokens], figure, `at most ${count(most)}, ${count(recent.tokens.at(-1))} in the last second`);
    const { p50_s: p50, p95_s: p95 } = recent.first_tokens;
    const bySecond = recent.first_tokens_by_second;
    this.waits.draw(
      [bySecond.map((one) => one.p95_s), bySecond.map((one) => one.p50_s)],
      seconds,
      p50 === null ? "no first token in the last minute" : `p50 ${seconds(p50)}, p95 ${seconds(p95)}`,
    );
  }
}

/** One chart: some series over the same seconds; null: nothing there. */
class Chart {
  constructor(title, names) {
    this.note = el("span", { class: "quiet" });
    this.top = el("span", { class: "axis" });
    this.lines = names.map((name) => ({
      area: svg("path", { class: `area ${name}` }),
      line: svg("path", { class: `line ${name}` }),
      dots: svg("path", { class: `dots ${name}` }),
    }));
    this.drawing = svg(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" },
      svg("path", { class: "grid", d: `M0 ${TOP}H${WIDTH}M0 ${(HEIGHT + TOP) / 2}H${WIDTH}M0 ${HEIGHT - 1}H${WIDTH}` }),
      ...this.lines.flatMap(({ area, line, dots }) => [area, line, dots]),
    );
    this.title = title;
    const legend = names.length > 1 ? names.map((name) => el("span", { class: `key ${name}`, text: name })) : [];
    get("charts").append(
      el(
        "figure",
        {},
        el("figcaption", {}, el("span", { class: "chart-title", text: title }), ...legend, this.note),
        el("div", { class: "plot" }, this.drawing, this.top),
        el("div", { class: "axis-x", "aria-hidden": "true" }, el("span", { text: "60 s ago" }), el("span", { text: "now" })),
      ),
    );
  }

  draw(series, format, note) {
    const known = series.flat().filter((value) => value !== null);
    const high = nice(Math.max(0, ...known));
    setText(this.note, note);
    setText(this.top, known.length && high ? format(high) : "");
    this.drawing.setAttribute("aria-label", `${this.title}: ${note}`);
    series.forEach((values, index) => {
      const points = values.map((value, at) => [
        (at / (values.length - 1)) * WIDTH,
        value === null ? null : HEIGHT - 1 - (value / (high || 1)) * (HEIGHT - 1 - TOP),
      ]);
      const { area, line, dots } = this.lines[index];
      const there = points.filter(([, y]) => y !== null);
      line.setAttribute("d", stretches(points).map((part) => `M${part.map(pair).join("L")}`).join(""));
      // A second without a neighbour is no line; it's a dot.
      dots.setAttribute("d", there.map((point) => `M${pair(point)}h0.01`).join(""));
      const filled = index === 0 && there.length === points.length;
      area.setAttribute("d", filled ? `M0 ${HEIGHT - 1}L${points.map(pair).join("L")}L${WIDTH} ${HEIGHT - 1}z` : "");
    });
  }
}

const pair = ([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`;

/** The parts of a line between gaps. */
function stretches(points) {
  const parts = [[]];
  for (const point of points) {
    if (point[1] === null) parts.push([]);
    else parts.at(-1).push(point);
  }
  return parts.filter((part) => part.length > 1);
}

/** The next of 1, 2, 5, 10, … */
function nice(value) {
  if (value <= 0) return 0;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}
