// In which order runs are listed.

import { title } from "./words.js";

/** @import { Run } from "./types.js" */

/** @type {Record<string, (a: Run, b: Run) => number>} */
export const ORDERS = {
  newest: (a, b) => (b.started_s ?? 0) - (a.started_s ?? 0),
  name: (a, b) => title(a).localeCompare(title(b)),
  worst: (a, b) => weight(b) - weight(a) || (b.started_s ?? 0) - (a.started_s ?? 0),
};

/** @type {Record<string, number>} */
const WEIGHTS = { alarm: 3, tuning: 2 };

/** @param {Run} run */
const weight = ({ verdict: found }) => (WEIGHTS[found?.worst?.kind ?? ""] ?? 1) + (found ? 1 : 0);
