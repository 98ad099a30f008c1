// Which rows a series spec and the person have chosen, and what their groups are called.

/** @import { Ask, Names, Spec } from "./definition_types.js" */
/** @import { LiveTable } from "./table.js" */
/** @import { Store } from "./store.js" */
/** @typedef {(row: number) => boolean} Test of a row */

/**
 * @param {Names | null | undefined} value one name, several or none
 * @returns {string[]}
 */
export const listOf = (value) => (value === undefined || value === null ? [] : Array.isArray(value) ? value : [value]);

/**
 * Whether a word or number is what a `where` asks for.
 * @param {string | number} text
 * @param {Ask} ask
 * @returns {boolean}
 */
function wanted(text, ask) {
  if (Array.isArray(ask)) return ask.some((one) => wanted(text, one));
  if (ask !== null && typeof ask === "object") return !wanted(text, ask.not);
  if (typeof ask === "boolean") return Number(text) === Number(ask);
  const asked = String(ask);
  return asked.endsWith("*") ? String(text).startsWith(asked.slice(0, -1)) : String(text) === asked;
}

/**
 * A test of rows: the spec's `where`, and what the person has chosen of role, rank and phase.
 * @param {Store} store
 * @param {LiveTable} table
 * @param {Spec} spec
 * @returns {Test}
 */
export function matcher(store, table, spec) {
  const tests = Object.entries(spec.where || {}).map(([name, ask]) => wordTest(store, table, name, ask));
  // A process without a rank is not one of the ranks.
  if ([...listOf(spec.each), ...listOf(spec.least)].includes("rank")) tests.push((row) => table.code("rank", row) !== -1);
  const free = new Set(listOf(spec.free)); //  choices that don't narrow it
  for (const name of /** @type {const} */ (["rank", "role", "phase"])) {
    const ask = store.ui[name];
    if (ask !== "" && !free.has(name)) tests.push(choiceTest(store, table, name === "rank" ? "who" : name, String(ask)));
  }
  return (row) => {
    for (const test of tests) if (!test(row)) return false;
    return true;
  };
}

/**
 * A choice narrows only tables that have its column.
 * @param {Store} store
 * @param {LiveTable} table
 * @param {string} name
 * @param {string} ask
 * @returns {Test}
 */
function choiceTest(store, table, name, ask) {
  const test = wordTest(store, table, name, ask);
  if (name === "who") return (row) => !table.columns.has(name) || test(row);
  // A step has neither role nor phase, and is what the chosen role's time is measured against.
  return (row) => !table.columns.has(name) || test(row) || isStep(store, table, row);
}

/**
 * @param {Store} store
 * @param {LiveTable} table
 * @param {number} row
 */
export function isStep(store, table, row) {
  return store.words.text(table.code("kind", row)) === "step";
}

/**
 * @param {Store} store
 * @param {LiveTable} table
 * @param {string} name
 * @param {Ask} ask
 * @returns {Test}
 */
function wordTest(store, table, name, ask) {
  const isWord = table.schema.isWord(name);
  /** @type {Map<number, boolean>} */
  const answers = new Map();
  return (row) => {
    const value = isWord ? table.code(name, row) : table.get(name, row);
    let answer = answers.get(value);
    if (answer === undefined) {
      answer = wanted(isWord ? store.words.text(value) : value, ask);
      if (answers.size < 5000) answers.set(value, answer);
    }
    return answer;
  };
}

/**
 * The text of a column's value: of a word the word, of a number the number.
 * @param {Store} store
 * @param {LiveTable} table
 * @param {string} name
 * @param {number} value
 */
function valueLabel(store, table, name, value) {
  if (name === "cause") return store.words.text(value).replaceAll("_", " ") || "no cause"; //  probe's own words
  if (table.schema.isWord(name)) return store.words.text(value) || `no ${name}`;
  return value === -1 || Number.isNaN(value) ? `no ${name.replace("_", "-")}` : String(value);
}

/**
 * What `by` calls a group: "rank 3", "actor · update".
 * @param {Store} store
 * @param {Pick<Spec, "names">} spec
 * @param {LiveTable} table
 * @param {string[]} names
 * @param {number[]} values
 */
export function groupLabel(store, spec, table, names, values) {
  const shown = names.map((name, at) => {
    const text = valueLabel(store, table, name, values[at]);
    return name === "rank" && values[at] >= 0 ? `rank ${text}` : spec.names?.[text] || text;
  });
  return [...new Set(shown)].join(" · ");
}
