// The sign of a kind of finding: its shape tells it where colour doesn't.

import { drawn } from "./dom.js";

/** @import { Kind } from "./findings.js" */

/** @param {Kind} kind */
export function iconOf(kind) {
  /** @param {SVGElement[]} parts */
  const made = (...parts) => drawn("svg", { viewBox: "0 0 20 20", width: "20", height: "20" }, ...parts);
  if (kind === "alarm") return made(drawn("path", { class: "pp-i-full", d: "M10 2 19 18H1Z" }), drawn("path", { class: "pp-i-cut", d: "M10 8v5M10 15.2v.8" }));
  if (kind === "tuning") return made(drawn("circle", { class: "pp-i-line", cx: "10", cy: "10", r: "8" }), drawn("path", { class: "pp-i-full", d: "M10 2a8 8 0 0 1 0 16Z" }));
  if (kind === "fine") return made(drawn("circle", { class: "pp-i-full", cx: "10", cy: "10", r: "9" }), drawn("path", { class: "pp-i-cut", d: "m5.8 10.3 2.8 2.8 5.6-6" }));
  return made(drawn("circle", { class: "pp-i-line pp-i-dashed", cx: "10", cy: "10", r: "8" }));
}
