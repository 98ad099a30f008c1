// Which rows a series spec and the person have chosen, and what their groups are called.

import { WORD_COLUMNS } from "./columns.js";

export const listOf = (value) => (value === undefined || value === null ? [] : Array.isArray(value) ? value : [value]);

/** Whether a word or number is what a `where` asks for. */
function wanted(text, ask) {
  if (Array.isArray(ask)) return ask.some((one) => wanted(text, one));
  if (ask !== null && typeof ask === "object") return !wanted(text, ask.not);
  if (typeof ask === "boolean") return Number(text) === Number(ask);
  const asked = String(ask);
  return asked.endsWith("*") ? String(text).startsWith(asked.slice(0, -1)) : String(text) === asked;
}

/** A test of rows: the spec's `where`, and what the person has chosen of role, rank and phase. */
export function matcher(store, table, spec) {
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

export function isStep(store, table, row) {
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
export function groupLabel(store, spec, table, names, values) {
  const shown = names.map((name, at) => {
    const text = label(store, table, name, values[at]);
    return name === "rank" && values[at] >= 0 ? `rank ${text}` : spec.names?.[text] || text;
  });
  return [...new Set(shown)].join(" · ");
}
