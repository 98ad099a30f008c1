// Values by category and series: for bars, stacks over a category, and heat maps.

import { reduced } from "./cells.js";
import { WORD_COLUMNS } from "./columns.js";
import { Grouped } from "./grouped.js";
import { groupLabel, listOf } from "./matching.js";

/** Values by category and series: for bars, stacks over a category, and heat maps. */
export class Categories {
  static kind = "categories";

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

  /** [{series, x (text), at (number or NaN), value, row}], of one step or of all (null). */
  data(step) {
    const made = [];
    for (const [key, cell] of this.over.collect(step)) {
      const value = reduced(cell, this.over.how);
      if (Number.isNaN(value)) continue;
      const { y, values } = this.over.meta.get(key);
      const xs = values.slice(this.groups.length);
      const x = groupLabel(this.store, this.spec, this.over.table, this.x, xs);
      const number = this.x.length === 1 && !WORD_COLUMNS.has(this.x[0]) ? xs[0] : NaN;
      made.push({ series: this.over.label(key, this.groups), group: values[0], y, x, at: number, value, row: cell.row });
    }
    return made;
  }
}
