// The mark "bars", and stacks over a category: side by side, or on each other.

import { Categories } from "./categories.js";
import { addGuides, barGuides } from "./guides.js";
import { listOf } from "./matching.js";
import { MOST_BARS, axisUnit, categoryTicks, framed, hoverText, inOrder, largestOf, valueTitle } from "./plot_parts.js";
import { summed } from "./sums.js";
import { LOOKS, hue, styleBy } from "./theme.js";
import { many, plain } from "./words.js";

/** @import { CategoryValue } from "./categories.js" */
/** @import { Spec } from "./definition_types.js" */
/** @import { GuideLine, Item, PlotFrame, PlotMark, Trace } from "./types.js" */

/**
 * What bars are made of.
 * @typedef {object} Bars
 * @property {CategoryValue[]} data
 * @property {string[]} names of the categories, in their order
 * @property {Map<string, number>} totals of each category
 * @property {boolean} stacked
 * @property {boolean} across whether values lie along x
 * @property {number} by what values are divided by
 * @property {number[]} ends how far each bar or stack goes
 */

/**
 * Bars by category, one colour for each `by`; those of a stack lie on each other.
 * @param {PlotMark} mark
 * @returns {PlotFrame}
 */
export function barsOf(mark) {
  const found = summed(mark.store, Categories, mark.spec).data(mark.step);
  const bars = barsIn(mark, found);
  const { data, names, totals, stacked } = bars;
  const low = lowest(mark, data);
  const items = data.map((one) => ({ ...one, low: low.get(`${one.x}|${one.series}`), label: `${one.x} ${one.series}`, cells: [one.x, one.series, mark.spell(one.value)] }));
  const traces = seriesOf(data, stacked).map((series) => barTrace(mark, bars, items, series));
  if (stacked) traces.push(totalTrace(mark, bars));
  const guides = (mark.spec.lines || []).flatMap((guide) => barGuides(mark, guide, data, names));
  const layout = barLayout(mark, bars, guides);
  layout.showlegend = guides.length > 0 || (traces.length > 1 && traces.some((trace) => trace.showlegend !== false));
  addGuides(mark, traces, layout, guides, bars);
  const summary = barSummary(mark, stacked ? [...totals] : data.map((one) => [one.x, one.value]), new Set(found.map((one) => one.x)).size - names.length);
  return framed(mark, { traces, layout, items, kind: null, head: ["what", "series", "value"], summary });
}

/**
 * @param {PlotMark} mark
 * @param {CategoryValue[]} found
 * @returns {Bars}
 */
function barsIn(mark, found) {
  const { spec } = mark;
  const stacked = spec.mark === "stack";
  const names = categoriesOf(spec, found, stacked);
  const shown = new Set(names);
  const data = found.filter((one) => shown.has(one.x));
  /** @type {Map<string, number>} */
  const totals = new Map();
  for (const one of data) totals.set(one.x, (totals.get(one.x) || 0) + one.value);
  const ends = stacked ? [...totals.values()] : data.map((one) => one.value);
  return { data, names, totals, stacked, ends, across: names.some((name) => name.length > 10), by: axisUnit(spec.unit, largestOf(ends)).by };
}

/**
 * @param {PlotMark} mark
 * @param {Bars} bars
 * @param {GuideLine[]} guides
 * @returns {Record<string, any>}
 */
function barLayout(mark, bars, guides) {
  const { spec } = mark;
  const { data, names, stacked, across } = bars;
  const beside = stacked ? 1 : Math.max(1, ...names.map((name) => data.filter((one) => one.x === name).length));
  const height = across ? Math.min(Math.max(110 + Math.max(30, 19 * Math.min(beside, 4)) * names.length, 180), 720) : 280;
  const order = across ? [...names].reverse() : names;
  const value = { title: { text: valueTitle(mark, axisUnit(spec.unit, largestOf(bars.ends)).title) }, rangemode: "tozero", ...valueRange(mark, bars, guides) };
  const place = {
    title: { text: across ? "" : spec.x_title || mark.title(listOf(spec.x).join(" · ")) }, type: "category", categoryorder: "array", categoryarray: order,
    ...categoryTicks(mark, order), ...(across ? { showgrid: false } : {}),
  };
  const axes = across ? { x: value, y: place } : { x: place, y: value };
  return { barmode: stacked ? "stack" : "group", height, bargap: across ? 0.18 : gapOf(names), axes };
}

/**
 * @param {PlotMark} mark
 * @param {[name: string, value: number][]} bars
 * @param {number} left how many categories aren't shown
 */
function barSummary(mark, bars, left) {
  const told = bars.sort(([, a], [, b]) => b - a).slice(0, 5).map(([name, value]) => `${name} ${mark.spell(value)}`);
  return `Largest: ${told.join(", ")}.${left > 0 ? ` ${many(left, "more is", "more are")} not shown.` : ""}`;
}

/**
 * Series of bars by name; of a stack the largest first, as in the report.
 * @param {CategoryValue[]} data
 * @param {boolean} stacked
 */
function seriesOf(data, stacked) {
  const names = inOrder(data, (one) => one.series);
  if (!stacked) return names;
  /** @type {Map<string, number>} */
  const sums = new Map();
  for (const one of data) sums.set(one.series, (sums.get(one.series) || 0) + one.value);
  return names.sort((a, b) => (sums.get(b) ?? 0) - (sums.get(a) ?? 0));
}

/**
 * The categories that are shown, in their order: the largest where there are too many.
 * @param {Spec} spec
 * @param {CategoryValue[]} data
 * @param {boolean} stacked
 */
function categoriesOf(spec, data, stacked) {
  /** @type {Map<string, number>} */
  const sums = new Map();
  for (const one of data) sums.set(one.x, stacked ? (sums.get(one.x) || 0) + one.value : Math.max(sums.get(one.x) ?? -Infinity, one.value));
  const byValue = [...sums].sort(([, a], [, b]) => b - a).slice(0, MOST_BARS).map(([name]) => name);
  return spec.sort === "value" ? byValue : inOrder(byValue, (one) => one);
}

/**
 * The axis of values, with space for the number behind the longest bar, also where the chart is narrow.
 * @param {PlotMark} mark
 * @param {Bars} bars
 * @param {GuideLine[]} guides
 */
function valueRange(mark, { ends, across, by }, guides) {
  if (!across) return {};
  const wide = Math.max(mark.holder.clientWidth - 170, 120); //  what labels and margins leave of it
  return { range: [0, (Math.max(1.14, 1 + 62 / wide) * largestOf([...ends, ...guides.map((one) => one.value)])) / by] };
}

/**
 * What a stack comes to, behind its end.
 * @param {PlotMark} mark
 * @param {Bars} bars
 * @returns {Trace}
 */
function totalTrace(mark, { names, totals, across, by }) {
  const sums = names.map((name) => totals.get(name) ?? 0);
  const ends = sums.map((sum) => sum / by);
  return {
    type: "scatter", mode: "text", showlegend: false, hoverinfo: "skip", cliponaxis: false, x: across ? ends : names, y: across ? names : ends,
    text: names.length <= 24 ? sums.map((sum) => ` ${mark.spell(sum)}`) : [], textposition: across ? "middle right" : "top center", textfont: { size: 11 },
  };
}

/**
 * Where the ticks stand: the smallest over the columns of `ticks`, by bar; none where nothing differs from its bar.
 * @param {PlotMark} mark
 * @param {CategoryValue[]} data
 * @returns {Map<string, number>}
 */
function lowest(mark, data) {
  const { ticks, ...spec } = mark.spec;
  if (!ticks) return new Map();
  const low = summed(mark.store, Categories, { ...spec, least: ticks.least }).data(mark.step);
  const found = new Map(low.map((one) => [`${one.x}|${one.series}`, one.value]));
  return data.some((one) => found.get(`${one.x}|${one.series}`) !== one.value) ? found : new Map();
}

/**
 * A tick on each bar, as plotly's error bars: these stay on their bar where several stand side by side.
 * @param {PlotMark} mark
 * @param {Item[]} own
 * @param {Bars} bars
 */
function tickMarks(mark, own, { across, by }) {
  if (own.every((one) => one.low === undefined)) return {};
  const below = own.map((one) => (one.value - (one.low ?? one.value)) / by);
  return { [across ? "error_x" : "error_y"]: { type: "data", symmetric: false, array: own.map(() => 0), arrayminus: below, color: LOOKS[mark.card.theme].ink, thickness: 2, width: 7 } };
}

/**
 * @param {PlotMark} mark
 * @param {Bars} bars
 * @param {Item[]} items
 * @param {string} series
 * @returns {Trace}
 */
function barTrace(mark, bars, items, series) {
  const { across, by, stacked, totals } = bars;
  const places = items.map((_, at) => at).filter((at) => items[at].series === series);
  const own = places.map((at) => items[at]);
  const ends = own.map((one) => one.value / by);
  const names = own.map((one) => one.x);
  /** @param {Item} one */
  const all = (one) => (stacked ? `of ${mark.spell(totals.get(one.x) ?? 0)} in all` : "");
  /** @param {Item} one */
  const tick = (one) => (one.low === undefined ? "" : `${mark.spec.ticks?.title}: ${mark.spell(one.low)}`);
  return {
    type: "bar", name: plain(series, 32), ...besideOthers(bars, own), showlegend: categoryHue(mark) === undefined, orientation: across ? "h" : "v", x: across ? ends : names, y: across ? names : ends,
    marker: barMarker(mark, own, own.length === items.length ? null : series), customdata: places, hoverinfo: "text",
    hovertext: own.map((one) => hoverText(`${one.x}: ${one.cells[2]}`, one.series, all(one), tick(one))), ...tickMarks(mark, own, bars),
    text: own.length <= 14 && !stacked ? own.map((one) => one.cells[2]) : undefined, textposition: own.some((one) => one.low !== undefined) ? "outside" : "auto", textangle: 0, insidetextanchor: "end", cliponaxis: false,
  };
}

/**
 * Where the bars of a series stand: those that are there of a category share its place.
 * @param {Bars} bars
 * @param {Item[]} own
 */
function besideOthers({ data, names, stacked, across }, own) {
  if (stacked) return {};
  const room = 1 - (across ? 0.18 : gapOf(names));
  const places = own.map((one) => {
    const series = inOrder(data.filter(({ x }) => x === one.x), (each) => each.series);
    const width = room / series.length;
    return { width, offset: series.indexOf(one.series) * width - room / 2 };
  });
  return { width: places.map(({ width }) => width), offset: places.map(({ offset }) => offset) };
}

/**
 * The share of a category's place that stays free.
 * @param {string[]} names
 */
function gapOf(names) {
  return Math.max(0.18, 1 - names.length / 7);
}

/**
 * The column of the categories where that gives the bars their colours.
 * @param {PlotMark} mark
 */
function categoryHue({ spec }) {
  return spec.mark === "stack" ? undefined : ["phase", "role"].find((one) => listOf(spec.x).includes(one));
}

/**
 * What bars are filled with: a phase or a role has its colour where it is the category, too.
 * @param {PlotMark} mark
 * @param {Item[]} own
 * @param {string | null} series null: there is nothing to be told apart from
 */
function barMarker(mark, own, series) {
  const { theme } = mark.card;
  const named = categoryHue(mark);
  if (named) return { color: own.map((one) => styleBy([named], one.x, theme).colour), line: { width: 0 } };
  if (series === null) return { color: hue("kind_1", theme), line: { width: 0 } };
  return { ...mark.filling(series), line: { width: 0 } };
}
