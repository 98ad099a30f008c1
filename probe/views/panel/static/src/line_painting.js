// What a chart of lines paints around its lines: the chosen step, steps that aren't complete, what the scale cuts.

import { PARTIAL } from "./theme.js";
import { spell } from "./words.js";

/** @import uPlot from "uplot" */
/** @import { LineMark } from "./line_mark.js" */
/** @import { Look } from "./theme.js" */

/**
 * The step of the scrubber: a band in time, a line over steps.
 * @param {LineMark} mark
 * @param {uPlot} plot
 * @param {Look} look
 */
export function paintBand(mark, plot, look) {
  const { step } = mark.store.ui;
  if (step === null) return;
  const [begin, end] = mark.kind === "time" ? mark.store.clock.span(step) : [step, step];
  if (Number.isNaN(begin)) return;
  const [left, right] = [plot.valToPos(begin, "x", true), plot.valToPos(end, "x", true)];
  const width = Math.max(right - left, 3 * devicePixelRatio);
  plot.ctx.save();
  plot.ctx.beginPath();
  plot.ctx.rect(plot.bbox.left, plot.bbox.top, plot.bbox.width, plot.bbox.height);
  plot.ctx.clip();
  plot.ctx.fillStyle = look.band;
  plot.ctx.fillRect((left + right - width) / 2, plot.bbox.top, width, plot.bbox.height);
  plot.ctx.restore();
}

/**
 * Steps that aren't complete are lighter: some ranks have yet to end them.
 * @param {LineMark} mark
 * @param {uPlot} plot
 * @param {Look} look
 */
export function lighten(mark, plot, look) {
  const at = mark.kind === "step" ? mark.frame.xs.findIndex((x) => mark.store.isPartial(x)) : -1;
  if (at < 0) return;
  const { left, top, width, height } = plot.bbox;
  const before = at ? plot.valToPos(mark.frame.xs[at - 1], "x", true) + 4 * devicePixelRatio : left;
  const from = Math.max(before, left);
  if (from >= left + width) return;
  plot.ctx.save();
  plot.ctx.globalAlpha = 1 - PARTIAL;
  plot.ctx.fillStyle = look.back;
  plot.ctx.fillRect(from, top, left + width - from, height);
  plot.ctx.restore();
}

/**
 * What the scale cuts has a mark at its end; the largest of it is said.
 * @param {LineMark} mark
 * @param {uPlot} plot
 * @param {Look} look
 */
export function sayCut(mark, plot, look) {
  const { cut, frame } = mark;
  if (cut === null) return;
  const ratio = devicePixelRatio;
  let [most, place] = [cut, NaN];
  plot.ctx.save();
  plot.ctx.fillStyle = look.ink;
  frame.xs.forEach((x, at) => {
    const value = Math.max(...frame.series.map((one) => (one.high ?? one.values)[at]).filter((one) => !Number.isNaN(one)));
    if (!(value > cut)) return;
    const left = plot.valToPos(x, "x", true);
    plot.ctx.fill(new Path2D(`M${left - 4 * ratio},${plot.bbox.top + 7 * ratio} l${8 * ratio},0 l${-4 * ratio},${-6 * ratio} Z`));
    if (value > most) [most, place] = [value, x];
  });
  const left = plot.valToPos(place, "x", true);
  const right = left > plot.bbox.left + 0.7 * plot.bbox.width;
  plot.ctx.font = `${11 * ratio}px system-ui, sans-serif`;
  plot.ctx.textAlign = right ? "right" : "left";
  plot.ctx.textBaseline = "top";
  plot.ctx.fillText(`${spell(most, mark.spec.unit)}: step ${place}`, left + (right ? -7 : 7) * ratio, plot.bbox.top + ratio);
  plot.ctx.restore();
}
