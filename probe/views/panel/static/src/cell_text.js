// A cell of a live table as text.

import { clockText } from "./ranges.js";
import { seconds, spell } from "./words.js";

/** @import { TableSchema } from "./schema.js" */

/** What a flag says where it is set. @type {Record<string, string>} */
const FLAGS = { off: "switched off", own: "probe's own", over: "over the cap" };

/** Titles of columns whose names don't say enough. @type {Record<string, string>} */
const COLUMN_TITLES = { t: "time", off: "listener", own: "by", nan: "NaN" };

/** What the table of `spell` calls a unit of columns, where it has another name. @type {Record<string, string>} */
const SPELLED = { bytes: "bytes", tokens: "tokens", s: "s" };

/**
 * The head of a column.
 * @param {string} name
 */
export function columnTitle(name) {
  return COLUMN_TITLES[name] || name.replaceAll("_", " ");
}

/**
 * Whether a column is read from the left: a text, not a size.
 * @param {TableSchema} schema
 * @param {string} name
 */
export function isText(schema, name) {
  return ["word", "flag"].includes(schema.unit(name));
}

/**
 * A cell as text.
 * @param {TableSchema} schema of the cell's table
 * @param {string} name
 * @param {any} value as in a row of the table
 * @returns {string}
 */
export function cellText(schema, name, value) {
  const unit = schema.unit(name);
  if (unit === "word") return value ?? "";
  if (unit === "flag") return value ? (FLAGS[name] ?? "yes") : "";
  if (value === null || value === undefined || Number.isNaN(value)) return "";
  if (unit === "id") return String(value);
  if (unit === "ns") return seconds(value / 1e9);
  return schema.isTime(name) ? clockText(value, 0.1) : spell(value, SPELLED[unit] ?? "number");
}
