// A cell of a live table as text.

import { WORD_COLUMNS } from "./columns.js";
import { clockText } from "./ranges.js";
import { spell } from "./words.js";

const COLUMN_UNITS = {
  t: "clock", begin: "clock", end: "clock", duration: "s", bytes_in: "bytes", bytes_out: "bytes", peak: "bytes", reserved_peak: "bytes", at_begin: "bytes",
  at_end: "bytes", allocated: "bytes", reserved: "bytes", non_torch: "bytes", used: "bytes", total: "bytes", bytes: "bytes", tokens: "tokens",
};

export const FLAGS = { off: ["switched off", ""], own: ["probe's own", ""], over: ["over the cap", ""] };

export const COLUMN_TITLES = { t: "time", off: "listener", own: "by", rows_in: "rows in", rows_out: "rows out", bytes_in: "bytes in", bytes_out: "bytes out", chosen_by: "chosen by", nan: "NaN" };

/** A cell of a live table as text. */
export function cellText(name, value) {
  if (WORD_COLUMNS.has(name)) return value;
  if (name in FLAGS) return FLAGS[name][value ? 0 : 1];
  if (value === null || value === undefined || Number.isNaN(value)) return "";
  const unit = COLUMN_UNITS[name];
  if (unit === "clock") return clockText(value, 0.1);
  if (["step", "rank", "micro_batch", "batch"].includes(name)) return String(value);
  return spell(value, unit || "number");
}
