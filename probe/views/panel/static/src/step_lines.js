// One value of each series at each step.

import { reduced } from "./cells.js";
import { thinned } from "./extremes.js";
import { Grouped } from "./grouped.js";
import { listOf } from "./matching.js";

export const MOST_SERIES = 24;

/** One value of each series at each step, kept in arrays that only grow at their end. */
export class StepLines {
  static kind = "steps";

  constructor(store, spec) {
    this.groups = listOf(spec.by);
    this.over = new Grouped(store, spec, this.groups);
    this.under = spec.divide ? new StepLines(store, { ...spec.divide, x: "step" }) : null;
    this.reset();
  }

  reset() {
    this.steps = [];
    this.at = new Map();
    this.series = new Map();
    this.version = (this.version || 0) + 1;
    this.more = new Set(); //  series beyond what a chart can show
  }

  pull() {
    const changed = this.over.pull();
    const below = this.under ? this.under.pull() : new Set();
    const all = changed === null || below === null;
    if (all) this._all();
    else for (const step of new Set([...changed, ...below])) this._step(step);
    const moved = all || changed.size > 0 || below.size > 0;
    if (moved) this.version += 1;
    return all ? null : new Set([...changed, ...below]);
  }

  _all() {
    this.reset();
    for (const step of [...this.over.cells.keys()].sort((a, b) => a - b)) this._step(step);
  }

  _step(step) {
    if (step < 0) return;
    const cells = this.over.cells.get(step);
    if (!cells) return;
    if (!cells.size && !this.at.has(step)) return;
    const at = this._place(step);
    for (const one of this.series.values()) one.values[at] = NaN; //  a row that was replaced may have moved
    for (const [key, cell] of cells) this._write(key, at, cell, step);
  }

  _place(step) {
    if (this.at.has(step)) return this.at.get(step);
    let at = this.steps.length;
    while (at > 0 && this.steps[at - 1] > step) at -= 1;
    this.steps.splice(at, 0, step);
    for (const one of this.series.values()) one.values.splice(at, 0, NaN);
    if (at === this.steps.length - 1) this.at.set(step, at);
    else this.steps.forEach((one, index) => this.at.set(one, index));
    return at;
  }

  _write(key, at, cell, step) {
    let one = this.series.get(key);
    if (!one) {
      if (this.series.size >= MOST_SERIES) {
        this.more.add(key);
        return;
      }
      one = { key, label: this.over.label(key), values: new Array(this.steps.length).fill(NaN) };
      this.series.set(key, one);
    }
    const value = reduced(cell, this.over.how);
    one.values[at] = this.under ? value / this.under.only(step, one.label) : value;
  }

  /** The value at a step of the series with this label, or of the only one there is. */
  only(step, name = null) {
    const at = this.at.get(step);
    if (at === undefined) return NaN;
    const all = [...this.series.values()];
    const found = all.find((one) => one.label === name) || all[0];
    return found ? found.values[at] : NaN;
  }

  /** The row that made the largest value of a series at a step, −1 where it is gone. */
  rowOf(key, step) {
    return this.over.cells.get(step)?.get(key)?.row ?? -1;
  }

  /** For a chart: x, and at most `points` steps that keep each series' extremes. */
  data(points) {
    const series = [...this.series.values()].sort((a, b) => (a.label < b.label ? -1 : 1));
    const kept = thinned(this.steps, series.map((one) => one.values), points);
    if (kept === null) return { xs: this.steps, series };
    const pick = (values) => kept.map((index) => values[index]);
    return { xs: pick(this.steps), series: series.map((one) => ({ ...one, values: pick(one.values) })) };
  }
}
