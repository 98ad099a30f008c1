// Which rank stands out, compared with what: as `who_stands_out` in probe/dashboards/outstanding.py finds it.

import { median } from "./medians.js";
import { spell } from "./words.js";

/** @import { StepLines } from "./step_lines.js" */
/** @import { Spec, TileSpec } from "./definition_types.js" */

/** A rank stands out whose number is so many times as bad as the middle of the others, over so many steps or more. */
const OUTSTANDING = 1.1;
const LEAST_STEPS = 3;

/**
 * @typedef {object} Who the rank whose numbers are the worst, and what they are compared with
 * @property {number} rank
 * @property {number} value
 * @property {number} others the middle of the others' numbers
 * @property {number} ranks how many are compared
 * @property {number} low
 * @property {number} high
 * @property {number} steps over so many
 * @property {boolean} standsOut
 */

/**
 * The series by which the ranks of a tile are compared; null where nobody is.
 * @param {TileSpec} tile
 * @returns {Spec | null}
 */
export function whoSeries(tile) {
  const { who } = tile;
  if (!who) return null;
  if (typeof who !== "string") return { ...who, x: "step" };
  const { table, where, first, y, each, reduce, per, least, slots, scale, divide, unit } = tile;
  return { table, where, first, y, each, reduce, per, least, slots, scale, divide, unit, by: who, x: "step" };
}

/**
 * Compare the ranks over the steps that the number of a tile is of.
 * @param {Pick<TileSpec, "unit" | "better" | "window">} tile
 * @param {StepLines} lines of `whoSeries`
 * @param {(step: number) => boolean} counts whether a step does
 * @returns {Who | null} null where fewer than two have a value
 */
export function whoStandsOut(tile, lines, counts) {
  const whole = tile.unit === "bytes";
  const most = whole ? Infinity : tile.window ?? 1;
  /** @type {Map<number, number[]>} */
  const found = new Map();
  let inside = 0;
  for (let at = lines.steps.length - 1; at >= 0 && inside < most; at -= 1) {
    if (counts(lines.steps[at]) && collect(lines, lines.steps[at], found)) inside += 1;
  }
  if (found.size < 2) return null;
  const numbers = [...found].map(([rank, values]) => /** @type {[number, number]} */ ([rank, whole ? Math.max(...values) : median(values)]));
  return worst(numbers.sort(([a], [b]) => a - b), tile, inside);
}

/**
 * Take in the values of a step.
 * @param {StepLines} lines
 * @param {number} step
 * @param {Map<number, number[]>} found by rank
 * @returns {boolean} whether there is any
 */
function collect(lines, step, found) {
  let any = false;
  for (const [[rank = -1], value] of lines.valuesAt(step)) {
    if (rank < 0 || Number.isNaN(value)) continue;
    any = true;
    const known = found.get(rank);
    if (known) known.push(value);
    else found.set(rank, [value]);
  }
  return any;
}

/**
 * @param {[rank: number, value: number][]} numbers in the order of the ranks
 * @param {Pick<TileSpec, "better">} tile
 * @param {number} steps
 * @returns {Who}
 */
function worst(numbers, { better }, steps) {
  const sign = better === "higher" ? -1 : 1;
  const [rank, value] = numbers.reduce((best, one) => (sign * one[1] > sign * best[1] ? one : best));
  const others = median(numbers.filter(([other]) => other !== rank).map(([, one]) => one));
  const [above, below] = sign > 0 ? [value, others] : [others, value];
  const all = numbers.map(([, one]) => one);
  return { rank, value, others, ranks: numbers.length, low: Math.min(...all), high: Math.max(...all), steps, standsOut: steps >= LEAST_STEPS && below > 0 && above >= OUTSTANDING * below };
}

/**
 * Who stands out, in a sentence; "" where nobody was compared.
 * @param {Who | null} who
 * @param {string | undefined} unit
 */
export function saidOf(who, unit) {
  if (!who) return "";
  /** @param {number} value */
  const text = (value) => `${spell(value, unit)}${unit === "tokens" ? " tokens" : ""}`.replaceAll(" ", "\u00a0");
  if (who.standsOut) return `Rank\u00a0${who.rank}: ${text(who.value)}, ${who.ranks > 2 ? `the other ${who.ranks - 1} ranks` : "the other rank"}: ${text(who.others)}.`;
  return `${who.steps < LEAST_STEPS ? `${who.ranks} ranks` : "No rank stands out"}: ${[...new Set([text(who.low), text(who.high)])].join(" to ")}.`;
}
