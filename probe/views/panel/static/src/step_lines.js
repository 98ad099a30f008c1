// One value of each series at each step.

import { largest } from "./cells.js";
import { extremes } from "./extremes.js";
import { binsOf, medianPlace } from "./scales.js";
import { Grouped } from "./grouped.js";
import { listOf } from "./matching.js";
import { summed } from "./sums.js";

/** @import { Cell } from "./cells.js" */
/** @import { Past } from "./past.js" */
/** @import { Spec } from "./definition_types.js" */
/** @import { Line, LineData } from "./types.js" */
/** @import { Store } from "./store.js" */

/** The most series that a chart shows. */
export const MOST_SERIES = 24;

/** One value of each series at each step, kept in arrays that only grow at their end. */
export class StepLines {
  static kind = "steps";

  /**
   * @param {Store} store
   * @param {Spec} spec
   * @param {boolean} [whole] whether it asks for steps whose rows are gone
   */
  constructor(store, spec, whole = true) {
    this.store = store;
    this.spec = spec;
    this.whole = whole;
    /** Steps whose rows may be gone. @type {Past | null} */
    this.past = null;
    this.over = new Grouped(store, spec);
    /** @type {StepLines | null} */
    this.under = spec.divide ? new StepLines(store, { ...spec.divide, x: "step" }, false) : null;
    /** Whether each series is divided by its own, as `pairs` in probe/dashboards/spec.py; else all by one. */
    this.paired = spec.divide !== undefined && !spec.divide.divide && String(listOf(spec.by)) === String(listOf(spec.divide.by));
    this.version = 0;
    /** @type {number[]} */
    this.steps = [];
    /** Index of each step. @type {Map<number, number>} */
    this.at = new Map();
    /** @type {Map<string, {key: string, label: string, values: number[]}>} */
    this.series = new Map();
    /** Series beyond what a chart can show. @type {Set<string>} */
    this.more = new Set();
  }

  reset() {
    this.steps = [];
    this.at = new Map();
    this.series = new Map();
    this.version += 1;
    this.more = new Set();
  }

  /** @returns {Set<number> | null} the steps that changed; null: all */
  pull() {
    const changed = this.over.pull();
    const below = this.under ? this.under.pull() : new Set();
    const past = this.whole ? this.store.pastOf(this.spec) : null;
    if (changed === null || below === null || past !== this.past) {
      this.past = past;
      this._all();
      this.version += 1;
      return null;
    }
    const steps = new Set([...changed, ...below]);
    for (const step of steps) this._step(step);
    if (steps.size) this.version += 1;
    return steps;
  }

  _all() {
    this.reset();
    if (this.past) this._recall(this.past);
    for (const step of [...this.over.cells.keys()].sort((a, b) => a - b)) this._step(step);
  }

  /** @param {Past} past */
  _recall({ steps, at, series, more }) {
    this.steps = [...steps];
    this.at = new Map(at);
    for (const { key, y, values, numbers } of series) {
      if (!this.over.meta.has(key)) this.over.meta.set(key, { y, values });
      this.series.set(key, { key, label: this.over.label(key), values: [...numbers] });
    }
    for (let one = 0; one < more; one += 1) this.more.add(`more ${one}`);
  }

  /**
   * Whether a step is one of those that were asked for.
   * @param {number} step
   */
  _isPast(step) {
    return this.past !== null && step >= 0 && step <= this.past.until;
  }

  /** @param {number} step */
  _step(step) {
    if (step < 0 || this._isPast(step)) return;
    const cells = this.over.cells.get(step);
    if (!cells) return;
    if (!cells.size && !this.at.has(step)) return;
    const at = this._place(step);
    for (const one of this.series.values()) one.values[at] = NaN; //  a row that was replaced may have moved
    for (const [key, cell] of cells) this._write(key, at, cell, step);
  }

  /**
   * The index of a step, made where there is none.
   * @param {number} step
   */
  _place(step) {
    const known = this.at.get(step);
    if (known !== undefined) return known;
    let at = this.steps.length;
    while (at > 0 && this.steps[at - 1] > step) at -= 1;
    this.steps.splice(at, 0, step);
    for (const one of this.series.values()) one.values.splice(at, 0, NaN);
    if (at === this.steps.length - 1) this.at.set(step, at);
    else this.steps.forEach((one, index) => this.at.set(one, index));
    return at;
  }

  /**
   * @param {string} key
   * @param {number} at
   * @param {Cell} cell
   * @param {number} step
   */
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
    one.values[at] = this.valueOf(cell, step, key);
  }

  /**
   * The value of one cell of a step.
   * @param {Cell} cell
   * @param {number} step
   * @param {string} key of its series
   * @returns {number}
   */
  valueOf(cell, step, key) {
    return this._divided(this.over.unscaled(cell), step, key);
  }

  /**
   * @param {number} value
   * @param {number} step
   * @param {string} key of the series
   */
  _divided(value, step, key) {
    if (!this.under) return value * this.over.scale;
    const under = this.paired ? this._below(step, key) : this.under.largest(step);
    return under ? (value / under) * this.over.scale : NaN;
  }

  /**
   * What a series is divided by, where each has its own.
   * @param {number} step
   * @param {string} key
   */
  _below(step, key) {
    const cell = this.under?.over.cells.get(step)?.get(key.replace(/^\d+/, "0")); //  there is one column below
    return cell && this.under ? this.under.over.value(cell) : NaN;
  }

  /**
   * Over some steps the ratio of sums of each series, the largest of them; as `_pooled` in
   * probe/dashboards/courses.py.
   * @param {number[]} steps
   * @returns {number}
   */
  pooled(steps) {
    /** @type {Map<string, [over: number, under: number]>} */
    const sums = new Map();
    for (const step of steps) {
      for (const [key, cell] of this.over.cells.get(step) ?? []) {
        const [over, under] = [this.over.value(cell), this._below(step, key)];
        if (Number.isNaN(over) || Number.isNaN(under)) continue;
        const [above, below] = sums.get(key) ?? [0, 0];
        sums.set(key, [above + over, below + under]);
      }
    }
    return largest([...sums.values()].filter(([, under]) => under).map(([over, under]) => over / under));
  }

  /**
   * The values of a step, each with the values of `by`.
   * @param {number} step
   * @returns {[by: number[], value: number][]}
   */
  valuesAt(step) {
    const { past } = this;
    const at = past && !past.more && this._isPast(step) ? past.at.get(step) : undefined;
    if (past && at !== undefined) return past.series.map(({ values, numbers }) => [values, numbers[at]]);
    return [...this.over.cells.get(step) ?? []].map(([key, cell]) => [this.over.meta.get(key)?.values ?? [], this.valueOf(cell, step, key)]);
  }

  /**
   * The largest of all series at a step, also of those beyond what a chart shows; −1 is what has no step.
   * @param {number} step
   * @returns {number}
   */
  largest(step) {
    if (this.past && this._isPast(step)) return this.past.largest[this.past.at.get(step) ?? -1] ?? NaN;
    const cells = this.over.cells.get(step);
    if (!cells) return NaN;
    if (this.paired) return largest([...cells].map(([key, cell]) => this._divided(this.over.unscaled(cell), step, key)));
    return this._divided(largest([...cells.values()].map((cell) => this.over.unscaled(cell))), step, "");
  }

  /**
   * The row that made the value of a series at a step, −1 where it is gone.
   * @param {string} key
   * @param {number} step
   */
  rowOf(key, step) {
    const cell = this.over.cells.get(step)?.get(key);
    return cell ? this.over.maker(cell) : -1;
  }

  /**
   * For a chart: every step.
   * @returns {LineData & {series: {key: string, label: string, values: number[]}[]}}
   */
  data() {
    return { xs: this.steps, series: [...this.series.values()].sort((a, b) => (a.label < b.label ? -1 : 1)) };
  }
}

/**
 * The steps from one to another; where they are more than half the pixels, points that several share: of each series
 * the median, with the smallest and the largest.
 * @param {LineData} data
 * @param {[from: number, to: number]} range
 * @param {number} pixels
 * @returns {LineData}
 */
export function binned({ xs, series }, [from, to], pixels) {
  const inside = xs.map((_, at) => at).filter((at) => xs[at] >= from && xs[at] <= to);
  const steps = inside.map((at) => xs[at]);
  /** @type {(Line & {values: number[]})[]} */
  const lines = series.map((one) => ({ ...one, values: inside.map((at) => one.values[at]) }));
  const found = binsOf(steps, pixels);
  if (!found) return { xs: steps, series: lines };
  const { bins, width } = found;
  return { xs: bins.map(([first, last]) => steps[(first + last - 1) >> 1]), series: lines.map((one) => binnedLine(one, steps, bins)), steps: width };
}

/**
 * @param {Line & {values: number[]}} one
 * @param {number[]} steps
 * @param {[from: number, to: number][]} bins
 * @returns {Line}
 */
function binnedLine(one, steps, bins) {
  const { values } = one;
  const places = bins.map(([from, to]) => medianPlace(values, from, to));
  const [, most] = extremes(values, 0, values.length);
  /** @param {0 | 1} side */
  const edge = (side) => bins.map(([from, to]) => values[extremes(values, from, to)[side] ?? -1] ?? NaN);
  return {
    ...one, values: places.map((at) => values[at] ?? NaN), at: places.map((at) => steps[at] ?? NaN), low: edge(0), high: edge(1),
    top: most === undefined ? null : [steps[most], values[most]],
  };
}

/**
 * A line for a spec and for each of its `beside`: the largest of its series at each step.
 * @param {Store} store
 * @param {Spec} spec
 * @returns {LineData}
 */
export function linesBeside(store, spec) {
  const { beside = [], ...first } = spec;
  const all = [{ ...first, title: spec.label || "" }, ...beside];
  const courses = all.map((one) => {
    const { steps, values } = largestByStep(summed(store, StepLines, { ...one, x: "step" }));
    return new Map(steps.map((step, at) => [step, values[at]]));
  });
  const steps = [...new Set(courses.flatMap((course) => [...course.keys()]))].sort((a, b) => a - b);
  const series = all.map(({ title }, at) => ({ key: String(at), label: title, values: steps.map((step) => courses[at].get(step) ?? NaN) }));
  return { xs: steps, series };
}

/**
 * The value of each step where a spec has several series: the largest of them.
 * @param {StepLines} lines
 * @returns {{steps: number[], values: number[]}}
 */
export function largestByStep(lines) {
  return { steps: lines.steps, values: lines.steps.map((step) => lines.largest(step)) };
}

/**
 * The sum over the run, or up to a step; what has no step counts too. With `reduce: max` it is the largest.
 * @param {StepLines} lines
 * @param {number} until
 */
export function totalOf(lines, until = Infinity) {
  const values = [...lines.over.cells.keys()].filter((step) => step <= until).map((step) => lines.largest(step));
  if (lines.over.how === "max") return largest(values);
  return values.reduce((sum, value) => sum + (value || 0), 0);
}
