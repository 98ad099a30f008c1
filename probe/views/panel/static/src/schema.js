// What the live tables are. The kernel says it as data, so that no column, key or formula of a table stands here.

/** @import { Formula, TableData } from "./definition_types.js" */
/** @typedef {(name: string, row: number) => number} Get of a column's name and a row */
/** @typedef {(get: Get, row: number) => number} Formed a derived column, worked out */

/** @type {Record<string, (left: number, right: number) => number>} */
const OPERATORS = {
  "+": (left, right) => left + right,
  "-": (left, right) => left - right,
  "*": (left, right) => left * right,
  "/": (left, right) => (right === 0 ? NaN : left / right),
};

/** The units by which columns of whole numbers name something: not sums, nor sizes. */
const NAMING = new Set(["id", "word", "flag"]);

/** What one live table is. One that nobody has declared has columns of plain numbers, as they come. */
export class TableSchema {
  /** @param {Partial<TableData>} given */
  constructor(given = {}) {
    this.text = JSON.stringify(given);
    this.columns = new Map(Object.entries(given.columns ?? {}));
    /** @type {Map<string, {unit: string, value: Formed}>} */
    this.derived = new Map();
    for (const [name, [unit, formula]] of Object.entries(given.derived ?? {})) this.derived.set(name, { unit, value: formed(formula) });
    this.key = given.key ?? [];
    this.thin = given.thin ?? { scores: [], group: [], whole: false };
    this.time = given.time ?? [];
  }

  /**
   * Whether `data` says the same.
   * @param {TableData} data
   */
  says(data) {
    return JSON.stringify(data) === this.text;
  }

  /**
   * Whether a column holds codes of words.
   * @param {string} name
   */
  isWord(name) {
    return this.unit(name) === "word";
  }

  /**
   * Whether a column's values name something and are never added up.
   * @param {string} name
   */
  isNaming(name) {
    return NAMING.has(this.unit(name));
  }

  /**
   * @param {string} name
   * @returns {string} the column's unit; "number" where nobody has said one
   */
  unit(name) {
    return this.columns.get(name)?.[1] ?? this.derived.get(name)?.unit ?? "number";
  }

  /**
   * Whether a column says when a row was.
   * @param {string} name
   */
  isTime(name) {
    return this.time.includes(name);
  }
}

/**
 * A formula as a function. A missing side, and a division by 0, give NaN.
 * @param {Formula} formula
 * @returns {Formed}
 */
function formed(formula) {
  if (typeof formula === "string") return (get, row) => get(formula, row);
  if (typeof formula === "number") return () => formula;
  const [operator, left, right] = formula;
  const [made, a, b] = [OPERATORS[operator], formed(left), formed(right)];
  if (!made) throw new Error(`formula: got the operator ${operator}, expected one of ${Object.keys(OPERATORS).join(" ")}`);
  return (get, row) => made(a(get, row), b(get, row));
}
