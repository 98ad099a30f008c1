// Lines across a chart: capacities, limits, means.

import { Grouped } from "./grouped.js";
import { summed } from "./sums.js";
import { LOOKS } from "./theme.js";
import { plain } from "./words.js";

/** @import { Guide, Spec } from "./definition_types.js" */
/** @import { GuideLine, Layout, PlotMark, Trace } from "./types.js" */
/** @import { CategoryValue } from "./categories.js" */
/** @import { Store } from "./store.js" */

/**
 * The lines of a guide: a fixed value, or one of the table; of each `by` its own where they differ.
 * @param {Store} store
 * @param {Spec} spec
 * @param {Guide} guide
 * @returns {GuideLine[]}
 */
export function guideLines(store, spec, guide) {
  if (typeof guide.value === "number") return [{ title: guide.title, value: guide.value }];
  if (!guide.y) return [];
  const even = guide.reduce === "mean";
  const over = summed(store, Grouped, Object.assign({ reduce: "max", by: [] }, { table: spec.table, where: spec.where, ...guide, title: undefined }));
  const step = spec.of === "step" ? store.step : null;
  /** @type {Map<number, string>} */
  const found = new Map();
  for (const [key, cell] of over.collect(step)) {
    const value = over.value(cell);
    if (!Number.isNaN(value)) found.set(value, found.has(value) ? "" : over.groups.length ? over.label(key) : "");
  }
  const alone = found.size === 1;
  return [...found].map(([value, name]) => ({ title: alone || !name ? guide.title : `${guide.title} of ${name}`, value, even }));
}

/**
 * A guide's lines over bars; "mean" is the mean of the bars.
 * @param {PlotMark} mark
 * @param {Guide} guide
 * @param {CategoryValue[]} data
 * @param {string[]} names
 * @returns {GuideLine[]}
 */
export function barGuides(mark, guide, data, names) {
  if (guide.value !== "mean") return guideLines(mark.store, mark.spec, guide).filter((one) => one.value > 0);
  const sum = data.reduce((total, one) => total + one.value, 0);
  return [{ title: guide.title, value: sum / Math.max(names.length, 1), even: true }];
}

/**
 * Draw guides: a line, and a trace that gives it a place in the legend.
 * @param {PlotMark} mark
 * @param {Trace[]} traces
 * @param {Layout} layout
 * @param {GuideLine[]} guides
 * @param {{by: number, across: boolean, names: (string | number)[]}} axis what values are divided by, whether they lie
 *   along x, and the categories
 */
export function addGuides(mark, traces, layout, guides, { by, across, names }) {
  const look = LOOKS[mark.card.theme];
  /** @param {GuideLine} guide */
  const line = (guide) => ({ color: guide.even ? look.quiet : look.alarm, width: 1.5, dash: guide.even ? "dot" : "dash" });
  layout.shapes = guides.map((guide) => {
    const at = guide.value / by;
    const ends = across ? { x0: at, x1: at, y0: 0, y1: 1, xref: "x", yref: "paper" } : { y0: at, y1: at, x0: 0, x1: 1, xref: "paper", yref: "y" };
    return { type: "line", ...ends, line: line(guide) };
  });
  for (const guide of guides) {
    const at = guide.value / by;
    traces.push({
      type: "scatter", mode: "lines", name: `${plain(guide.title, 24)} ${mark.spell(guide.value)}`, hoverinfo: "skip",
      x: across ? [at] : [names[0]], y: across ? [names[0]] : [at], line: line(guide),
    });
  }
}
