// The mean difference of rollout and training by token, of answers aligned at the first token that differs. Where too few
// answers have a token, the line has a gap.

import { drawn, freshId, node, say } from "./dom.js";
import { digits, many } from "./words.js";

/** @import { DifferenceCurve } from "./finding_types.js" */

/** Of the picture, in its own units. */
const WIDE = 1000;
const HIGH = 100;

/** Most ticks of the axis of tokens. */
const TICKS = 5;

/**
 * A round number at or above a value: 1, 2 or 5 times a power of ten.
 * @param {number} value
 */
export function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return ([1, 2, 5].find((times) => times * power >= value * (1 - 1e-9)) ?? 10) * power;
}

/**
 * The line through the points that are known, with a gap where one isn't; a point without neighbours is a short dash.
 * @param {(number | null)[]} values
 * @param {number} most the value at the top
 */
export function lineOf(values, most) {
  const step = WIDE / values.length;
  /** @param {number} value */
  const y = (value) => (HIGH * (1 - value / most)).toFixed(2);
  let path = "";
  values.forEach((value, at) => {
    if (value === null) return;
    const [before, after] = [values[at - 1] ?? null, values[at + 1] ?? null];
    const x = (at + 0.5) * step;
    if (before === null && after === null) path += `M${(x - step / 4).toFixed(2)} ${y(value)}h${(step / 2).toFixed(2)}`;
    else path += `${before === null ? "M" : "L"}${x.toFixed(2)} ${y(value)}`;
  });
  return path;
}

/**
 * Ticks of the axis of tokens: offsets to the first token that differs, which always has one.
 * @param {DifferenceCurve} curve
 * @returns {[offset: number, share: number][]} share: of the width
 */
export function ticksOf({ begin, width, concerned }) {
  const span = width * concerned.length;
  const step = roundUp(span / TICKS);
  const first = Math.ceil(begin / step);
  const last = Math.floor((begin + span) / step);
  return Array.from({ length: last - first + 1 }, (_, at) => /** @type {[number, number]} */ ([(first + at) * step, ((first + at) * step - begin) / span]));
}

/**
 * The median of the points before the first token that differs, and of those from it on; null where none is known.
 * @param {DifferenceCurve} curve
 * @returns {[before: number | null, after: number | null]}
 */
export function levelsOf({ begin, width, concerned }) {
  const parts = [concerned.slice(0, -begin / width), concerned.slice(-begin / width)];
  const [before, after] = parts.map((part) => {
    const known = part.filter((one) => one !== null).sort((a, b) => a - b);
    return known.length ? known[Math.floor((known.length - 1) / 2)] : null;
  });
  return [before, after];
}

/** The curve. */
export class Curve {
  constructor() {
    const heading = freshId("curve");
    this.title = node("h4", { id: heading });
    this.plot = node("div", { class: "pp-curve-plot" });
    this.keys = node("p", { class: "pp-curve-keys" });
    this.numbers = node("table", { "aria-labelledby": heading });
    this.unfolded = node("details", {}, node("summary", { text: "Numbers" }), node("div", { class: "pp-scroll", tabindex: "0", role: "region", "aria-label": "Mean difference by token: numbers" }, this.numbers));
    this.root = node("section", { class: "pp-curve", "aria-labelledby": heading, hidden: true }, this.title, this.keys, this.plot, this.unfolded);
  }

  /** @param {DifferenceCurve | null} curve */
  show(curve) {
    this.root.hidden = !curve;
    if (!curve) return;
    say(this.title, titleOf(curve));
    this.keys.replaceChildren(...keysOf(curve));
    this.plot.replaceChildren(...pictureOf(curve));
    this.numbers.replaceChildren(...tableOf(curve));
  }
}

/** @param {DifferenceCurve} curve */
const titleOf = ({ width }) => `Mean difference, nats, by token from the first that differs${width > 1 ? `; a point is ${width} tokens` : ""}`;

/** @param {DifferenceCurve} curve */
function keysOf({ answers: [concerned, others], place }) {
  const keys = [node("span", {}, node("i", { class: "pp-concerned" }), `${many(concerned, "answer")}, each aligned at its first token that differs`)];
  if (others) keys.push(node("span", {}, node("i", { class: "pp-others" }), `${many(others, "other answer")}, aligned at token ${place}`));
  return keys;
}

/**
 * What is seen, in words.
 * @param {DifferenceCurve} curve
 */
export function curveInWords(curve) {
  const [before, after] = levelsOf(curve);
  const told = [before === null ? "" : `${digits(before)} nats before the first token that differs`, after === null ? "" : `${digits(after)} nats from it on`];
  return `Mean difference by token, median of the points: ${told.filter(Boolean).join(", ")}.`;
}

/** @param {DifferenceCurve} curve */
function pictureOf(curve) {
  const { begin, width, concerned, others } = curve;
  const most = roundUp(Math.max(...[...concerned, ...others].filter((one) => one !== null), 1e-6));
  const zero = ((-begin / width) * WIDE) / concerned.length;
  const picture = drawn("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: "none", role: "img", "aria-label": curveInWords(curve) },
    ...[0, 0.5, 1].map((share) => drawn("path", { class: "pp-gridline", d: `M0 ${HIGH * (1 - share)}H${WIDE}` })),
    drawn("path", { class: "pp-curve-begin", d: `M${zero.toFixed(2)} 0V${HIGH}` }),
    drawn("path", { class: "pp-curve-others", d: lineOf(others, most) }),
    drawn("path", { class: "pp-curve-concerned", d: lineOf(concerned, most) }));
  const values = node("div", { class: "pp-curve-values", "aria-hidden": "true" }, ...[1, 0.5, 0].map((share) => node("span", { text: digits(share * most) })));
  const ticks = node("div", { class: "pp-curve-ticks", "aria-hidden": "true" }, ...ticksOf(curve).map(([offset, share]) => node("span", { "data-first": offset === 0, style: `inset-inline-start: ${(100 * share).toFixed(2)}%`, text: offset > 0 ? `+${digits(offset)}` : digits(offset) })));
  return [values, node("div", { class: "pp-curve-stage" }, picture), ticks];
}

/** @param {DifferenceCurve} curve */
function tableOf({ begin, width, concerned, others, answers }) {
  const both = answers[1] > 0;
  const head = ["Token", "Concerned, nats", ...(both ? ["Others, nats"] : [])];
  const columns = node("tr", {}, ...head.map((text, at) => node("th", { scope: "col", class: at ? "pp-number" : null, text })));
  const rows = concerned.map((value, at) => {
    const from = begin + at * width;
    const name = width > 1 ? `${digits(from)} to ${digits(from + width - 1)}` : digits(from);
    return node("tr", {}, node("th", { scope: "row", text: name }), ...[value, ...(both ? [others[at]] : [])].map((one) => node("td", { class: "pp-number", text: one === null ? "–" : digits(one) })));
  });
  return [node("thead", {}, columns), node("tbody", {}, ...rows)];
}
