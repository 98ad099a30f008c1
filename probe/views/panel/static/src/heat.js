// The mark "heat": cells of x × by.

import { Categories } from "./categories.js";
import { listOf } from "./matching.js";
import { categoryTicks, framed, hoverText, inOrder, toldOf } from "./plot_parts.js";
import { MOST_TICKS } from "./scales.js";
import { summed } from "./sums.js";
import { LOOKS } from "./theme.js";
import { spell } from "./words.js";

/** @import { Item, PlotFrame, PlotMark, Trace } from "./types.js" */
/** @import { LiveTable } from "./table.js" */
/** @import { CategoryValue } from "./categories.js" */
/** @typedef {{z: number | null, text: string, at: number, told: string}} HeatCell one cell in plotly's grids */

/** The most rows that are all named. */
const MOST_ROWS = 24;

/**
 * Cells of x × by.
 * @param {PlotMark} mark
 * @returns {PlotFrame | null}
 */
export function heatOf(mark) {
  const { spec, store } = mark;
  const data = summed(store, Categories, spec).data(mark.step);
  if (!data.length) return null;
  const table = store.table(spec.table);
  const rows = inOrder(data, (one) => one.series);
  const columns = columnsOf(data);
  /** @type {Item[]} */
  const items = [];
  /** @type {Record<keyof HeatCell, unknown[][]>} */
  const grids = { z: [], text: [], at: [], told: [] };
  const cellOf = new Map(data.map((one) => [`${one.series}|${one.x}`, one]));
  for (const row of rows) {
    const line = columns.map((column) => heatCell(mark, table, items, cellOf.get(`${row}|${column}`)));
    for (const name of /** @type {(keyof HeatCell)[]} */ (Object.keys(grids))) grids[name].push(line.map((cell) => cell[name]));
  }
  const { traces, cap } = heatTraces(mark, { items, grids, rows, columns });
  const layout = {
    height: Math.min(Math.max(120 + 32 * rows.length, 180), 560), showlegend: false,
    axes: {
      x: { type: "category", title: { text: spec.x_title || mark.title(listOf(spec.x)[0]) }, showline: false, ...heatTicks(mark, columns) },
      y: { type: "category", autorange: "reversed", showgrid: false, ...categoryTicks(mark, rows, MOST_ROWS) },
    },
  };
  const over = items.filter((one) => one.over).length;
  const most = items.reduce((a, b) => (b.value > a.value ? b : a));
  const summary = `${rows.length} × ${columns.length} cells; the fullest is ${most.label} with ${mark.spell(most.value)}` +
    `${cap ? `, cap ${mark.spell(cap)}` : ""}; ${over ? `${over} over the cap` : "none over the cap"}.`;
  return framed(mark, { traces, layout, items, kind: null, head: [mark.title(listOf(spec.by)[0]), mark.title(listOf(spec.x)[0]), mark.title(listOf(spec.y)[0]), "cap"], summary });
}

/**
 * All names of a few columns, some of many.
 * @param {PlotMark} mark
 * @param {string[]} columns
 */
function heatTicks(mark, columns) {
  return categoryTicks(mark, columns, Math.min(Math.max(Math.floor(mark.holder.clientWidth / 40), 3), MOST_TICKS));
}

/**
 * All numbers between the smallest and the largest, so that an empty cell is seen as one; else the names.
 * @param {CategoryValue[]} data
 * @returns {string[]}
 */
function columnsOf(data) {
  const numbers = data.map((one) => one.at);
  if (numbers.some((one) => Number.isNaN(one))) return inOrder(data, (one) => one.x);
  const last = Math.min(Math.max(...numbers), 511);
  return Array.from({ length: last + 1 }, (_, at) => String(at));
}

/**
 * @param {PlotMark} mark
 * @param {LiveTable} table
 * @param {Item[]} items
 * @param {CategoryValue | undefined} one
 * @returns {HeatCell}
 */
function heatCell(mark, table, items, one) {
  if (!one) return { z: null, text: "", at: -1, told: "nothing here" };
  const { spec } = mark;
  const over = Boolean(spec.over && one.row >= 0 && table.get(spec.over, one.row) > 0);
  const cap = spec.cap && one.row >= 0 ? table.get(spec.cap, one.row) : NaN;
  const value = mark.spell(one.value);
  const label = `${one.series}, ${mark.title(listOf(spec.x)[0])} ${one.x}`;
  items.push({ ...one, over, cap, label, cells: [one.series, one.x, value, over ? "over the cap" : ""] });
  const use = cap > 0 ? `${spell(one.value / cap, "percent")} of the cap of ${mark.spell(cap)}${over ? ", over it" : ""}` : "";
  return { z: one.value, text: value, at: items.length - 1, told: hoverText(`${value} ${mark.title(listOf(spec.y)[0])}`, label, use, toldOf(mark, table, one.row)) };
}

/**
 * @param {PlotMark} mark
 * @param {{items: Item[], grids: Record<string, unknown[][]>, rows: string[], columns: string[]}} drawn
 * @returns {{traces: Trace[], cap: number}}
 */
function heatTraces(mark, { items, grids, rows, columns }) {
  const look = LOOKS[mark.card.theme];
  const cap = Math.max(0, ...items.map((one) => one.cap || 0));
  const top = Math.max(cap, ...items.map((one) => one.value), 1e-9);
  const few = rows.length * columns.length <= 160 && columns.length <= Math.max(mark.holder.clientWidth / 44, 4);
  const bar = { thickness: 9, outlinewidth: 0, tickvals: cap ? [0, cap] : [0, top], ticktext: cap ? ["0", `cap ${mark.spell(cap)}`] : ["0", mark.spell(top)], tickfont: { color: look.quiet, size: 11 } };
  /** @type {Trace[]} */
  const traces = [{
    type: "heatmap", z: grids.z, x: columns, y: rows, zmin: 0, zmax: top, xgap: 2, ygap: 2, colorscale: look.scale, customdata: grids.at, hoverongaps: false,
    hoverinfo: "text", hovertext: grids.told, showscale: mark.holder.clientWidth > 420, colorbar: bar, ...(few ? { text: grids.text, texttemplate: "%{text}", textfont: { size: 11 } } : {}),
  }];
  const over = items.filter((one) => one.over);
  if (over.length) {
    traces.push({
      type: "scatter", mode: "markers", x: over.map((one) => one.x), y: over.map((one) => one.series), hoverinfo: "skip",
      marker: { symbol: "triangle-up", size: 10, color: look.alarm, line: { width: 1.5, color: look.back } },
    });
  }
  return { traces, cap };
}
