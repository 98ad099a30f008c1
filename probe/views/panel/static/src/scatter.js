// The mark "scatter": a dot a row, and where asked a least-squares line for each series.

import { groupLabel, listOf } from "./matching.js";
import { axisUnit, framed, hoverText, inOrder, largestOf, toldOf, valueTitle } from "./plot_parts.js";
import { foremost, rowsOf } from "./sums.js";
import { plain, spell } from "./words.js";

/** @import { Fit } from "./definition_types.js" */
/** @import { Item, PlotFrame, PlotMark, Trace } from "./types.js" */

const MOST_DOTS = 1200;

/**
 * A dot a row, and where asked a least-squares line for each series.
 * @param {PlotMark} mark
 * @returns {PlotFrame | null}
 */
export function scatterOf(mark) {
  const { spec, store } = mark;
  const table = store.table(spec.table);
  const [x, y] = [listOf(spec.x)[0], listOf(spec.y)[0]];
  const known = rowsOf(store, spec, mark.step).filter((row) => table.get(x, row) >= 0 && !Number.isNaN(table.get(y, row)));
  const rows = foremost(table, known, y, MOST_DOTS);
  if (!rows.length) return null;
  const names = listOf(spec.by);
  /** @type {Item[]} */
  const items = rows.map((row) => {
    const label = groupLabel(store, spec, table, names, names.map((name) => table.code(name, row)));
    const values = [table.get(x, row), table.get(y, row)];
    const place = `${mark.store.words.text(table.code("who", row))}, step ${table.get("step", row)}`;
    return { row, label, values, value: values[1], cells: [label, place, spell(values[0], x === "tokens" ? "tokens" : "number"), mark.spell(values[1])], place };
  });
  const { by, title } = axisUnit(spec.unit, largestOf(items.map((one) => one.value)));
  const traces = inOrder(items, (one) => one.label).flatMap((label) => dots(mark, items, { label, by, fit: spec.fit, x }));
  const layout = { showlegend: true, height: 300, axes: { x: { title: { text: spec.x_title || mark.title(x) }, rangemode: "tozero", showline: true }, y: { title: { text: valueTitle(mark, title) } } } };
  const fits = traces.filter((trace) => trace.told).map((trace) => trace.told);
  const most = items.reduce((a, b) => (b.value > a.value ? b : a));
  mark.remark = spec.fit && !fits.length ? noLine(spec.fit, mostOfALabel(items)) : "";
  const summary = `${items.length} dots; the highest is ${most.label}, ${most.place}, with ${mark.spell(most.value)}. ${fits.join(". ") || mark.remark}`;
  return framed(mark, { traces, layout, items, kind: null, head: ["series", "where", mark.title(x), mark.title(y)], summary });
}

/**
 * @param {PlotMark} mark
 * @param {Item[]} items
 * @param {{label: string, by: number, fit: Fit | undefined, x: string}} drawn
 * @returns {Trace[]}
 */
function dots(mark, items, { label, by, fit, x }) {
  const places = items.map((_, at) => at).filter((at) => items[at].label === label);
  const own = places.map((at) => items[at]);
  const { colour, symbol } = mark.style(label);
  const [xs, ys] = [own.map((one) => one.values[0]), own.map((one) => one.values[1])];
  const trace = {
    type: "scatter", mode: "markers", name: plain(label, 32), x: xs, y: ys.map((one) => one / by), customdata: places, hoverinfo: "text",
    hovertext: own.map((one) => hoverText(one.cells[3], `${one.cells[2]} ${mark.title(x)}`, toldOf(mark, mark.store.table(mark.spec.table), one.row ?? -1), label, one.place)),
    marker: { color: colour, size: 7, opacity: 0.75, symbol },
  };
  const line = fit && risingLine(xs, ys, fit);
  if (!line) return [trace];
  const ends = [Math.min(...xs), Math.max(...xs)];
  const told = `${label}: ${mark.spell(line.slope)} a ${mark.title(x).replace(/s$/, "")}`;
  return [trace, {
    type: "scatter", mode: "lines", name: plain(told, 48), told, x: ends, y: ends.map((one) => (line.start + line.slope * one) / by),
    line: { color: colour, width: 1.5, dash: "dash" }, hoverinfo: "skip",
  }];
}

/**
 * The line through points where they say that y rises with x, as `rising_line` in probe/figures/marks/fit.py finds it.
 * @param {number[]} xs
 * @param {number[]} ys
 * @param {Fit} fit
 */
export function risingLine(xs, ys, fit) {
  const line = xs.length < fit.rows ? null : leastSquares(xs, ys);
  return line && line.slope > 0 && line.explained >= fit.explained ? line : null;
}

/**
 * Why no line is drawn, as `no_line` in probe/figures/marks/fit.py says it.
 * @param {Fit} fit
 * @param {number} points of the series that has most
 */
export function noLine(fit, points) {
  if (points < fit.rows) return `no line: needs ${fit.rows} dots of a series or more`;
  return `no line: no rising line explains ${spell(fit.explained, "percent")} of the variance`;
}

/** @param {Item[]} items */
function mostOfALabel(items) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const { label } of items) counts.set(label, (counts.get(label) ?? 0) + 1);
  return Math.max(0, ...counts.values());
}

/**
 * Start, slope and the share of y's variance that x explains; null where x doesn't vary or there are too few.
 * @param {number[]} xs
 * @param {number[]} ys
 */
function leastSquares(xs, ys) {
  if (xs.length < 3) return null;
  /** @param {number[]} values */
  const mean = (values) => values.reduce((sum, one) => sum + one, 0) / values.length;
  const [mx, my] = [mean(xs), mean(ys)];
  let [above, below, whole] = [0, 0, 0];
  xs.forEach((x, at) => {
    above += (x - mx) * (ys[at] - my);
    below += (x - mx) ** 2;
    whole += (ys[at] - my) ** 2;
  });
  if (!(below > 0)) return null;
  return { slope: above / below, start: my - (above / below) * mx, explained: whole > 0 ? above ** 2 / (below * whole) : 0 };
}
