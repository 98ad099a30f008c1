// The axes of a chart of lines: where they are marked, how that is spelled, and from where to where they go.

import { clockText } from "./ranges.js";
import { MOST_TICKS } from "./scales.js";
import { spell } from "./words.js";

/** @import uPlot from "uplot" */
/** @import { LineMark } from "./line_mark.js" */
/** @import { Look } from "./theme.js" */

const BINARY_STEPS = Array.from({ length: 60 }, (_, power) => 2 ** power);

/**
 * @param {LineMark} mark
 * @param {Look} look
 * @param {boolean} horizontal
 * @returns {uPlot.Axis}
 */
export function axisOf(mark, look, horizontal) {
  const font = "11px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
  /** @type {uPlot.Axis} */
  const common = { stroke: look.quiet, font, grid: { stroke: look.grid, width: 1, show: !horizontal }, ticks: { show: false } };
  if (horizontal) {
    /** @type {(plot: uPlot, splits: number[]) => string[]} */
    const values = (_, splits) => splits.map((value) => xText(mark, value, splits));
    const incrs = mark.kind === "step" ? [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 1e5, 1e6] : [
      0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 18000, 36000, 86400];
    return { ...common, values, incrs, size: 30, space: Math.max(62, Math.ceil(mark.pixels() / MOST_TICKS)), gap: 6 };
  }
  const incrs = mark.spec.unit === "bytes" ? { incrs: BINARY_STEPS } : {};
  /** @type {(plot: uPlot, splits: number[]) => string[]} */
  const values = (_, splits) => splits.map((value) => spell(value, mark.spec.unit));
  return { ...common, ...incrs, values, size: (plot, texts) => widthOf(plot, texts), space: mark.height() < 160 ? 22 : 34, gap: 6 };
}

/**
 * @param {LineMark} mark
 * @param {number} value
 * @param {number[]} splits
 */
function xText(mark, value, splits) {
  if (mark.kind === "time") return clockText(value, splits.length > 1 ? splits[1] - splits[0] : 1);
  return Number.isInteger(value) ? String(value) : "";
}

/**
 * @param {uPlot} plot
 * @param {string[] | null} texts
 */
function widthOf(plot, texts) {
  if (!texts) return 48;
  plot.ctx.save();
  plot.ctx.font = "11px system-ui, sans-serif";
  const widest = Math.max(...texts.map((text) => plot.ctx.measureText(text || "").width));
  plot.ctx.restore();
  return Math.max(40, Math.ceil(widest / 8) * 8 + 16);
}

/**
 * @param {LineMark} mark
 * @param {number | null} low
 * @param {number | null} high
 * @returns {[low: number, high: number]}
 */
export function shownValues(mark, low, high) {
  const range = valuesOf(mark, low, high);
  if (mark.cut === null || low === null) return range;
  return [Math.max(Math.min(range[0], low) > 0 && !mark.spec.zero ? low - 0.06 * (mark.cut - low) : 0, 0), mark.cut];
}

/**
 * @param {LineMark} mark
 * @param {number | null} low
 * @param {number | null} high
 * @returns {[low: number, high: number]}
 */
function valuesOf(mark, low, high) {
  if (low === null || high === null || !Number.isFinite(low) || !Number.isFinite(high)) return [0, 1];
  if (mark.spec.unit === "bytes" || mark.spec.zero) return [0, (high || 1) * 1.08];
  const margin = (high - low || Math.abs(high) || 1) * 0.08;
  const floor = low >= 0 && low - margin < 0 ? 0 : low - margin;
  return [floor, high + margin];
}
