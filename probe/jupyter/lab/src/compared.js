// What a comparison of two runs tells, as people read it: numbers in their units, and what each was found to have.

import { spell, unitWord } from "../../../views/panel/static/src/words.js";

/** @typedef {Record<string, string>} Row */

/** The server sends what is no finite number as its word. @param {unknown} value */
const numberOf = (value) => (value === null || value === undefined ? null : Number(value));

/** @param {unknown} value @param {string} unit */
function inUnit(value, unit) {
  const number = numberOf(value);
  const said = spell(number, unit);
  const word = number !== null && Number.isFinite(number) ? unitWord(unit) : "";
  return word === "×" ? `${said}×` : `${said} ${word}`.trimEnd();
}

/** A part of the first run's number, with its sign; "" where nothing can be said. @param {unknown} ratio */
function change(ratio) {
  const number = numberOf(ratio);
  if (number === null || !Number.isFinite(number)) return "";
  return `${number < 0 ? "−" : "+"}${spell(Math.abs(number), "percent")}`;
}

/** @param {Record<string, any>} row @returns {Row} */
export const metricRow = (row) => ({ metric: row.metric, a: inUnit(row.a, row.unit), b: inUnit(row.b, row.unit), change: change(row.change_ratio) });

/** @param {Record<string, any>} row @returns {Row} */
export const configRow = (row) => Object.fromEntries(Object.entries(row).map(([name, value]) => [name, spelled(value)]));

/** @param {Record<string, any>} row @returns {Row} */
export const findingRow = (row) => ({ about: row.about, a: side(row.kind_a, row.finding_a), b: side(row.kind_b, row.finding_b) });

/** @param {string | null} kind @param {string | null} sentence */
const side = (kind, sentence) => (kind === null || kind === undefined ? "–" : `${KINDS[kind] ?? kind}: ${sentence}`);

/** @type {Record<string, string>} */
const KINDS = { alarm: "Alarm", tuning: "Worth a change", fine: "In order", withheld: "Not judged" };

/** @param {unknown} value */
function spelled(value) {
  if (value === null || value === undefined) return "–";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
