// What the marks drawn by plotly have in common: axes, texts, orders.

import { listOf } from "./matching.js";
import { MOST_TICKS, someOf, stepTicks } from "./scales.js";
import { UNITS_OF_BYTES, plain, spell } from "./words.js";

/** @import { LiveTable } from "./table.js" */
/** @import { PlotFrame, PlotMark } from "./types.js" */

export const MOST_BARS = 60;

/**
 * Divisor and unit of an axis.
 * @param {string | undefined} unit
 * @param {number} largest
 */
export function axisUnit(unit, largest) {
  if (unit === "bytes") {
    const power = Math.min(Math.max(Math.floor(Math.log2(Math.max(largest, 1)) / 10), 0), 3);
    return { by: 1024 ** power, title: UNITS_OF_BYTES[power] };
  }
  if (unit === "percent") return { by: 0.01, title: "%" };
  if (unit === "s") return largest < 0.1 ? { by: 1e-3, title: "ms" } : { by: 1, title: "s" };
  return { by: 1, title: unit === "ratio" || unit === "number" ? "" : unit || "" };
}

/** @param {Iterable<number>} values */
export function largestOf(values) {
  let largest = 0;
  for (const value of values) if (Math.abs(value) > largest) largest = Math.abs(value);
  return largest;
}

/** @param {...string} lines */
export function hoverText(...lines) {
  const [first, ...rest] = lines.filter(Boolean).map((line) => plain(line, 120));
  return [`<b>${first}</b>`, ...rest].join("<br>");
}

/**
 * The values of items, each once: numbers by size, names as a person sorts them.
 * @template T
 * @template {string | number} K
 * @param {T[]} items
 * @param {(item: T) => K} key
 * @returns {K[]}
 */
export function inOrder(items, key) {
  return [...new Set(items.map(key))].sort((a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true })));
}

/**
 * @param {PlotMark} mark
 * @param {Omit<PlotFrame, "generation">} made
 * @returns {PlotFrame}
 */
export function framed(mark, made) {
  return { generation: mark.store.table(mark.spec.table).generation, ...made };
}

/**
 * Users' names on an axis: escaped, and not so long that no space is left for the bars. Numbers, and names that only count
 * such as "rank 7", are said every so many where there are many.
 * @param {PlotMark} mark
 * @param {string[]} names
 * @param {number} [most]
 */
export function categoryTicks(mark, names, most = MOST_TICKS) {
  const length = mark.holder.clientWidth > 560 ? 36 : 20;
  const shown = names.every((name) => /^(rank )?\d+$/.test(name)) ? someOf(names, most) : names;
  return { tickmode: "array", tickvals: shown, ticktext: shown.map((name) => plain(name, length)) };
}

/**
 * An axis of steps.
 * @param {PlotMark} mark
 * @param {number} from
 * @param {number} to
 */
export function stepAxis(mark, from, to) {
  return { title: { text: "step" }, ...stepTicks(from, to, mark.store.ui.step) };
}

/**
 * What a row tells beside its value: the columns of `tell`.
 * @param {PlotMark} mark
 * @param {LiveTable} table
 * @param {number} row −1 where it is gone
 * @returns {string}
 */
export function toldOf(mark, table, row) {
  if (row < 0) return "";
  return listOf(mark.spec.tell).map((name) => `${mark.title(name)} ${spell(table.get(name, row), "count")}`).join(", ");
}
