// The mark "timeline": boxes from begin to end, as high as y, or in lanes.

import { addGuides, guideLines } from "./guides.js";
import { listOf } from "./matching.js";
import { axisUnit, categoryTicks, framed, hoverText, inOrder, largestOf } from "./plot_parts.js";
import { clockText, shownRange } from "./ranges.js";
import { foremost, rowsOf } from "./sums.js";
import { LOOKS } from "./theme.js";
import { bytes, many, plain, seconds } from "./words.js";

/** @import { Item, PlotFrame, PlotMark, Row } from "./types.js" */
/** @import { LiveTable } from "./table.js" */

const MOST_BOXES = 500;

/**
 * Boxes from begin to end: as high as y, or in lanes.
 * @param {PlotMark} mark
 * @returns {PlotFrame | null}
 */
export function timelineOf(mark) {
  const { spec, store } = mark;
  const table = store.table(spec.table);
  const score = listOf(spec.y)[0] || "duration";
  const [from, to] = mark.step === null ? shownRange(store, "time") : store.clock.span(mark.step);
  /** @param {number} row */
  const inside = (row) => table.get("end", row) >= from && table.get("begin", row) <= to && (!spec.y || table.get(score, row) > 0);
  const found = rowsOf(store, spec, mark.step).filter(inside);
  const rows = foremost(table, spec.y ? ofHighest(mark, table, found, score) : found, score, MOST_BOXES);
  if (!rows.length) return null;
  return spec.y ? highBoxes(mark, table, rows, [from, to]) : laneBoxes(mark, table, rows, [from, to]);
}

/**
 * Boxes of several ranks or processes would hide each other: without a chosen one that with the highest is shown.
 * @param {PlotMark} mark
 * @param {LiveTable} table
 * @param {number[]} rows
 * @param {string} score
 */
function ofHighest(mark, table, rows, score) {
  let best = null;
  for (const row of rows) if (best === null || table.get(score, row) > table.get(score, best)) best = row;
  const who = best === null ? -1 : table.code("who", best);
  if (who < 0) return rows;
  const name = mark.store.words.text(who);
  mark.remark = mark.store.ui.rank === "" && mark.store.ranks.size > 1 ? `${name}, the highest` : name;
  return rows.filter((row) => table.code("who", row) === who);
}

/**
 * @param {PlotMark} mark
 * @param {LiveTable} table
 * @param {number} row
 * @returns {Item}
 */
function boxItem(mark, table, row) {
  const { spec, store } = mark;
  const told = table.row(row, store.words);
  const label = [...new Set([told.role, told.phase || told.name, told.micro_batch >= 0 ? `micro-batch ${told.micro_batch}` : ""])].filter(Boolean).join(" · ") || told.kind;
  const cells = [String(told.step), String(told.who), label, seconds(told.duration), bytes(told.peak)];
  const peak = told.peak > 0 ? `peak ${bytes(told.peak)}` : "";
  return { row, told, label, cells, value: spec.y ? table.get(listOf(spec.y)[0], row) : told.duration, hover: hoverText(label, `${told.who}, step ${told.step}`, `${seconds(told.duration)} from ${clockText(told.begin, 0.01)}`, peak) };
}

/**
 * Places in `items` by series.
 * @param {Item[]} items
 * @param {string[]} names
 * @returns {[name: string, places: number[]][]}
 */
function bySeries(items, names) {
  /** @type {Map<string, number[]>} */
  const made = new Map();
  items.forEach((item, at) => {
    const text = names.map((name) => String(item.told[name] || `no ${name}`)).join(" · ");
    const places = made.get(text);
    if (places) places.push(at);
    else made.set(text, [at]);
  });
  return [...made].sort(([a], [b]) => a.localeCompare(b));
}

const BOX_HEAD = ["step", "process", "scope", "time", "peak"];

/**
 * @param {PlotMark} mark
 * @param {LiveTable} table
 * @param {number[]} rows
 * @param {[from: number, to: number]} range
 * @returns {PlotFrame}
 */
function highBoxes(mark, table, rows, range) {
  // Large boxes first: what lies inside a scope is drawn over it.
  const items = rows.map((row) => boxItem(mark, table, row)).sort((a, b) => b.told.duration - a.told.duration);
  const { by, title } = axisUnit(mark.spec.unit, largestOf(items.map((one) => one.value)));
  const least = (range[1] - range[0]) / 600;
  // Roles with the longest scopes first, for the same reason; `own` holds places in `items`, longest first.
  const roles = bySeries(items, listOf(mark.spec.by).slice(0, 1)).sort(([, a], [, b]) => a[0] - b[0]);
  const traces = roles.map(([name, own]) => ({
    type: "bar", name: plain(name, 32), x: own.map((at) => items[at].told.begin + Math.max(items[at].told.duration, least) / 2), y: own.map((at) => items[at].value / by),
    width: own.map((at) => Math.max(items[at].told.duration, least)), customdata: own, hoverinfo: "text", hovertext: own.map((at) => items[at].hover), opacity: 0.85,
    marker: { color: mark.style(name).colour, line: { width: 0.5, color: LOOKS[mark.card.theme].back } },
  }));
  const guides = (mark.spec.lines || []).flatMap((guide) => guideLines(mark.store, mark.spec, guide)).filter((guide) => guide.value > 0);
  const layout = { barmode: "overlay", showlegend: true, height: 280, axes: { x: timeAxis(range), y: { title: { text: title }, rangemode: "tozero" } } };
  addGuides(mark, traces, layout, guides, { by, across: false, names: [range[0]] });
  const most = items.reduce((a, b) => (b.value > a.value ? b : a));
  const summary = `${items.length} scopes; the highest is ${most.label}, ${most.told.who}, step ${most.told.step}, with ${mark.spell(most.value)}.`;
  return framed(mark, { traces, layout, items, kind: "time", range, head: BOX_HEAD, summary });
}

/**
 * Ticks of time where the range is one that plotly would write as bare seconds.
 * @param {[from: number, to: number]} range
 */
function timeAxis(range) {
  const span = Math.max(range[1] - range[0], 1e-6);
  const step = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400].find((one) => span / one <= 7) || span / 6;
  const ticks = [];
  for (let at = Math.ceil(range[0] / step); at * step <= range[1]; at += 1) ticks.push(at * step);
  return { tickvals: ticks, ticktext: ticks.map((at) => clockText(at, step)) };
}

/**
 * @param {PlotMark} mark
 * @param {LiveTable} table
 * @param {number[]} rows
 * @param {[from: number, to: number]} range
 * @returns {PlotFrame}
 */
function laneBoxes(mark, table, rows, range) {
  const { spec } = mark;
  const items = rows.map((row) => boxItem(mark, table, row)).sort((a, b) => b.told.duration - a.told.duration);
  const names = listOf(spec.by);
  /** @param {Row} told */
  const lane = (told) => names.map((name) => told[name] || `no ${name}`).join(" · ");
  const lanes = inOrder(items, (one) => lane(one.told));
  const traces = bySeries(items, listOf(spec.colour || names)).flatMap(([name, own]) => {
    const thin = own.filter((at) => items[at].told.kind === "micro_batch");
    const wide = own.filter((at) => items[at].told.kind !== "micro_batch");
    return [{ some: wide, width: 0.74, opacity: 0.55 }, { some: thin, width: 0.4, opacity: 1 }].filter(({ some }) => some.length).map(({ some, width, opacity }, part) => ({
      type: "bar", orientation: "h", name: plain(name, 32), legendgroup: plain(name, 120), showlegend: part === 0, customdata: some, width, opacity,
      base: some.map((at) => items[at].told.begin), x: some.map((at) => items[at].told.duration || 0), y: some.map((at) => lane(items[at].told)),
      hoverinfo: "text", hovertext: some.map((at) => items[at].hover), marker: { color: mark.style(name).colour, line: { width: 0.5, color: LOOKS[mark.card.theme].back } },
    }));
  });
  traces.sort((a, b) => b.width - a.width);
  const layout = {
    barmode: "overlay", showlegend: true, height: Math.min(Math.max(120 + 34 * lanes.length, 190), 560),
    axes: { x: timeAxis(range), y: { type: "category", categoryorder: "array", categoryarray: [...lanes].reverse(), showgrid: false, ...categoryTicks(mark, lanes, 24) } },
  };
  const most = items[0];
  const summary = `${items.length} scopes in ${many(lanes.length, "lane")}; the longest is ${most.label}, ${most.told.who}, with ${seconds(most.told.duration)}.`;
  return framed(mark, { traces, layout, items, kind: "time", range, head: BOX_HEAD, summary });
}
