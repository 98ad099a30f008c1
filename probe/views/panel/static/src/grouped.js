// Rows of a table summed by step and group. Sums are kept by step and only steps with new rows are summed again, so
// an update costs the same at any length of history.

import { TOLERANT, add, merge, newCell } from "./cells.js";
import { groupLabel, listOf, matcher } from "./matching.js";

/** Rows of a table summed by step and group. */
export class Grouped {
  static kind = "grouped";

  constructor(store, spec, groups = listOf(spec.by)) {
    this.store = store;
    this.spec = spec;
    this.table = store.table(spec.table);
    this.groups = groups;
    this.each = listOf(spec.each);
    this.y = listOf(spec.y);
    this.how = spec.reduce || "max";
    this.ys = this.how === "ratio" ? [[this.y[0], this.y[1]]] : this.y.length ? this.y.map((one) => [one, null]) : [[null, null]];
    this.match = matcher(store, this.table, spec);
    this.cells = new Map();
    this.meta = new Map(); //  key → {y, values}
    this.cursor = null;
    this.generation = null;
  }

  /** Sum again what has new rows. Returns the steps that changed; null: all. */
  pull() {
    if (this.generation !== this.table.generation) return this._rebuild();
    const { steps, cursor } = this.table.touched(this.cursor);
    if (steps === null) return this._rebuild();
    this.cursor = cursor;
    for (const step of steps) this._sum(step);
    return steps;
  }

  _rebuild() {
    const old = this.epoch === this.table.epoch ? this.cells : new Map();
    this.epoch = this.table.epoch;
    this.generation = this.table.generation;
    this.cursor = this.table.touched(null).cursor;
    this.cells = new Map();
    const held = old.size > 4 * this.table.limit ? new Map() : old;
    // A step summed when it was whole keeps its sums when its rows are thinned.
    for (const [step, cells] of held) if (!this.table.byStep.has(step) || this.table.partial.has(step)) this.cells.set(step, withoutRows(cells));
    for (const step of this.table.byStep.keys()) if (!this.cells.has(step)) this._sum(step);
    return null;
  }

  _sum(step) {
    const cells = new Map();
    for (const row of this.table.byStep.get(step) || []) if (this.match(row)) this._add(cells, row);
    if (this.table.partial.has(step) && !TOLERANT.has(this.how)) for (const cell of cells.values()) cell.count = 0;
    this.cells.set(step, cells);
  }

  _add(cells, row) {
    const values = this.groups.map((name) => this.table.columns.get(name)?.[row] ?? -1);
    const each = this.each.length ? this.each.map((name) => this.table.columns.get(name)?.[row]).join("|") : null;
    this.ys.forEach(([first, second], at) => {
      const key = `${at}|${values.join("|")}`;
      let cell = cells.get(key);
      if (!cell) {
        cells.set(key, (cell = newCell()));
        if (!this.meta.has(key)) this.meta.set(key, { y: at, values });
      }
      add(cell, first === null ? 1 : this.table.get(first, row), second ? this.table.get(second, row) : NaN, each, row);
    });
  }

  /** The cells of one step, or of all steps put together. */
  collect(step) {
    if (step !== null) return this.cells.get(step) || new Map();
    const all = new Map();
    for (const cells of this.cells.values()) {
      for (const [key, cell] of cells) {
        if (!all.has(key)) all.set(key, newCell());
        merge(all.get(key), cell);
      }
    }
    return all;
  }

  /** What a series is called. */
  label(key, names = this.groups) {
    const { y, values } = this.meta.get(key);
    const column = this.ys[y][0];
    const shown = this.spec.names?.[column] ?? String(column ?? "rows").replaceAll("_", " ");
    if (!names.length) return shown;
    const group = groupLabel(this.store, this.spec, this.table, names, values.slice(0, names.length));
    return this.ys.length > 1 ? `${group} · ${shown}` : group;
  }
}

function withoutRows(cells) {
  for (const cell of cells.values()) cell.row = -1;
  return cells;
}
