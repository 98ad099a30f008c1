// The mark "stack": stacked bars over steps or a category.

import { barsOf } from "./bars.js";
import { lastKnown } from "./extremes.js";
import { axisUnit, framed, hoverText, largestOf } from "./plot_parts.js";
import { StepLines } from "./step_lines.js";
import { summed } from "./sums.js";
import { LOOKS, PARTIAL } from "./theme.js";
import { plain } from "./words.js";

/** @import { Item, PlotFrame, PlotMark } from "./types.js" */

/**
 * Stacked bars of each `by` over steps or a category.
 * @param {PlotMark} mark
 * @returns {PlotFrame}
 */
export function stackOf(mark) {
  const { spec, store } = mark;
  if (spec.x !== "step") return barsOf(mark);
  const lines = summed(store, StepLines, spec);
  const below = spec.share ? summed(store, StepLines, { ...spec, y: spec.share, by: [], reduce: "sum", share: undefined }) : null;
  const { xs, series } = lines.data(400);
  /** @type {(value: number, x: number) => number} */
  const share = (value, x) => (below ? value / below.largest(x) : value);
  /** @type {Item[]} */
  const items = [];
  const { by, title } = axisUnit(spec.unit, below ? 1 : largestOf(xs.map((_, at) => series.reduce((sum, one) => sum + (one.values[at] || 0), 0))));
  const opacity = xs.some((x) => store.isPartial(x)) ? xs.map((x) => (store.isPartial(x) ? PARTIAL : 1)) : 1;
  const traces = series.map((one) => {
    const first = items.length;
    const ys = Array.from(one.values, (value, at) => {
      const shown = share(value, xs[at]);
      items.push({ row: lines.rowOf(one.key, xs[at]), step: xs[at], label: one.label, cells: [String(xs[at]), one.label, mark.spell(shown)], value: shown });
      return Number.isNaN(shown) ? null : shown / by;
    });
    return {
      type: "bar", name: plain(one.label, 32), x: xs, y: ys, marker: { ...mark.filling(one.label), opacity, line: { width: 0 } },
      customdata: ys.map((_, at) => first + at), hoverinfo: "text",
      hovertext: ys.map((_, at) => hoverText(`${one.label}: ${items[first + at].cells[2]}`, `step ${xs[at]}`)),
    };
  });
  const told = series.map((one) => `${one.label} now ${mark.spell(share(lastKnown(one.values), xs[xs.length - 1]))}`);
  const layout = { barmode: "stack", showlegend: true, shapes: stepBand(mark), axes: { x: { title: { text: "step" }, tickformat: "d" }, y: { title: { text: spec.y_title ? `${spec.y_title}${title ? `, ${title}` : ""}` : title }, rangemode: "tozero" } } };
  return framed(mark, { traces, layout, items, kind: "step", head: ["step", "part", "value"], summary: `${told.join(", ")}.` });
}

/**
 * The scrubber's step, as a band behind the marks.
 * @param {PlotMark} mark
 * @returns {object[]}
 */
function stepBand(mark) {
  const { step } = mark.store.ui;
  if (step === null) return [];
  return [{ type: "rect", xref: "x", yref: "paper", x0: step - 0.5, x1: step + 0.5, y0: 0, y1: 1, fillcolor: LOOKS[mark.card.theme].band, line: { width: 0 }, layer: "below" }];
}
