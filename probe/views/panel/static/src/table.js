// One table of numbers in columns that grow up to a limit and are then thinned, and the words of the run.

import { DERIVED, KEYS, WORD_COLUMNS } from "./columns.js";
import { ARRAYS } from "./messages.js";
import { THINNING } from "./thinning.js";

const LOG = 8192;

/** The words of the run by their code. */
export class Words {
  constructor() {
    this.list = [];
    this.codes = new Map();
  }

  /** Take new words; false where some before them are missing. */
  take(words, from) {
    const whole = from <= this.list.length;
    while (this.list.length < from) this.list.push(null);
    words.forEach((word, index) => {
      this.list[from + index] = word;
      if (!this.codes.has(word)) this.codes.set(word, from + index);
    });
    return whole;
  }

  text(code) {
    return code < 0 ? "" : (this.list[code] ?? "…");
  }
}

/** One table of numbers in columns that grow up to `limit` rows and are then thinned. */
export class Table {
  constructor(name, limit) {
    this.name = name;
    this.limit = limit;
    this.types = new Map();
    this.clear();
  }

  clear() {
    this.columns = new Map([...this.types].map(([name, type]) => [name, new ARRAYS[type](64)]));
    this.capacity = 64;
    this.count = 0; //  rows held
    this.next = 0; //  running number of the row that comes next
    this.total = 0; //  rows ever appended here; unlike `next` never jumps
    this.thinned = 0;
    this.replaced = 0;
    this.version = (this.version || 0) + 1;
    this.generation = (this.generation || 0) + 1; //  changes when row numbers do
    this.epoch = (this.epoch || 0) + 1; //  changes when all is taken anew
    this.partial = new Set(); //  steps of which single rows were dropped
    this.byStep = new Map();
    this.byKey = new Map();
    this.log = []; //  steps touched, for those who keep sums by step
    this.logBase = 0;
  }

  /** Take `n` rows, from row `skip` on. `columns` maps names to typed arrays. */
  append(columns, n, skip = 0) {
    for (const [name, values] of columns) this._column(name, values);
    let at = skip;
    while (at < n) {
      if (this.count >= this.limit) this._thin();
      const room = Math.min(n - at, this.limit - this.count);
      this._reserve(this.count + room);
      for (let index = at; index < at + room; index += 1) this._row(columns, index);
      at += room;
    }
    this.version += 1;
  }

  _column(name, values) {
    if (this.columns.has(name)) return;
    const type = Object.keys(ARRAYS).find((one) => values instanceof ARRAYS[one]);
    this.types.set(name, type);
    const made = new ARRAYS[type](this.capacity);
    made.fill(type === "i4" ? -1 : type === "u1" ? 0 : NaN);
    this.columns.set(name, made);
  }

  _reserve(rows) {
    if (rows <= this.capacity) return;
    const capacity = Math.min(Math.max(rows, this.capacity * 2), Math.max(this.limit, rows));
    for (const [name, old] of this.columns) {
      const made = new old.constructor(capacity);
      made.set(old);
      this.columns.set(name, made);
    }
    this.capacity = capacity;
  }

  _row(columns, index) {
    const key = this._key((name) => columns.get(name)?.[index]);
    const known = key === null ? undefined : this.byKey.get(key);
    const row = known ?? this.count;
    for (const [name, values] of this.columns) {
      const given = columns.get(name);
      values[row] = given ? given[index] : values instanceof Int32Array ? -1 : values instanceof Uint8Array ? 0 : NaN;
    }
    this.total += 1;
    if (known === undefined) {
      this.count += 1;
      if (key !== null) this.byKey.set(key, row);
      this._index(row);
    } else this.replaced += 1;
    this._touch(this.step(row));
  }

  _key(value) {
    const names = KEYS[this.name];
    if (!names) return null;
    if (this.name === "spans" && !(value("scope") >= 0)) return null;
    return names.map((name) => value(name)).join(":");
  }

  _index(row) {
    const step = this.step(row);
    const rows = this.byStep.get(step);
    if (rows) rows.push(row);
    else this.byStep.set(step, [row]);
  }

  _touch(step) {
    if (this.log.length && this.log[this.log.length - 1] === step) {
      // The same step again needs a line only for those who have read the last one: lines are cheap, steps are few.
      if (this.logSeen !== this.log.length) return;
    }
    this.log.push(step);
    if (this.log.length > LOG) {
      this.log.splice(0, LOG / 2);
      this.logBase += LOG / 2;
    }
  }

  /** Steps touched since `cursor` (null: all must be read again), and the new cursor. */
  touched(cursor) {
    const end = this.logBase + this.log.length;
    this.logSeen = this.log.length;
    if (cursor === null || cursor < this.logBase) return { steps: null, cursor: end };
    return { steps: new Set(this.log.slice(cursor - this.logBase)), cursor: end };
  }

  step(row) {
    return this.columns.get("step")?.[row] ?? -1;
  }

  /** A number of a row; missing is NaN. */
  get(name, row) {
    const values = this.columns.get(name);
    if (values) {
      const value = values[row];
      return value === -1 && values instanceof Int32Array ? NaN : value;
    }
    const derived = DERIVED[this.name]?.[name];
    return derived ? derived((other, at) => this.get(other, at), row) : NaN;
  }

  has(name) {
    return this.columns.has(name) || Boolean(DERIVED[this.name]?.[name]);
  }

  /** All of a row: words as texts, numbers as numbers. */
  row(row, words) {
    const made = { table: this.name };
    for (const [name, values] of this.columns) {
      made[name] = WORD_COLUMNS.has(name) ? words.text(values[row]) : this.get(name, row);
    }
    for (const name of Object.keys(DERIVED[this.name] || {})) made[name] = this.get(name, row);
    return made;
  }

  // ---- forgetting

  _thin() {
    const rule = THINNING[this.name] || { whole: false, group: [], score: [] };
    const half = this.count >> 1;
    let keep = rule.whole ? this._keepWhole(rule, half) : null;
    if (!keep || this._dropped(keep) < this.count / 10) keep = this._keepRows(rule, half);
    if (this._dropped(keep) < this.count / 10) keep.fill(0, 0, this.count >> 2);
    this._notePartial(keep, rule.whole);
    this.thinned += this._dropped(keep);
    this._compact(keep);
  }

  _dropped(keep) {
    let dropped = 0;
    for (let row = 0; row < this.count; row += 1) dropped += keep[row] ? 0 : 1;
    return dropped;
  }

  /** Whole cells (the rows of one step and group) of the older half: two of each four that follow each other stay. */
  _keepWhole(rule, half) {
    const keep = new Uint8Array(this.count).fill(1);
    const groups = new Map();
    for (let row = 0; row < this.count; row += 1) {
      const group = this._group(rule, row);
      if (!groups.has(group)) groups.set(group, new Map());
      const cells = groups.get(group);
      const step = this.step(row);
      if (!cells.has(step)) cells.set(step, []);
      cells.get(step).push(row);
    }
    for (const cells of groups.values()) {
      const old = [...cells.entries()].filter(([step, rows]) => step >= 0 && rows[rows.length - 1] < half);
      for (let at = 0; at + 4 <= old.length; at += 4) this._dropCells(keep, old.slice(at, at + 4), rule.score[0]);
    }
    return keep;
  }

  _dropCells(keep, cells, score) {
    const tops = cells.map(([, rows]) => this._top(rows, score));
    const largest = tops.indexOf(Math.max(...tops));
    let smallest = tops.indexOf(Math.min(...tops));
    if (smallest === largest) smallest = (largest + 1) % cells.length;
    cells.forEach(([, rows], index) => {
      if (index !== largest && index !== smallest) for (const row of rows) keep[row] = 0;
    });
  }

  _top(rows, score) {
    let top = -Infinity;
    for (const row of rows) {
      const value = this.get(score, row);
      if (value > top) top = value;
    }
    return top;
  }

  /** Rows of the older half: of each bucket the smallest of the first score and the largest of each stay. */
  _keepRows(rule, half) {
    const keep = new Uint8Array(this.count).fill(1);
    const size = 2 * (rule.score.length + 1);
    const groups = new Map();
    for (let row = 0; row < half; row += 1) {
      const group = this._group(rule, row);
      const bucket = groups.get(group) || [];
      bucket.push(row);
      groups.set(group, bucket);
      if (bucket.length === size) {
        this._dropRows(keep, bucket, rule.score);
        groups.set(group, []);
      }
    }
    return keep;
  }

  _dropRows(keep, bucket, scores) {
    const stay = new Set([bucket[0]]);
    for (const score of scores) {
      const values = bucket.map((row) => this.get(score, row));
      const known = values.filter((value) => !Number.isNaN(value));
      if (known.length) stay.add(bucket[values.indexOf(Math.max(...known))]);
      if (known.length && score === scores[0]) stay.add(bucket[values.indexOf(Math.min(...known))]);
    }
    for (const row of bucket) if (!stay.has(row)) keep[row] = 0;
  }

  _group(rule, row) {
    if (!rule.group.length) return "";
    return rule.group.map((name) => this.columns.get(name)?.[row]).join(":");
  }

  _notePartial(keep, whole) {
    const left = new Set();
    const lost = new Set();
    for (let row = 0; row < this.count; row += 1) {
      const cell = whole ? `${this._group(THINNING[this.name], row)}|${this.step(row)}` : this.step(row);
      (keep[row] ? left : lost).add(cell);
    }
    for (const cell of lost) if (left.has(cell)) this.partial.add(whole ? Number(cell.split("|").pop()) : cell);
  }

  _compact(keep) {
    let kept = 0;
    const arrays = [...this.columns.values()];
    for (let row = 0; row < this.count; row += 1) {
      if (!keep[row]) continue;
      if (kept !== row) for (const values of arrays) values[kept] = values[row];
      kept += 1;
    }
    this.count = kept;
    this.generation += 1;
    this.byStep.clear();
    this.byKey.clear();
    for (let row = 0; row < kept; row += 1) {
      const key = this._key((name) => this.columns.get(name)?.[row]);
      if (key !== null) this.byKey.set(key, row);
      this._index(row);
    }
    for (const step of this.partial) if (!this.byStep.has(step)) this.partial.delete(step);
  }
}
