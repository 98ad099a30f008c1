// How a full table forgets. `whole` keeps or drops the rows of a step (of one `group`) together, so that sums over what
// is left stay exact; without it single rows go. Of each bucket those stay that hold an extreme of a score.

/** @import { LiveTable } from "./table.js" */

/**
 * Which rows stay: at least a tenth goes.
 * @param {LiveTable} table
 * @returns {Uint8Array} 1 for each row that stays
 */
export function keptRows(table) {
  const half = table.count >> 1;
  let keep = table.schema.thin.whole ? keepWhole(table, half) : null;
  if (!keep || dropped(table, keep) < table.count / 10) keep = keepRows(table, half);
  if (dropped(table, keep) < table.count / 10) keep.fill(0, 0, table.count >> 2);
  return keep;
}

/**
 * Steps of which rows stay and rows go.
 * @param {LiveTable} table
 * @param {Uint8Array} keep
 */
export function partialSteps(table, keep) {
  const left = new Set();
  /** @type {Map<string, number>} */
  const lost = new Map();
  for (let row = 0; row < table.count; row += 1) {
    const step = table.step(row);
    const cell = table.schema.thin.whole ? `${groupOf(table, row)}|${step}` : String(step);
    if (keep[row]) left.add(cell);
    else lost.set(cell, step);
  }
  return new Set([...lost].filter(([cell]) => left.has(cell)).map(([, step]) => step));
}

/**
 * @param {LiveTable} table
 * @param {Uint8Array} keep
 */
function dropped(table, keep) {
  let count = 0;
  for (let row = 0; row < table.count; row += 1) count += keep[row] ? 0 : 1;
  return count;
}

/**
 * @param {LiveTable} table
 * @param {number} row
 */
function groupOf(table, row) {
  return table.schema.thin.group.map((name) => table.columns.get(name)?.[row]).join(":");
}

/**
 * Whole cells (the rows of one step and group) of the older half: two of each four that follow each other stay.
 * @param {LiveTable} table
 * @param {number} half
 */
function keepWhole(table, half) {
  const keep = new Uint8Array(table.count).fill(1);
  for (const cells of cellsOf(table).values()) {
    const old = [...cells].filter(([step, rows]) => step >= 0 && rows[rows.length - 1] < half).map(([, rows]) => rows);
    for (let at = 0; at + 4 <= old.length; at += 4) dropCells(table, keep, old.slice(at, at + 4));
  }
  return keep;
}

/**
 * Rows by group and step.
 * @param {LiveTable} table
 * @returns {Map<string, Map<number, number[]>>}
 */
function cellsOf(table) {
  const groups = new Map();
  for (let row = 0; row < table.count; row += 1) {
    const group = groupOf(table, row);
    if (!groups.has(group)) groups.set(group, new Map());
    const cells = groups.get(group);
    const step = table.step(row);
    if (!cells.has(step)) cells.set(step, []);
    cells.get(step).push(row);
  }
  return groups;
}

/**
 * @param {LiveTable} table
 * @param {Uint8Array} keep
 * @param {number[][]} cells
 */
function dropCells(table, keep, cells) {
  const tops = cells.map((rows) => topOf(table, rows, table.schema.thin.scores[0]));
  const largest = tops.indexOf(Math.max(...tops));
  let smallest = tops.indexOf(Math.min(...tops));
  if (smallest === largest) smallest = (largest + 1) % cells.length;
  cells.forEach((rows, index) => {
    if (index !== largest && index !== smallest) for (const row of rows) keep[row] = 0;
  });
}

/**
 * @param {LiveTable} table
 * @param {number[]} rows
 * @param {string} score
 */
function topOf(table, rows, score) {
  let top = -Infinity;
  for (const row of rows) {
    const value = table.get(score, row);
    if (value > top) top = value;
  }
  return top;
}

/**
 * Rows of the older half: of each bucket the smallest of the first score and the largest of each stay.
 * @param {LiveTable} table
 * @param {number} half
 */
function keepRows(table, half) {
  const keep = new Uint8Array(table.count).fill(1);
  const size = 2 * (table.schema.thin.scores.length + 1);
  const groups = new Map();
  for (let row = 0; row < half; row += 1) {
    const group = groupOf(table, row);
    const bucket = groups.get(group) || [];
    bucket.push(row);
    groups.set(group, bucket);
    if (bucket.length === size) {
      dropRows(table, keep, bucket);
      groups.set(group, []);
    }
  }
  return keep;
}

/**
 * @param {LiveTable} table
 * @param {Uint8Array} keep
 * @param {number[]} bucket
 */
function dropRows(table, keep, bucket) {
  const stay = new Set([bucket[0]]);
  table.schema.thin.scores.forEach((score, at) => {
    const values = bucket.map((row) => table.get(score, row));
    const known = values.filter((value) => !Number.isNaN(value));
    if (!known.length) return;
    stay.add(bucket[values.indexOf(Math.max(...known))]);
    if (at === 0) stay.add(bucket[values.indexOf(Math.min(...known))]);
  });
  for (const row of bucket) if (!stay.has(row)) keep[row] = 0;
}
