// What a saved copy says of samples, where nobody can be asked: the answers that it keeps, in the order that it has.

/** @import { KeptSamples } from "./sample_types.js" */

/**
 * The answer to a question of the view.
 * @param {KeptSamples} kept
 * @param {Record<string, any>} question
 * @returns {any} as the process that reads the run would say it
 */
export function keptAnswer({ rows, tokens }, { of, key, from = 0, count = 0 }) {
  if (of === "rows") return { ...rows, from, lines: rows.lines.slice(from, from + count) };
  const named = JSON.stringify(key);
  const found = tokens.find(({ answer }) => JSON.stringify(answer.key) === named);
  if (found) return found;
  const answer = rows.lines.find((line) => JSON.stringify(line.key) === named);
  return { step: rows.step, answer, tokens: answer?.response_tokens ?? 0, arrays: {}, ids: [], prompt: null, text: null, cut: 0 };
}
