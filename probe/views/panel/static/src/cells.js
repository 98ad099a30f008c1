// The sums of one group of rows, and the number that they give.

/** How the results of each `per` are put together: the largest of them, or the smallest. @type {Record<string, (values: number[]) => number>} */
const CHOSEN = { largest, smallest: (values) => -largest(values.map((value) => -value)) };

/** What stays right in a step of which rows were dropped. */
export const TOLERANT = new Set(["max", "min", "last"]);

/**
 * What is added up of a group of rows.
 *
 * `parts` holds the sums over `each`, by slot; `inner` the same again for each value of `per` (or `least`), of which the
 * largest (or smallest) result counts.
 */
export class Cell {
  /** @param {number} [least] how many values an imbalance compares at least */
  constructor(least = 1) {
    this.least = least;
    this.sum = 0;
    this.second = 0;
    this.top = -Infinity;
    this.low = Infinity;
    this.last = NaN;
    this.count = 0;
    this.place = Infinity; //  of its text among those that are preferred
    this.row = -1; //  which made the largest value; −1 where it is gone
    /** @type {Map<string, Map<string, number>> | null} */
    this.parts = null;
    /** @type {Map<string, Cell> | null} */
    this.inner = null;
  }

  /**
   * Add a row.
   * @param {number} value NaN: nothing is added
   * @param {number} second what the sum is divided by, for a ratio
   * @param {number} row
   */
  add(value, second, row) {
    this.sum += value;
    this.second += Number.isNaN(second) ? 0 : second;
    this.count += 1;
    this.last = value;
    if (value > this.top) [this.top, this.row] = [value, row];
    if (value < this.low) this.low = value;
  }

  /**
   * @param {string} slot
   * @param {string} each
   * @param {number} value
   */
  addPart(slot, each, value) {
    this.parts ??= new Map();
    let parts = this.parts.get(slot);
    if (!parts) this.parts.set(slot, (parts = new Map()));
    parts.set(each, (parts.get(each) ?? 0) + value);
  }

  /**
   * The cell of one value of `per`.
   * @param {string} key
   * @returns {Cell}
   */
  within(key) {
    this.inner ??= new Map();
    let cell = this.inner.get(key);
    if (!cell) this.inner.set(key, (cell = new Cell(this.least)));
    return cell;
  }

  /** @param {Cell} other */
  merge(other) {
    this.sum += other.sum;
    this.second += other.second;
    this.count += other.count;
    this.last = Number.isNaN(other.last) ? this.last : other.last;
    if (other.top > this.top) [this.top, this.row] = [other.top, other.row];
    this.low = Math.min(this.low, other.low);
    for (const [slot, parts] of other.parts ?? []) for (const [each, value] of parts) this.addPart(slot, each, value);
    for (const [key, cell] of other.inner ?? []) this.within(key).merge(cell);
  }

  /** The numbers of its rows are wrong from now on; its sums are right. */
  forgetRows() {
    this.row = -1;
    for (const cell of this.inner?.values() ?? []) cell.forgetRows();
  }

  /** Some of its rows are gone: there is no number any more. */
  forgetAll() {
    Object.assign(this, new Cell(this.least));
  }

  /**
   * The number of the group.
   * @param {string} how the reducer
   * @param {string} [which] of the inner ones counts, "largest" or "smallest"
   * @returns {number} NaN where there is none
   */
  value(how, which = "largest") {
    if (this.inner) return CHOSEN[which]([...this.inner.values()].map((cell) => cell.value(how)));
    if (!this.count) return NaN;
    if (how === "ratio") return this.second ? this.sum / this.second : NaN;
    if (how === "imbalance") return imbalance([...(this.parts ?? new Map()).values()], this.least);
    return this.parts ? overParts(this.parts.get("") ?? new Map(), how) : this._overRows(how);
  }

  /**
   * Reduced over the rows.
   * @param {string} how
   */
  _overRows(how) {
    if (how === "max") return this.top;
    if (how === "min") return this.low;
    if (how === "mean") return this.sum / this.count;
    if (how === "last") return this.last;
    return how === "count" ? this.count : this.sum;
  }

  /**
   * The row that the number is owed to, −1 where it is gone.
   * @param {string} how
   * @param {string} [which]
   * @returns {number}
   */
  maker(how, which = "largest") {
    if (!this.inner) return this.row;
    const cells = [...this.inner.values()];
    const values = cells.map((cell) => cell.value(how));
    return cells[values.indexOf(CHOSEN[which](values))]?.row ?? this.row;
  }
}

/**
 * @param {number[]} values
 * @returns {number} the largest that is one; NaN where none is
 */
export function largest(values) {
  let found = NaN;
  for (const value of values) if (!(value <= found) && !Number.isNaN(value)) found = value;
  return found;
}

/**
 * Reduced over the sums of `each`.
 * @param {Map<string, number>} parts
 * @param {string} how
 */
function overParts(parts, how) {
  const values = [...parts.values()];
  if (how === "max") return Math.max(...values);
  if (how === "min") return Math.min(...values);
  if (how === "count") return values.length;
  if (how === "last") return parts.get([...parts.keys()].sort(byNumbers).at(-1) ?? "") ?? NaN;
  const sum = total(values);
  return how === "mean" ? sum / values.length : sum;
}

/**
 * Largest ÷ mean of each slot, summed over the slots above and below; NaN where there is nothing but 0, and where no
 * slot holds `least` values to compare.
 * @param {Map<string, number>[]} slots
 * @param {number} least
 */
function imbalance(slots, least) {
  if (!slots.some((parts) => parts.size >= least)) return NaN;
  const means = slots.map((parts) => total(parts.values()) / parts.size);
  if (slots.length === 1) {
    const [parts] = slots;
    const sum = total(parts.values());
    return sum > 0 ? (Math.max(...parts.values()) * parts.size) / sum : NaN;
  }
  const below = total(means);
  return below > 0 ? total(slots.map((parts) => Math.max(...parts.values()))) / below : NaN;
}

/** @param {Iterable<number>} values */
function total(values) {
  let sum = 0;
  for (const value of values) sum += value;
  return sum;
}

/**
 * Keys of several numbers in the order of these.
 * @param {string} a
 * @param {string} b
 */
function byNumbers(a, b) {
  const [left, right] = [a, b].map((one) => one.split("|").map(Number));
  const at = left.findIndex((value, index) => value !== right[index]);
  return at < 0 ? 0 : left[at] - right[at];
}
