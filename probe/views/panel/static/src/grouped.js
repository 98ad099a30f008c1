// Rows of a table summed by step and group. Sums are kept by step and only steps with new rows are summed again, so
// an update costs the same at any length of history.

import { Cell, TOLERANT } from "./cells.js";
import { groupLabel, listOf, matcher } from "./matching.js";

/** @import { Names, Spec } from "./definition_types.js" */
/** @import { Store } from "./store.js" */

/** Rows of a table summed by step and group. */
export class Grouped {
  static kind = "grouped";

  /**
   * @param {Store} store
   * @param {Spec} spec
   * @param {string[]} groups columns; each of their values is summed by itself
   */
  constructor(store, spec, groups = listOf(spec.by)) {
    this.store = store;
    this.spec = spec;
    this.table = store.table(spec.table);
    this.groups = groups;
    this.each = listOf(spec.each);
    this.least = this.each.includes("rank") ? 2 : 1; //  a lone rank is compared with nobody
    this.slots = listOf(spec.slots);
    this.per = listOf(spec.per ?? spec.least);
    this.which = spec.least ? "smallest" : "largest";
    this.how = spec.reduce || "max";
    this.scale = spec.scale ?? 1;
    /** Of its texts under `where` the first that a group has is what counts there. @type {string[]} */
    this.preferred = spec.first ? listOf(/** @type {Names} */ (spec.where?.[spec.first])) : [];
    this.ys = pairsOf(listOf(spec.y), this.how);
    this.match = matcher(store, this.table, spec);
    /** By step and key. @type {Map<number, Map<string, Cell>>} */
    this.cells = new Map();
    /** Of each key which of the `ys` it is of, and the values of `groups`. @type {Map<string, {y: number, values: number[]}>} */
    this.meta = new Map();
    /** @type {number | null} */
    this.cursor = null;
    /** @type {number | null} */
    this.generation = null;
    /** @type {number | null} */
    this.epoch = null;
  }

  /**
   * Sum again what has new rows.
   * @returns {Set<number> | null} the steps that changed; null: all
   */
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
    this.match = matcher(this.store, this.table, this.spec);
    const held = old.size > 4 * this.table.limit ? new Map() : old;
    for (const [step, cells] of held) {
      // A step summed when it was whole keeps its sums when its rows are thinned.
      if (this.table.byStep.has(step) && !this.table.partial.has(step)) continue;
      for (const cell of cells.values()) cell.forgetRows();
      this.cells.set(step, cells);
    }
    for (const step of this.table.byStep.keys()) if (!this.cells.has(step)) this._sum(step);
    return null;
  }

  /** @param {number} step */
  _sum(step) {
    /** @type {Map<string, Cell>} */
    const cells = new Map();
    for (const row of this.table.byStep.get(step) || []) if (this.match(row)) this._add(cells, row);
    if (this.table.partial.has(step) && !TOLERANT.has(this.how)) for (const cell of cells.values()) cell.forgetAll();
    this.cells.set(step, cells);
  }

  /**
   * @param {Map<string, Cell>} cells
   * @param {number} row
   */
  _add(cells, row) {
    const values = this.groups.map((name) => this._code(name, row));
    this.ys.forEach(([first, second], at) => {
      const value = first === null ? 1 : this.table.get(first, row);
      const key = `${at}|${values.join("|")}`;
      let cell = cells.get(key);
      if (!cell) {
        cells.set(key, (cell = new Cell(this.least)));
        if (!this.meta.has(key)) this.meta.set(key, { y: at, values });
      }
      if (Number.isNaN(value)) return;
      if (this.preferred.length) {
        const place = this.preferred.indexOf(this.store.words.text(this.table.code(this.spec.first ?? "", row)));
        if (place > cell.place) return;
        if (place < cell.place) cells.set(key, (cell = new Cell(this.least)));
        cell.place = place;
      }
      const own = this.per.length ? cell.within(this._keyOf(this.per, row)) : cell;
      own.add(value, second === null ? NaN : this.table.get(second, row), row);
      if (this.each.length) own.addPart(this._keyOf(this.slots, row), this._keyOf(this.each, row), value);
    });
  }

  /**
   * A column's value as it is held; of a derived column its number.
   * @param {string} name
   * @param {number} row
   */
  _code(name, row) {
    return this.table.columns.has(name) ? this.table.code(name, row) : this.table.schema.derived.has(name) ? this.table.get(name, row) : -1;
  }

  /**
   * @param {string[]} names
   * @param {number} row
   */
  _keyOf(names, row) {
    return names.map((name) => this._code(name, row)).join("|");
  }

  /**
   * The number of a cell.
   * @param {Cell} cell
   */
  value(cell) {
    return this.unscaled(cell) * this.scale;
  }

  /** @param {Cell} cell */
  unscaled(cell) {
    return cell.value(this.how, this.which);
  }

  /**
   * The row that the number of a cell is owed to, −1 where it is gone.
   * @param {Cell} cell
   */
  maker(cell) {
    return cell.maker(this.how, this.which);
  }

  /**
   * The cells of one step, or of all steps put together.
   * @param {number | null} step
   * @returns {Map<string, Cell>}
   */
  collect(step) {
    if (step !== null) return this.cells.get(step) || new Map();
    /** @type {Map<string, Cell>} */
    const all = new Map();
    for (const cells of this.cells.values()) {
      for (const [key, cell] of cells) {
        let into = all.get(key);
        if (!into) all.set(key, (into = new Cell(this.least)));
        into.merge(cell);
      }
    }
    return all;
  }

  /**
   * What a series is called.
   * @param {string} key
   */
  label(key, names = this.groups) {
    const { y, values } = this.meta.get(key) ?? { y: 0, values: [] };
    const column = this.ys[y][0];
    const shown = this.spec.names?.[column ?? ""] ?? (column ?? "rows").replaceAll("_", " ");
    if (!names.length) return shown;
    const group = groupLabel(this.store, this.spec, this.table, names, values.slice(0, names.length));
    return this.ys.length > 1 ? `${group} · ${shown}` : group;
  }
}

/**
 * Of each series the column that is added up, and the one that it is divided by; null for none, which counts rows.
 * @param {string[]} y
 * @param {string} how
 * @returns {[string | null, string | null][]}
 */
function pairsOf(y, how) {
  if (how === "ratio") return [[y[0] ?? null, y[1] ?? null]];
  return y.length ? y.map((one) => [one, null]) : [[null, null]];
}
