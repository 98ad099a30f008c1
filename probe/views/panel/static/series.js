// From tables to what a chart shows: a series spec of a dashboard's `live:` block, read against a table. Sums are
// kept by step and only steps with new rows are summed again, so an update costs the same at any length of history.

/** What stays right in a step of which rows were dropped. */
const TOLERANT = new Set(["max", "min", "last"]);
const MOST_SERIES = 24;
const MOST_CACHES = 96;

const listOf = (value) => (value === undefined || value === null ? [] : Array.isArray(value) ? value : [value]);

/** Whether a word or number is what a `where` asks for. */
function wanted(text, ask) {
  if (Array.isArray(ask)) return ask.some((one) => wanted(text, one));
  if (ask !== null && typeof ask === "object") return !wanted(text, ask.not);
  if (typeof ask === "boolean") return Number(text) === Number(ask);
  const asked = String(ask);
  return asked.endsWith("*") ? String(text).startsWith(asked.slice(0, -1)) : String(text) === asked;
}

/** A test of rows: the spec's `where`, and what the person has chosen of role, rank and phase. */
function matcher(store, table, spec) {
  const tests = Object.entries(spec.where || {}).map(([name, ask]) => wordTest(store, table, name, ask));
  const free = new Set(listOf(spec.free)); //  choices that don't narrow it
  const ui = Object.fromEntries(Object.entries(store.ui).filter(([name]) => !free.has(name)));
  if (ui.rank !== undefined && ui.rank !== "") tests.push(wordTest(store, table, "rank", String(ui.rank)));
  for (const name of ["role", "phase"]) {
    if (!ui[name]) continue;
    const test = wordTest(store, table, name, ui[name]);
    // A step has neither role nor phase, and is what the chosen role's time is measured against.
    tests.push(table.name === "spans" ? (row) => isStep(store, table, row) || test(row) : test);
  }
  const known = tests.filter(Boolean);
  return (row) => {
    for (const test of known) if (!test(row)) return false;
    return true;
  };
}

function isStep(store, table, row) {
  return store.words.text(table.columns.get("kind")?.[row] ?? -1) === "step";
}

function wordTest(store, table, name, ask) {
  const answers = new Map();
  return (row) => {
    const values = table.columns.get(name);
    if (!values) return true; //  a table without the column isn't narrowed by it
    const value = values[row];
    let answer = answers.get(value);
    if (answer === undefined) {
      answer = wanted(WORD_COLUMNS.has(name) ? store.words.text(value) : value, ask);
      if (answers.size < 5000) answers.set(value, answer);
    }
    return answer;
  };
}

/** The text of a column's value: of a word the word, of a number the number. */
function label(store, table, name, value) {
  if (name === "cause") return store.words.text(value).replaceAll("_", " ") || "no cause"; //  probe's own words
  if (WORD_COLUMNS.has(name)) return store.words.text(value) || `no ${name}`;
  return value === -1 || Number.isNaN(value) ? `no ${name.replace("_", "-")}` : String(value);
}

/** What `by` calls a group: "rank 3", "actor · update". */
function groupLabel(store, spec, table, names, values) {
  const shown = names.map((name, at) => {
    const text = label(store, table, name, values[at]);
    return name === "rank" && values[at] >= 0 ? `rank ${text}` : spec.names?.[text] || text;
  });
  return [...new Set(shown)].join(" · ");
}

// ---- sums

function newCell() {
  return { sum: 0, second: 0, top: -Infinity, low: Infinity, last: NaN, count: 0, each: null, row: -1 };
}

function add(cell, value, second, each, row) {
  if (Number.isNaN(value)) return;
  cell.sum += value;
  cell.second += Number.isNaN(second) ? 0 : second;
  cell.count += 1;
  cell.last = value;
  if (value > cell.top) {
    cell.top = value;
    cell.row = row;
  }
  if (value < cell.low) cell.low = value;
  if (each !== null) {
    cell.each ??= new Map();
    cell.each.set(each, (cell.each.get(each) || 0) + value);
  }
}

function merge(into, cell) {
  into.sum += cell.sum;
  into.second += cell.second;
  into.count += cell.count;
  into.last = Number.isNaN(cell.last) ? into.last : cell.last;
  if (cell.top > into.top) [into.top, into.row] = [cell.top, cell.row];
  into.low = Math.min(into.low, cell.low);
  for (const [each, value] of cell.each || []) {
    into.each ??= new Map();
    into.each.set(each, (into.each.get(each) || 0) + value);
  }
}

/** The number of a cell. */
function reduced(cell, how) {
  if (!cell || !cell.count) return how === "count" && cell ? 0 : NaN;
  if (how === "ratio") return cell.second ? cell.sum / cell.second : NaN;
  const parts = cell.each ? [...cell.each.values()] : null;
  if (how === "imbalance") return imbalance(parts || []);
  if (how === "max") return parts ? Math.max(...parts) : cell.top;
  if (how === "min") return parts ? Math.min(...parts) : cell.low;
  if (how === "mean") return cell.sum / (parts ? parts.length : cell.count);
  if (how === "last") return cell.last;
  if (how === "count") return cell.count;
  return cell.sum;
}

function imbalance(parts) {
  const sum = parts.reduce((total, one) => total + one, 0);
  return sum > 0 ? (Math.max(...parts) * parts.length) / sum : NaN;
}

/** Rows of a table summed by step and group. */
class Grouped {
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

// ---- lines over steps

/** One value of each series at each step, kept in arrays that only grow at their end. */
class StepLines {
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

/** Indices that keep the newest half and each bucket's extremes of the older; null: all fit. */
function thinned(xs, columns, points) {
  if (xs.length <= points) return null;
  const half = xs.length - (points >> 1);
  const buckets = Math.max(Math.floor((points >> 1) / Math.max(2 * columns.length, 2)), 1);
  const kept = new Set([0]);
  for (let bucket = 0; bucket < buckets; bucket += 1) {
    const [from, to] = [Math.floor((bucket * half) / buckets), Math.floor(((bucket + 1) * half) / buckets)];
    for (const values of columns) for (const index of extremes(values, from, to)) kept.add(index);
  }
  for (let index = half; index < xs.length; index += 1) kept.add(index);
  return [...kept].sort((a, b) => a - b);
}

function extremes(values, from, to) {
  let [low, high] = [-1, -1];
  for (let index = from; index < to; index += 1) {
    if (Number.isNaN(values[index])) continue;
    if (low < 0 || values[index] < values[low]) low = index;
    if (high < 0 || values[index] > values[high]) high = index;
  }
  return low < 0 ? [] : [low, high];
}

// ---- lines over time

/** Points of one series: when full, the older half keeps the extremes of each four. */
class Points {
  constructor(limit) {
    this.xs = new Float64Array(limit);
    this.ys = new Float64Array(limit);
    this.limit = limit;
    this.count = 0;
    this.ranks = new Set();
  }

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
      if (low === undefined) continue;
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

  /** The index of the first point at or after x. */
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
class TimeLines {
  constructor(store, spec) {
    this.store = store;
    this.spec = spec;
    this.table = store.table(spec.table);
    this.x = spec.table === "spans" ? "begin" : "t";
    this.y = listOf(spec.y);
    this.groups = listOf(spec.by);
    this.match = matcher(store, this.table, spec);
    this.version = 0;
    this.reset();
  }

  reset() {
    this.series = new Map();
    this.seen = 0;
    this.more = new Set();
    this.epoch = this.table.epoch;
    this.replaced = this.table.replaced;
  }

  /** Take the rows that are new; all of them where rows were replaced. */
  pull() {
    const { table } = this;
    if (this.epoch !== table.epoch || this.replaced !== table.replaced) this.reset();
    const fresh = Math.min(table.total - this.seen, table.count);
    if (!fresh) return;
    for (let row = table.count - fresh; row < table.count; row += 1) if (this.match(row)) this._add(row);
    this.seen = table.total;
    this.version += 1;
  }

  _add(row) {
    const x = this.table.get(this.x, row);
    if (Number.isNaN(x)) return;
    const values = this.groups.map((name) => this.table.columns.get(name)?.[row] ?? -1);
    this.y.forEach((column, at) => {
      const y = this.table.get(column, row);
      if (Number.isNaN(y)) return;
      const one = this._series(column, at, values);
      if (!one) return;
      one.points.push(x, y);
      if (one.points.ranks.size < 8) one.points.ranks.add(this.table.columns.get("rank")?.[row]);
    });
  }

  _series(column, at, values) {
    const key = `${at}|${values.join("|")}`;
    let one = this.series.get(key);
    if (!one && this.series.size < MOST_SERIES) {
      const shown = this.spec.names?.[column] ?? column.replaceAll("_", " ");
      const group = groupLabel(this.store, this.spec, this.table, this.groups, values);
      const name = !this.groups.length ? shown : this.y.length > 1 ? `${group} · ${shown}` : group;
      const limit = this.store.config.limits?.points || 4000;
      one = { key, label: name, points: new Points(limit) };
      this.series.set(key, one);
    }
    if (!one) this.more.add(key);
    return one;
  }

  /** For a chart: between two times, on shared x; bins of a power of two seconds that hold the largest. */
  data(from, to) {
    const series = [...this.series.values()].sort((a, b) => (a.label < b.label ? -1 : 1));
    const total = series.reduce((sum, one) => sum + one.points.from(to) - one.points.from(from), 0);
    const ranks = Math.max(1, ...series.map((one) => one.points.ranks.size));
    if (total <= 1500 && ranks === 1) return joined(series, from, to);
    const largest = Math.max(1, ...series.map((one) => one.points.from(to) - one.points.from(from)));
    return binned(series, from, to, Math.min(Math.max(largest / ranks, 16), 600), this.spec.reduce || "max");
  }
}

/** Every point at its own x. */
function joined(series, from, to) {
  const xs = new Set();
  for (const { points } of series) for (let at = points.from(from); at < points.count && points.xs[at] <= to; at += 1) xs.add(points.xs[at]);
  const sorted = [...xs].sort((a, b) => a - b);
  const place = new Map(sorted.map((x, index) => [x, index]));
  const made = series.map((one) => {
    const values = new Array(sorted.length).fill(NaN);
    const { points } = one;
    for (let at = points.from(from); at < points.count && points.xs[at] <= to; at += 1) values[place.get(points.xs[at])] = points.ys[at];
    return { key: one.key, label: one.label, values, top: topOf(points, from, to) };
  });
  return { xs: sorted, series: made };
}

/** Where a series is highest: [x, y], exact where a bin's x isn't. */
function topOf(points, from, to) {
  let best = -1;
  for (let at = points.from(from); at < points.count && points.xs[at] <= to; at += 1) if (best < 0 || points.ys[at] > points.ys[best]) best = at;
  return best < 0 ? null : [points.xs[best], points.ys[best]];
}

/** The largest (or what `how` says) of each bin; bins lie on whole powers of two, so they don't move as time goes on. */
function binned(series, from, to, bins, how) {
  const width = 2 ** Math.ceil(Math.log2(Math.max(to - from, 1e-6) / bins));
  const first = Math.floor(from / width);
  const length = Math.floor(to / width) - first + 1;
  const filled = new Uint8Array(length);
  const columns = series.map((one) => binOne(one.points, { width, first, length, from, to, how, filled }));
  const used = [];
  for (let bin = 0; bin < length; bin += 1) if (filled[bin]) used.push(bin);
  return {
    xs: used.map((bin) => (first + bin + 0.5) * width),
    series: series.map((one, at) => ({ key: one.key, label: one.label, values: used.map((bin) => columns[at][bin]), top: topOf(one.points, from, to) })),
    width,
  };
}

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

// ---- categories and rows

/** Values by category and series: for bars, stacks over a category, and heat maps. */
class Categories {
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

/** A sum that is kept as long as its spec and the choices are the same; shared by the views of a model. */
function summed(store, Kind, spec) {
  const { role, rank, phase } = store.ui;
  const key = JSON.stringify([Kind.name, spec, role, rank, phase]);
  let made = store.caches.get(key);
  if (made) store.caches.delete(key); //  last used comes last
  else made = new Kind(store, spec);
  store.caches.set(key, made);
  while (store.caches.size > MOST_CACHES) store.caches.delete(store.caches.keys().next().value);
  made.pull();
  return made;
}

/** Rows that match a spec, of one step or of all. */
function rowsOf(store, spec, step) {
  const table = store.table(spec.table);
  const match = matcher(store, table, spec);
  const rows = [];
  if (step !== null) {
    for (const row of table.byStep.get(step) || []) if (match(row)) rows.push(row);
    return rows;
  }
  for (let row = 0; row < table.count; row += 1) if (match(row)) rows.push(row);
  return rows;
}

/** At most `most` rows: the first of them, and of each bucket the one with the largest value. */
function foremost(table, rows, score, most) {
  if (rows.length <= most) return rows;
  const kept = [];
  for (let bucket = 0; bucket < most; bucket += 1) {
    const [from, to] = [Math.floor((bucket * rows.length) / most), Math.floor(((bucket + 1) * rows.length) / most)];
    let best = from;
    for (let at = from + 1; at < to; at += 1) if (table.get(score, rows[at]) > table.get(score, rows[best])) best = at;
    kept.push(rows[best]);
  }
  return kept;
}
