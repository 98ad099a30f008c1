// Rows as points over time, joined or in bins.

import { extremes } from "./extremes.js";
import { groupLabel, listOf, matcher } from "./matching.js";
import { MOST_SERIES } from "./step_lines.js";

/** @import { Spec } from "./definition_types.js" */
/** @import { LineData } from "./types.js" */
/** @import { Store } from "./store.js" */
/** @typedef {{key: string, label: string, points: Points}} Timed one series over time */

/** Points of one series: when full, the older half keeps the extremes of each four. */
class Points {
  /** @param {number} limit the most points */
  constructor(limit) {
    this.xs = new Float64Array(limit);
    this.ys = new Float64Array(limit);
    this.limit = limit;
    this.count = 0;
    /** @type {Set<number>} */
    this.ranks = new Set();
  }

  /**
   * Add a point; x mostly grows.
   * @param {number} x
   * @param {number} y
   */
  push(x, y) {
    if (this.count === this.limit) this._thin();
    let at = this.count;
    while (at > 0 && this.xs[at - 1] > x) {
      this.xs[at] = this.xs[at - 1];
      this.ys[at] = this.ys[at - 1];
      at -= 1;
    }
    this.xs[at] = x;
    this.ys[at] = y;
    this.count += 1;
  }

  _thin() {
    const half = (this.count >> 3) << 2;
    let kept = 0;
    for (let from = 0; from < half; from += 4) {
      const [low, high] = extremes(this.ys, from, from + 4);
      if (low === undefined || high === undefined) continue;
      for (const index of low === high ? [low] : [Math.min(low, high), Math.max(low, high)]) {
        this.xs[kept] = this.xs[index];
        this.ys[kept] = this.ys[index];
        kept += 1;
      }
    }
    this.xs.copyWithin(kept, half, this.count);
    this.ys.copyWithin(kept, half, this.count);
    this.count = kept + this.count - half;
  }

  /**
   * The index of the first point at or after x.
   * @param {number} x
   */
  from(x) {
    let [low, high] = [0, this.count];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.xs[middle] < x) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}

/** Rows as points over time. */
export class TimeLines {
  static kind = "time";

  /**
   * @param {Store} store
   * @param {Spec} spec
   */
  constructor(store, spec) {
    this.store = store;
    this.spec = spec;
    this.table = store.table(spec.table);
    this.y = listOf(spec.y);
    this.groups = listOf(spec.by);
    this.scale = spec.scale ?? 1;
    this.version = 0;
    /** @type {Map<string, Timed>} */
    this.series = new Map();
    this.seen = 0;
    /** Series beyond what a chart can show. @type {Set<string>} */
    this.more = new Set();
    this.match = matcher(store, this.table, spec);
    this.epoch = this.table.epoch;
    this.replaced = this.table.replaced;
  }

  /** The column that says when a row was. */
  get x() {
    return this.table.schema.time[0] ?? "t";
  }

  reset() {
    this.series = new Map();
    this.seen = 0;
    this.more = new Set();
    this.match = matcher(this.store, this.table, this.spec);
    this.epoch = this.table.epoch;
    this.replaced = this.table.replaced;
  }

  /** Add the rows that are new; all of them where rows were replaced. */
  pull() {
    const { table } = this;
    if (this.epoch !== table.epoch || this.replaced !== table.replaced) this.reset();
    const fresh = Math.min(table.total - this.seen, table.count);
    if (!fresh) return;
    for (let row = table.count - fresh; row < table.count; row += 1) if (this.match(row)) this._add(row);
    this.seen = table.total;
    this.version += 1;
  }

  /** @param {number} row */
  _add(row) {
    const x = this.table.get(this.x, row);
    if (Number.isNaN(x)) return;
    const values = this.groups.map((name) => this.table.code(name, row));
    this.y.forEach((column, at) => {
      const y = this.table.get(column, row);
      if (Number.isNaN(y)) return;
      const one = this._series(column, at, values);
      if (!one) return;
      one.points.push(x, y * this.scale);
      if (one.points.ranks.size < 8) one.points.ranks.add(this.table.code("rank", row));
    });
  }

  /**
   * @param {string} column
   * @param {number} at
   * @param {number[]} values
   */
  _series(column, at, values) {
    const key = `${at}|${values.join("|")}`;
    let one = this.series.get(key);
    if (!one && this.series.size < MOST_SERIES) {
      const own = column === "allocated" && this.store.state.memory ? "resident" : column.replaceAll("_", " ");
      const shown = this.spec.names?.[column] ?? own;
      const group = groupLabel(this.store, this.spec, this.table, this.groups, values);
      const name = !this.groups.length ? shown : this.y.length > 1 ? `${group} · ${shown}` : group;
      const limit = this.store.config.limits?.points || 4000;
      one = { key, label: name, points: new Points(limit) };
      this.series.set(key, one);
    }
    if (!one) this.more.add(key);
    return one;
  }

  /**
   * For a chart: between two times, on shared x; bins of a power of two seconds that hold the largest.
   * @param {number} from
   * @param {number} to
   * @returns {LineData}
   */
  data(from, to) {
    const series = [...this.series.values()].sort((a, b) => (a.label < b.label ? -1 : 1));
    const total = series.reduce((sum, one) => sum + one.points.from(to) - one.points.from(from), 0);
    const ranks = Math.max(1, ...series.map((one) => one.points.ranks.size));
    if (total <= 1500 && ranks === 1) return joined(series, from, to);
    const largest = Math.max(1, ...series.map((one) => one.points.from(to) - one.points.from(from)));
    return binned(series, from, to, Math.min(Math.max(largest / ranks, 16), 600), this.spec.reduce || "max");
  }
}

/**
 * Every point at its own x.
 * @param {Timed[]} series
 * @param {number} from
 * @param {number} to
 * @returns {LineData}
 */
function joined(series, from, to) {
  /** @type {Set<number>} */
  const xs = new Set();
  for (const { points } of series) for (let at = points.from(from); at < points.count && points.xs[at] <= to; at += 1) xs.add(points.xs[at]);
  const sorted = [...xs].sort((a, b) => a - b);
  const place = new Map(sorted.map((x, index) => [x, index]));
  const made = series.map((one) => {
    const values = new Array(sorted.length).fill(NaN);
    const { points } = one;
    for (let at = points.from(from); at < points.count && points.xs[at] <= to; at += 1) values[place.get(points.xs[at]) ?? 0] = points.ys[at];
    return { key: one.key, label: one.label, values, top: topOf(points, from, to) };
  });
  return { xs: sorted, series: made };
}

/**
 * Where a series is highest: [x, y], exact where a bin's x isn't.
 * @param {Points} points
 * @param {number} from
 * @param {number} to
 * @returns {[x: number, y: number] | null}
 */
function topOf(points, from, to) {
  let best = -1;
  for (let at = points.from(from); at < points.count && points.xs[at] <= to; at += 1) if (best < 0 || points.ys[at] > points.ys[best]) best = at;
  return best < 0 ? null : [points.xs[best], points.ys[best]];
}

/**
 * The largest (or what `how` says) of each bin; bins lie on whole powers of two, so they don't move as time goes on.
 * @param {Timed[]} series
 * @param {number} from
 * @param {number} to
 * @param {number} bins
 * @param {string} how
 * @returns {LineData}
 */
function binned(series, from, to, bins, how) {
  const width = 2 ** Math.ceil(Math.log2(Math.max(to - from, 1e-6) / bins));
  const first = Math.floor(from / width);
  const length = Math.floor(to / width) - first + 1;
  const filled = new Uint8Array(length);
  const columns = series.map((one) => binOne(one.points, { width, first, length, from, to, how, filled }));
  /** @type {number[]} */
  const used = [];
  for (let bin = 0; bin < length; bin += 1) if (filled[bin]) used.push(bin);
  return {
    xs: used.map((bin) => (first + bin + 0.5) * width),
    series: series.map((one, at) => ({ key: one.key, label: one.label, values: used.map((bin) => columns[at][bin]), top: topOf(one.points, from, to) })),
    width,
  };
}

/**
 * @param {Points} points
 * @param {{width: number, first: number, length: number, from: number, to: number, how: string, filled: Uint8Array}} bins
 */
function binOne(points, { width, first, length, from, to, how, filled }) {
  const values = new Float64Array(length).fill(NaN);
  const counts = how === "mean" ? new Uint32Array(length) : null;
  for (let at = points.from(from); at < points.count && points.xs[at] <= to; at += 1) {
    const bin = Math.floor(points.xs[at] / width) - first;
    const [old, y] = [values[bin], points.ys[at]];
    filled[bin] = 1;
    if (Number.isNaN(old) || how === "last") values[bin] = y;
    else if (how === "sum" || how === "mean") values[bin] = old + y;
    else values[bin] = how === "min" ? Math.min(old, y) : Math.max(old, y);
    if (counts) counts[bin] += 1;
  }
  if (counts) for (let bin = 0; bin < length; bin += 1) if (counts[bin]) values[bin] /= counts[bin];
  return values;
}
