// What the columns of the live tables are.

export const WORD_COLUMNS = new Set([
  "role", "phase", "kind", "name", "source", "field", "cause", "key", "reducer", "chosen_by", "point",
  "added", "removed", "error", "where", "message", "level", "peak_kind",
]);

/** Rows with the same values here replace each other. */
export const KEYS = { spans: ["rank", "scope"], padding: ["step", "rank", "source", "field", "cause", "counted"] };

/** Columns that are sums or differences of others. */
export const DERIVED = {
  spans: {
    duration: (get, row) => get("end", row) - get("begin", row),
    on_padding: (get, row) => (get("slots", row) > 0 ? (get("end", row) - get("begin", row)) * (1 - get("tokens", row) / get("slots", row)) : NaN),
  },
  micro: {
    padding: (get, row) => get("sequences", row) * get("width", row) - get("tokens", row),
    use: (get, row) => get("tokens", row) / get("cap", row),
  },
};
