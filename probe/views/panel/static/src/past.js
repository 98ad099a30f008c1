// What all steps of a long run say, where the tables had to forget rows: asked of the kernel, which reads the rows at
// rest. Until it has answered, what is there is shown.

import { listOf } from "./matching.js";

/** @import { Clock } from "./clock.js" */
/** @import { Spec } from "./definition_types.js" */
/** @import { HistoryHead, Wish } from "./message_types.js" */

/** What a series is made of: the fields of a spec that the kernel reads. */
const FIELDS = /** @type {const} */ (["table", "where", "first", "y", "by", "each", "reduce", "per", "least", "slots", "scale", "divide"]);

/** The wish for begin and end of each step. */
const CLOCK = "clock";

/** A series over all steps. */
export class Past {
  /**
   * @param {HistoryHead} head
   * @param {DataView} view
   */
  constructor({ until, series, more, n }, view) {
    const rows = Array.from({ length: series.length + 2 }, (_, row) => new Float64Array(view.buffer.slice(view.byteOffset + 8 * n * row, view.byteOffset + 8 * n * (row + 1))));
    /** The last step that it has. */
    this.until = until;
    this.steps = [...rows[0]];
    this.at = new Map(this.steps.map((step, at) => [step, at]));
    /** The largest of all series at each step. */
    this.largest = rows[1];
    /** Of each the place of its y and the values of `by`. */
    this.series = series.map(([y, ...values], at) => ({ key: `${y}|${values.join("|")}`, y, values, numbers: rows[at + 2] }));
    this.more = more;
  }
}

/** The answers, and what was asked for. */
export class Pasts {
  constructor() {
    /** @type {Map<string, Past | null>} null: there is none */
    this.known = new Map();
    /** @type {Map<string, Wish>} not sent yet */
    this.wishes = new Map();
    /** Keys without an answer. @type {Set<string>} */
    this.awaited = new Set();
    /** Steps whose rows were asked for. @type {Set<number>} */
    this.steps = new Set();
    /** Changes with answers that concern every picture: the clock, the rows of a step, another state of the run. */
    this.version = 0;
    /** Where keys without an answer are noted. @type {Set<string> | null} */
    this.noted = null;
  }

  /** All is read anew. */
  clear() {
    for (const held of [this.known, this.wishes, this.awaited, this.steps]) held.clear();
    this.version += 1;
  }

  /**
   * A series over all steps; null where it isn't there, or not yet.
   * @param {Spec} spec
   * @param {string} who the rank or process whose rows alone count
   * @returns {Past | null}
   */
  of(spec, who) {
    const asked = seriesOf(spec);
    return this._find(JSON.stringify([asked, who]), { spec: asked, who }) ?? null;
  }

  /**
   * Do something, and note what it asks for that has no answer yet.
   * @template T
   * @param {Set<string>} keys
   * @param {() => T} work
   * @returns {T}
   */
  noting(keys, work) {
    this.noted = keys;
    try {
      return work();
    } finally {
      this.noted = null;
    }
  }

  /**
   * Whether one of these has been answered.
   * @param {Set<string>} keys
   */
  answers(keys) {
    for (const key of keys) if (this.known.has(key)) return true;
    return false;
  }

  /** Ask when each step began and ended, once. */
  wantClock() {
    this._find(CLOCK, { spec: null, who: "" });
  }

  /**
   * @param {string} key
   * @param {Omit<Wish, "key">} wish
   */
  _find(key, wish) {
    const known = this.known.get(key);
    if (known === undefined) this.noted?.add(key);
    if (known === undefined && !this.awaited.has(key)) {
      this.awaited.add(key);
      this.wishes.set(key, { key, ...wish });
    }
    return known;
  }

  /** What is to be sent now. */
  take() {
    const wanted = [...this.wishes.values()];
    this.wishes.clear();
    return wanted;
  }

  /**
   * Answers have come.
   * @param {HistoryHead[]} heads
   * @param {DataView[]} buffers
   * @param {Clock} clock
   */
  learn(heads, buffers, clock) {
    for (const head of heads) {
      this.awaited.delete(head.key);
      const past = head.n ? new Past(head.key === CLOCK ? { ...head, series: [[0]] } : head, buffers[head.buffer]) : null;
      this.known.set(head.key, past);
      if (!past || head.key !== CLOCK) continue;
      clock.fill(past.steps, past.largest, past.series[0].numbers);
      this.version += 1;
    }
  }
}

/**
 * @param {Spec} spec
 * @returns {Partial<Spec>}
 */
function seriesOf(spec) {
  /** @type {Partial<Spec>} */
  const made = Object.fromEntries(FIELDS.filter((name) => spec[name] !== undefined && spec[name] !== null).map((name) => [name, spec[name]]));
  if (listOf(spec.by).length === 0) delete made.by;
  if (spec.divide) made.divide = /** @type {Spec} */ (seriesOf(spec.divide));
  return made;
}
