// One table of numbers in columns that grow up to a limit and are then thinned.

import { ARRAYS } from "./messages.js";
import { TableSchema } from "./schema.js";
import { keptRows, partialSteps } from "./thinning.js";

/** @import { Dtype, Numbers } from "./definition_types.js" */
/** @import { Row } from "./types.js" */
/** @import { RunWords } from "./words_of_run.js" */

/** Lines of the log of touched steps. */
const LOG = 8192;

/**
 * What stands for a missing value.
 * @param {Numbers} values
 */
const missing = (values) => (values instanceof Int32Array ? -1 : values instanceof Uint8Array ? 0 : NaN);

export class LiveTable {
  /**
   * @param {string} name
   * @param {number} limit the most rows that are held
   * @param {TableSchema} schema
   */
  constructor(name, limit, schema = new TableSchema()) {
    this.name = name;
    this.limit = limit;
    this.schema = schema;
    /** @type {Map<string, Dtype>} */
    this.types = new Map();
    this.version = 0;
    this.generation = 0; //  changes when row numbers do
    this.epoch = 0; //  changes when all is read anew
    this.logSeen = 0;
    /** Steps of which single rows were dropped. @type {Set<number>} */
    this.partial = new Set();
    /** @type {Map<number, number[]>} */
    this.byStep = new Map();
    /** @type {Map<string, number>} */
    this.byKey = new Map();
    /** Steps touched, for those who keep sums by step. @type {number[]} */
    this.log = [];
    /** @type {Map<string, Numbers>} */
    this.columns = new Map();
    this.capacity = 64;
    this.count = 0; //  rows held
    this.next = 0; //  running number of the row that comes next
    this.total = 0; //  rows ever appended here; unlike `next` never jumps
    this.thinned = 0;
    this.replaced = 0;
    this.logBase = 0;
    /** @type {(column: string, row: number) => number} */
    this.getter = (column, row) => this.get(column, row);
    this.clear();
  }

  /**
   * What its columns are, where that comes after the table was asked for: all that was made of it is made anew.
   * @param {TableSchema} schema
   */
  declare(schema) {
    this.schema = schema;
    for (const counter of /** @type {const} */ (["version", "generation", "epoch"])) this[counter] += 1;
  }

  clear() {
    this.capacity = 64;
    this.columns = new Map([...this.types].map(([name, type]) => [name, new ARRAYS[type](64)]));
    for (const count of /** @type {const} */ (["count", "next", "total", "thinned", "replaced", "logBase"])) this[count] = 0;
    for (const counter of /** @type {const} */ (["version", "generation", "epoch"])) this[counter] += 1;
    for (const held of [this.partial, this.byStep, this.byKey]) held.clear();
    this.log = [];
  }

  /**
   * Append rows.
   * @param {Map<string, Numbers>} columns
   * @param {number} n rows in them
   * @param {number} skip so many of the first are not appended
   */
  append(columns, n, skip = 0) {
    for (const [name, values] of columns) this._column(name, values);
    let at = skip;
    while (at < n) {
      if (this.count >= this.limit) this._thin();
      const fits = Math.min(n - at, this.limit - this.count);
      this._reserve(this.count + fits);
      for (let index = at; index < at + fits; index += 1) this._row(columns, index);
      at += fits;
    }
    this.version += 1;
  }

  /**
   * @param {string} name
   * @param {Numbers} values
   */
  _column(name, values) {
    if (this.columns.has(name)) return;
    const type = /** @type {Dtype[]} */ (Object.keys(ARRAYS)).find((one) => values instanceof ARRAYS[one]);
    if (!type) return;
    this.types.set(name, type);
    const made = new ARRAYS[type](this.capacity);
    made.fill(missing(made));
    this.columns.set(name, made);
  }

  /** @param {number} rows */
  _reserve(rows) {
    if (rows <= this.capacity) return;
    const capacity = Math.min(Math.max(rows, this.capacity * 2), Math.max(this.limit, rows));
    for (const [name, type] of this.types) {
      const made = new ARRAYS[type](capacity);
      made.set(this.columns.get(name) ?? []);
      this.columns.set(name, made);
    }
    this.capacity = capacity;
  }

  /**
   * @param {Map<string, Numbers>} columns
   * @param {number} index
   */
  _row(columns, index) {
    const key = this._key(columns, index);
    const known = key === null ? undefined : this.byKey.get(key);
    const row = known ?? this.count;
    const before = known === undefined ? null : this.step(row);
    for (const [name, values] of this.columns) {
      const given = columns.get(name);
      values[row] = given ? given[index] : missing(values);
    }
    this.total += 1;
    if (before === null) {
      this.count += 1;
      if (key !== null) this.byKey.set(key, row);
      this._index(row);
    } else {
      this.replaced += 1;
      if (before !== this.step(row)) this._move(row, before);
    }
    this._touch(this.step(row));
  }

  /**
   * A row that was replaced belongs to another step than before.
   * @param {number} row
   * @param {number} before
   */
  _move(row, before) {
    const left = (this.byStep.get(before) ?? []).filter((one) => one !== row);
    if (left.length) this.byStep.set(before, left);
    else this.byStep.delete(before);
    this._touch(before);
    this._index(row);
    this.byStep.get(this.step(row))?.sort((a, b) => a - b);
  }

  /**
   * What says that two rows are the same; null where a row is like no other.
   * @param {Map<string, Numbers>} columns
   * @param {number} row
   */
  _key(columns, row) {
    const { key } = this.schema;
    if (!key.length) return null;
    const last = columns.get(key[key.length - 1])?.[row];
    if (last === undefined || last === -1) return null;
    let text = "";
    for (const name of key) text += `${columns.get(name)?.[row] ?? ""}:`;
    return text;
  }

  /** @param {number} row */
  _index(row) {
    const step = this.step(row);
    const rows = this.byStep.get(step);
    if (rows) rows.push(row);
    else this.byStep.set(step, [row]);
  }

  /** @param {number} step */
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

  /**
   * Steps touched since `cursor` (null: all must be read again), and the new cursor.
   * @param {number | null} cursor
   * @returns {{steps: Set<number> | null, cursor: number}}
   */
  touched(cursor) {
    const end = this.logBase + this.log.length;
    this.logSeen = this.log.length;
    if (cursor === null || cursor < this.logBase) return { steps: null, cursor: end };
    return { steps: new Set(this.log.slice(cursor - this.logBase)), cursor: end };
  }

  /** @param {number} row */
  step(row) {
    return this.columns.get("step")?.[row] ?? -1;
  }

  /**
   * A number of a row, also of a derived column; missing is NaN.
   * @param {string} name
   * @param {number} row
   */
  get(name, row) {
    const values = this.columns.get(name);
    if (values) {
      const value = values[row];
      return value === -1 && values instanceof Int32Array ? NaN : value;
    }
    return this.schema.derived.get(name)?.value(this.getter, row) ?? NaN;
  }

  /**
   * The value as it is held: a word's code, −1 where there is none.
   * @param {string} name
   * @param {number} row
   */
  code(name, row) {
    return this.columns.get(name)?.[row] ?? -1;
  }

  /**
   * All of a row.
   * @param {number} row
   * @param {RunWords} words
   * @returns {Row}
   */
  row(row, words) {
    /** @type {Row} */
    const made = { table: this.name };
    for (const [name, values] of this.columns) made[name] = this.schema.isWord(name) ? words.text(values[row]) : this.get(name, row);
    for (const name of this.schema.derived.keys()) made[name] = this.get(name, row);
    return made;
  }

  // ---- forgetting

  _thin() {
    const keep = keptRows(this);
    for (const step of partialSteps(this, keep)) this.partial.add(step);
    this._compact(keep);
  }

  /** @param {Uint8Array} keep 1 for each row that stays */
  _compact(keep) {
    let kept = 0;
    const arrays = [...this.columns.values()];
    for (let row = 0; row < this.count; row += 1) {
      if (!keep[row]) continue;
      if (kept !== row) for (const values of arrays) values[kept] = values[row];
      kept += 1;
    }
    this.thinned += this.count - kept;
    this.count = kept;
    this.generation += 1;
    this.byStep.clear();
    this.byKey.clear();
    for (let row = 0; row < kept; row += 1) {
      const key = this._key(this.columns, row);
      if (key !== null) this.byKey.set(key, row);
      this._index(row);
    }
    for (const step of this.partial) if (!this.byStep.has(step)) this.partial.delete(step);
  }
}
