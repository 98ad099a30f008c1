// Lines across a chart: capacities, limits, means.

import { reduced } from "./cells.js";
import { Grouped } from "./grouped.js";
import { summed } from "./sums.js";
import { ALARM, LOOKS } from "./theme.js";
import { plain } from "./words.js";

/** Lines across a chart: a fixed value, or one of the table; of each `by` its own where they differ. */
export function guideLines(store, spec, guide) {
  if (typeof guide.value === "number") return [{ title: guide.title, value: guide.value }];
  if (!guide.y) return [];
  const even = guide.reduce === "mean";
  const over = summed(store, Grouped, Object.assign({ reduce: "max", by: [] }, { table: spec.table, where: spec.where, ...guide, title: undefined }));
  const step = spec.of === "step" ? store.step : null;
  const found = new Map();
  for (const [key, cell] of over.collect(step)) {
    const value = reduced(cell, over.how);
    if (!Number.isNaN(value)) found.set(value, found.has(value) ? "" : over.groups.length ? over.label(key) : "");
  }
  const alone = found.size === 1;
  return [...found].map(([value, name]) => ({ title: alone || !name ? guide.title : `${guide.title} of ${name}`, value, even }));
}

/** A guide's lines; "mean" is the mean of the bars. */
export function barGuides(mark, guide, data, names) {
  if (guide.value !== "mean") return guideLines(mark.store, mark.spec, guide).filter((one) => one.value > 0);
  const sum = data.reduce((total, one) => total + one.value, 0);
  return [{ title: guide.title, value: sum / Math.max(names.length, 1), even: true }];
}

export function addGuides(mark, traces, layout, guides, { by, across, names }) {
  const look = LOOKS[mark.card.theme];
  layout.shapes = guides.map((guide) => {
    const at = guide.value / by;
    const ends = across ? { x0: at, x1: at, y0: 0, y1: 1, xref: "x", yref: "paper" } : { y0: at, y1: at, x0: 0, x1: 1, xref: "paper", yref: "y" };
    return { type: "line", ...ends, line: { color: guide.even ? look.quiet : ALARM, width: 1.5, dash: guide.even ? "dot" : "dash" } };
  });
  for (const guide of guides) {
    const at = guide.value / by;
    traces.push({
      type: "scatter", mode: "lines", name: `${plain(guide.title, 24)} ${mark.spell(guide.value)}`, hoverinfo: "skip",
      x: across ? [at] : [names[0]], y: across ? [names[0]] : [at], line: { color: guide.even ? look.quiet : ALARM, width: 1.5, dash: guide.even ? "dot" : "dash" },
    });
  }
}
