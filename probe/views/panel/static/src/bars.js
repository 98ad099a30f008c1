// The mark "bars", and stacks over a category.

import { Categories } from "./categories.js";
import { addGuides, barGuides } from "./guides.js";
import { listOf } from "./matching.js";
import { MOST_BARS, axisUnit, categoryTicks, framed, hoverText, inOrder, largestOf } from "./plot_parts.js";
import { summed } from "./sums.js";
import { palette } from "./theme.js";
import { many, plain } from "./words.js";

/** Bars by category, one colour for each `by`; those of a stack lie on each other. */
export function barsOf(mark) {
  const { spec, store } = mark;
  const found = summed(store, Categories, spec).data(mark.step);
  const stacked = spec.mark === "stack";
  const names = categoriesOf(spec, found, stacked);
  const shown = new Set(names);
  const data = found.filter((one) => shown.has(one.x));
  const totals = new Map();
  for (const one of data) totals.set(one.x, (totals.get(one.x) || 0) + one.value);
  const { by, title } = axisUnit(spec.unit, largestOf(stacked ? [...totals.values()] : data.map((one) => one.value)));
  const across = names.some((name) => name.length > 10);
  const items = data.map((one) => ({ ...one, label: `${one.x} ${one.series}`, cells: [one.x, one.series, mark.spell(one.value)] }));
  const traces = seriesOf(data, stacked).map((series) => barTrace(mark, items, { series, across, by, totals: stacked ? totals : null }));
  if (stacked) traces.push(totalTrace(mark, names, totals, { across, by }));
  const guides = (spec.lines || []).flatMap((guide) => barGuides(mark, guide, data, names));
  const side = stacked ? 1 : Math.max(1, ...names.map((name) => data.filter((one) => one.x === name).length)); //  bars beside each other
  const length = across ? Math.min(Math.max(110 + Math.max(30, 19 * Math.min(side, 4)) * names.length, 180), 720) : 280;
  const order = across ? [...names].reverse() : names;
  const category = { type: "category", categoryorder: "array", categoryarray: order, ...categoryTicks(mark, order) };
  const value = { title: { text: spec.y_title || title }, rangemode: "tozero", ...roomFor(mark, stacked ? [...totals.values()] : data.map((one) => one.value), guides, { by, across }) };
  const place = { title: { text: across ? "" : spec.x_title || mark.title(listOf(spec.x).join(" · ")) }, ...category, ...(across ? { showgrid: false } : {}) };
  const layout = {
    barmode: stacked ? "stack" : "group", showlegend: traces.length > 1 || guides.length > 0, height: length,
    bargap: across ? 0.18 : Math.max(0.18, 1 - names.length / 7),
    axes: across ? { x: value, y: place } : { x: place, y: value },
  };
  addGuides(mark, traces, layout, guides, { by, across, names });
  const largest = stacked ? [...totals] : items.map((one) => [one.x, one.value]);
  const told = largest.sort(([, a], [, b]) => b - a).slice(0, 5).map(([name, value]) => `${name} ${mark.spell(value)}`);
  const left = new Set(found.map((one) => one.x)).size - names.length;
  const rest = left > 0 ? ` ${many(left, "more is", "more are")} not shown.` : "";
  return framed(mark, { traces, layout, items, kind: null, head: ["what", "series", "value"], summary: `Largest: ${told.join(", ")}.${rest}` });
}

/** Series of bars by name; of a stack the largest first, as in the report. */
function seriesOf(data, stacked) {
  const names = inOrder(data, (one) => one.series);
  if (!stacked) return names;
  const sums = new Map();
  for (const one of data) sums.set(one.series, (sums.get(one.series) || 0) + one.value);
  return names.sort((a, b) => sums.get(b) - sums.get(a));
}

function categoriesOf(spec, data, stacked) {
  const sums = new Map();
  for (const one of data) sums.set(one.x, stacked ? (sums.get(one.x) || 0) + one.value : Math.max(sums.get(one.x) ?? -Infinity, one.value));
  const byValue = [...sums.keys()].sort((a, b) => sums.get(b) - sums.get(a)).slice(0, MOST_BARS);
  return spec.sort === "value" ? byValue : inOrder(byValue, (one) => one);
}

/** Room for the number behind the longest bar, also where the chart is narrow. */
function roomFor(mark, values, guides, { by, across }) {
  if (!across) return {};
  const wide = Math.max(mark.holder.clientWidth - 170, 120); //  what labels and margins leave of it
  return { range: [0, (Math.max(1.14, 1 + 62 / wide) * largestOf([...values, ...guides.map((one) => one.value)])) / by] };
}

/** What a stack comes to, behind its end. */
function totalTrace(mark, names, totals, { across, by }) {
  const ends = names.map((name) => totals.get(name) / by);
  const few = names.length <= 24;
  return {
    type: "scatter", mode: "text", showlegend: false, hoverinfo: "skip", cliponaxis: false, x: across ? ends : names, y: across ? names : ends,
    text: few ? names.map((name) => ` ${mark.spell(totals.get(name))}`) : [], textposition: across ? "middle right" : "top center", textfont: { size: 11 },
  };
}

function barTrace(mark, items, { series, across, by, totals }) {
  const own = items.map((one, at) => [one, at]).filter(([one]) => one.series === series);
  const ends = own.map(([one]) => one.value / by);
  const places = own.map(([one]) => one.x);
  const alone = items.every((one) => one.series === series); //  nothing to be told apart from
  const colour = alone ? palette(mark.store, mark.card.theme)[0] : mark.colour(series, series);
  return {
    type: "bar", name: plain(series, 32), orientation: across ? "h" : "v", x: across ? ends : places, y: across ? places : ends,
    marker: { color: colour, pattern: mark.pattern(series), line: { width: 0 } }, customdata: own.map(([, at]) => at), hoverinfo: "text",
    hovertext: own.map(([one]) => hoverText(`${one.x}: ${one.cells[2]}`, one.series, totals ? `of ${mark.spell(totals.get(one.x))} in all` : "")),
    text: own.length <= 14 && !totals ? own.map(([one]) => one.cells[2]) : undefined, textposition: "auto", textangle: 0, insidetextanchor: "end", cliponaxis: false,
  };
}
