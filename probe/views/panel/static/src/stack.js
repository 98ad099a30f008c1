// The mark "stack": stacked bars over steps or a category.

import { barsOf } from "./bars.js";
import { breaks, directLabels } from "./callouts.js";
import { lastKnown } from "./extremes.js";
import { axisUnit, framed, hoverText, largestOf, stepAxis, valueTitle } from "./plot_parts.js";
import { shownRange } from "./ranges.js";
import { binsOf, medianPlace, robustEnd } from "./scales.js";
import { StepLines } from "./step_lines.js";
import { summed } from "./sums.js";
import { LOOKS, PARTIAL, inPipeline } from "./theme.js";
import { plain } from "./words.js";

/** @import { Item, Layout, Line, PlotFrame, PlotMark, Trace } from "./types.js" */

/**
 * One bar: a step, or several of which the one with the median sum stands for all.
 * @typedef {object} Column
 * @property {number} x its middle
 * @property {number} at the place of the step that is drawn
 * @property {string} told which steps it holds
 * @property {number} low the smallest sum of its steps
 * @property {number} high
 */

/**
 * What a stack is made of.
 * @typedef {object} Stack
 * @property {number[]} steps
 * @property {(Line & {values: number[]})[]} series shares where the spec asks for them
 * @property {number[]} totals
 * @property {Column[]} columns
 * @property {number} width how many steps a bar covers
 * @property {(key: string, step: number) => number} rowOf
 */

/**
 * Stacked bars of each `by` over steps or a category.
 * @param {PlotMark} mark
 * @returns {PlotFrame | null}
 */
export function stackOf(mark) {
  const { spec } = mark;
  if (spec.x !== "step") return barsOf(mark);
  const stack = stackIn(mark);
  if (!stack.steps.length || !stack.series.length) return null;
  const { series, columns, width } = stack;
  const axis = axisOf(mark, stack);
  /** @type {Item[]} */
  const items = [];
  const traces = series.map((one) => partTrace(mark, stack, one, items, axis.by));
  if (width > 1) traces.push(rangeTrace(mark, stack, axis.by));
  const beyond = columns.map((one) => ({ x: one.x, value: one.high, told: one.told, width })).filter((one) => one.value > axis.end);
  const callouts = breaks(mark, beyond, axis);
  mark.remark = [width > 1 ? `each bar is the median of ${width} steps` : "", callouts.told].filter(Boolean).join(" · ");
  const { layout, range } = layoutOf(mark, stack, axis, callouts);
  const told = series.map((one) => `${one.label} now ${mark.spell(lastKnown(one.values))}`);
  const summary = [told.join(", "), callouts.told].filter(Boolean).join(". ");
  return framed(mark, { traces, layout, items, kind: "step", range, head: ["step", "part", "value"], summary: `${summary}.` });
}

/**
 * Where the axis ends, as the values are, and what they are divided by.
 * @param {PlotMark} mark
 * @param {Stack} stack
 */
function axisOf({ spec }, { totals, columns }) {
  const cut = robustEnd(totals);
  const highest = 1.08 * largestOf(columns.map((one) => one.high));
  const end = (spec.share ? Math.min(1, highest) : cut ?? highest) || 1;
  const { by, title } = axisUnit(spec.unit, end);
  return { end, by, title };
}

/**
 * @param {PlotMark} mark
 * @param {Stack} stack
 * @param {{end: number, by: number, title: string}} axis
 * @param {ReturnType<typeof breaks>} callouts
 * @returns {{layout: Layout, range: [number, number]}}
 */
function layoutOf(mark, stack, { end, by, title }, callouts) {
  const { columns, width } = stack;
  /** @type {[number, number]} */
  const range = [columns[0].x - width / 2, columns[columns.length - 1].x + width / 2];
  const labels = directLabels(mark, endsOf(mark, stack), { end, height: HEIGHT }) ?? { layout: {}, shapes: [], annotations: [], none: true };
  const layout = {
    barmode: "stack", height: HEIGHT, showlegend: "none" in labels, bargap: width > 1 ? 0.05 : 0.12, ...labels.layout,
    shapes: [...stepFrame(mark), ...callouts.shapes, ...labels.shapes], annotations: [...callouts.annotations, ...labels.annotations],
    axes: { x: stepAxis(mark, ...range), y: { title: { text: valueTitle(mark, title) }, range: [0, end / by] } },
  };
  return { layout, range };
}

const HEIGHT = 280;

/**
 * The steps that are shown, their parts and sums, and what is drawn of them.
 * @param {PlotMark} mark
 * @returns {Stack}
 */
function stackIn(mark) {
  const { spec, store } = mark;
  const lines = summed(store, StepLines, spec);
  const below = spec.share ? summed(store, StepLines, { ...spec, y: spec.share, by: [], reduce: "sum", share: undefined }) : null;
  const [from, to] = shownRange(store, "step");
  const { xs, series } = lines.data();
  const kept = xs.map((_, at) => at).filter((at) => xs[at] >= from && xs[at] <= to);
  const steps = kept.map((at) => xs[at]);
  /** @type {(value: number, step: number) => number} */
  const share = (value, step) => (below ? value / below.largest(step) : value);
  const parts = inPipeline(spec, series, (one) => one.label).map((one) => ({ ...one, values: kept.map((at) => share(one.values[at], xs[at])) }));
  const totals = steps.map((_, at) => parts.reduce((sum, one) => sum + (one.values[at] || 0), 0));
  const { columns, width } = columnsOf(steps, totals, mark.holder.clientWidth);
  return { steps, series: parts, totals, columns, width, rowOf: (key, step) => lines.rowOf(key, step) };
}

/**
 * @param {number[]} steps
 * @param {number[]} totals
 * @param {number} pixels
 * @returns {{columns: Column[], width: number}}
 */
function columnsOf(steps, totals, pixels) {
  const found = binsOf(steps, pixels || 600);
  if (!found) return { width: 1, columns: steps.map((x, at) => ({ x, at, told: `step ${x}`, low: totals[at], high: totals[at] })) };
  const columns = found.bins.map(([from, to]) => {
    const at = Math.max(medianPlace(totals, from, to), from);
    const inside = totals.slice(from, to);
    const x = (Math.floor(steps[from] / found.width) + 0.5) * found.width - 0.5;
    return { x, at, told: `steps ${steps[from]} to ${steps[to - 1]}`, low: Math.min(...inside), high: Math.max(...inside) };
  });
  return { columns, width: found.width };
}

/**
 * @param {PlotMark} mark
 * @param {Stack} stack
 * @param {Stack["series"][number]} one
 * @param {Item[]} items added to
 * @param {number} by
 * @returns {Trace}
 */
function partTrace(mark, { steps, columns, totals, width, rowOf }, one, items, by) {
  const first = items.length;
  const hover = columns.map(({ at, told }) => {
    const [value, step] = [one.values[at], steps[at]];
    const cells = [String(step), one.label, mark.spell(value)];
    items.push({ row: rowOf(one.key, step), step, label: one.label, cells, value });
    const which = width > 1 ? `${told}; the median one is step ${step}` : told;
    return hoverText(`${one.label}: ${cells[2]}`, `of ${mark.spell(totals[at])} in all`, which);
  });
  const opacity = columns.map(({ at }) => (mark.store.isPartial(steps[at]) ? PARTIAL : 1));
  return {
    type: "bar", name: plain(one.label, 32), x: columns.map(({ x }) => x), y: columns.map(({ at }) => (Number.isNaN(one.values[at]) ? null : one.values[at] / by)),
    marker: { ...mark.filling(one.label), ...(opacity.some((each) => each < 1) ? { opacity } : {}), line: { width: 0 } }, customdata: columns.map((_, at) => first + at), hoverinfo: "text", hovertext: hover,
  };
}

/**
 * From the smallest to the largest sum of the steps that share a bar.
 * @param {PlotMark} mark
 * @param {Stack} stack
 * @param {number} by
 * @returns {Trace}
 */
function rangeTrace(mark, { columns, width }, by) {
  return {
    type: "bar", name: "range of its steps", showlegend: false, hoverinfo: "skip", x: columns.map(({ x }) => x), base: columns.map(({ low }) => low / by),
    y: columns.map(({ low, high }) => (high - low) / by), width: width * 0.4, marker: { color: LOOKS[mark.card.theme].quiet, opacity: 0.35, line: { width: 0 } },
  };
}

/**
 * Where each part ends at the last step that has ended, where one has: a name stands at its middle, and what they come
 * to at their end. Of a step that goes on a phase that hasn't ended would be nothing.
 * @param {PlotMark} mark
 * @param {Stack} stack
 */
function endsOf(mark, { steps, series, columns, totals }) {
  const { at } = columns.findLast((one) => !mark.store.isPartial(steps[one.at])) ?? columns[columns.length - 1];
  let below = 0;
  const ends = series.map((one) => {
    const value = one.values[at] || 0;
    below += value;
    return { label: one.label, text: mark.spell(value), at: below - value / 2, colour: mark.style(one.label).colour };
  });
  if (ends.length > 1) ends.push({ label: "total", text: mark.spell(totals[at]), at: totals[at], colour: LOOKS[mark.card.theme].ink });
  return ends;
}

/**
 * The scrubber's step has a frame.
 * @param {PlotMark} mark
 * @returns {object[]}
 */
function stepFrame(mark) {
  const { step } = mark.store.ui;
  if (step === null) return [];
  const { band, accent } = LOOKS[mark.card.theme];
  return [{ type: "rect", xref: "x", yref: "paper", x0: step - 0.5, x1: step + 0.5, y0: 0, y1: 1, fillcolor: band, line: { width: 1.5, color: accent }, layer: "above" }];
}
