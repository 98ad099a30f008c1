// Values by category and series: for bars, stacks over a category, and heat maps.

import { Grouped } from "./grouped.js";
import { groupLabel, listOf } from "./matching.js";

/** @import { Spec } from "./definition_types.js" */
/** @import { Store } from "./store.js" */

/**
 * @typedef {object} CategoryValue
 * @property {string} series
 * @property {number} group the code of the first of `by`
 * @property {number} y
 * @property {string} x
 * @property {number} at the category as a number, NaN where it is none
 * @property {number} value
 * @property {number} row
 */

/** Values by category and series. */
export class Categories {
  static kind = "categories";

  /**
   * @param {Store} store
   * @param {Spec} spec
   */
  constructor(store, spec) {
    this.store = store;
    this.spec = spec;
    this.x = listOf(spec.x);
    this.groups = listOf(spec.by);
    this.over = new Grouped(store, spec, [...this.groups, ...this.x]);
    this.version = 0;
  }

  pull() {
    const changed = this.over.pull();
    if (changed === null || changed.size) this.version += 1;
  }

  /**
   * Of one step, or of all (null).
   * @param {number | null} step
   * @returns {CategoryValue[]}
   */
  data(step) {
    const made = [];
    for (const [key, cell] of this.over.collect(step)) {
      const value = this.over.value(cell);
      if (Number.isNaN(value)) continue;
      const { y, values } = this.over.meta.get(key) ?? { y: 0, values: [] };
      const xs = values.slice(this.groups.length);
      const x = groupLabel(this.store, this.spec, this.over.table, this.x, xs);
      const number = this.x.length === 1 && !this.over.table.schema.isWord(this.x[0]) ? xs[0] : NaN;
      made.push({ series: this.over.label(key, this.groups), group: values[0], y, x, at: number, value, row: this.over.maker(cell) });
    }
    return made;
  }
}
