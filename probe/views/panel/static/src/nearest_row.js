// The row behind a point of a chart over time.

/** @import { Line } from "./types.js" */
/** @import { Store } from "./store.js" */
/** @import { TimeLines } from "./time_lines.js" */

/**
 * The row of the step at a time whose value the point shows.
 * @param {TimeLines} lines
 * @param {Store} store
 * @param {number} time
 * @param {number} width
 * @param {Line} series
 * @returns {number | null}
 */
export function nearestRow(lines, store, time, width, series) {
  const rows = lines.table.byStep.get(store.clock.stepAt(time) ?? -1) || [];
  const [at, ...values] = series.key.split("|");
  const column = lines.y[Number(at)];
  /** @type {number | null} */
  let best = null;
  let off = Infinity;
  for (const row of rows) {
    const same = lines.groups.every((name, index) => String(lines.table.code(name, row)) === values[index]);
    if (!same || !lines.match(row)) continue;
    const away = Math.max(Math.abs(lines.table.get(lines.x, row) - time) - width / 2, 0);
    const score = away - 1e-9 * (lines.table.get(column, row) || 0) / (1 + Math.abs(lines.table.get(column, row) || 0));
    if (score < off) [best, off] = [row, score];
  }
  return best;
}
