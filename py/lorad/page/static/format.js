// Figures as people read them.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

/** 12345 → 12,345 */
export const count = (value) => WHOLE.format(value);

/** A rate or another figure with a fraction. */
export const figure = (value) => (value >= 100 ? WHOLE.format(value) : SHORT.format(value));

/** Seconds; "–" where there is none. */
export function seconds(value) {
  if (value === null || value === undefined) return "–";
  return value < 1 ? `${SHORT.format(value * 1000)} ms` : `${SHORT.format(value)} s`;
}

/** Bytes, in decimal units. */
export function bytes(value) {
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (value >= size) return `${SHORT.format(value / size)} ${unit}`;
  }
  return `${value} B`;
}

/** How long ago, in one word. `now` and `then` in seconds since 1970; null: never. */
export function ago(now, then) {
  if (then === null || then === undefined) return "–";
  const past = Math.max(now - then, 0);
  if (past < 2) return "now";
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (past >= size) return `${Math.floor(past / size)} ${unit} ago`;
  }
  return `${Math.floor(past)} s ago`;
}
