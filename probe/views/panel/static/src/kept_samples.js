// What a saved copy says of samples, where nobody can be asked: the answers that it keeps, in the order that it has.

/** @import { AnswerKey, AnswerPlace, KeptSamples, Narrowing, SampleLine } from "./sample_types.js" */

/**
 * Which lines each choice keeps, as `ONLY` of `probe/analysis/step_samples.py` has it; of those that aren't here no finding
 * leads to.
 * @type {Record<string, (line: SampleLine) => boolean>}
 */
const ONLY = {
  truncated: ({ truncated }) => truncated === true,
  failed: ({ has_error: failed }) => failed === true,
  no_advantage: ({ no_advantage_tokens: tokens }) => tokens > 0,
  blocks: ({ block }) => block === true,
  changed: ({ changed }) => changed === true,
};

/**
 * The lines that a narrowing keeps.
 * @param {SampleLine[]} lines
 * @param {Partial<Narrowing>} narrowing
 */
export function narrowedTo(lines, { only = "all", micro_batch: batch = null, process = "" }) {
  const kept = Object.hasOwn(ONLY, only) ? lines.filter(ONLY[only]) : lines;
  if (batch === null) return kept;
  const inside = kept.filter(({ key, micro_batches: batches = [] }) => batches.includes(batch) && (!process || key?.[0] === process));
  return kept.some(({ micro_batches: batches = [] }) => batches.some((one) => one >= 0)) ? inside : kept;
}

/**
 * Whether a copy keeps the line of an answer.
 * @param {KeptSamples} kept
 * @param {AnswerPlace} place
 */
export const keeps = ({ rows }, { step, key }) => rows.step === step && lineOf(rows.lines, key) >= 0;

/**
 * Where the line of an answer stands; −1: it isn't there.
 * @param {SampleLine[]} lines
 * @param {AnswerKey} key
 */
function lineOf(lines, key) {
  const named = JSON.stringify(key);
  return lines.findIndex((line) => JSON.stringify(line.key) === named);
}

/**
 * The answer to a question of the view.
 * @param {KeptSamples} kept
 * @param {Record<string, any>} question
 * @returns {any} as the process that reads the run would say it
 */
export function keptAnswer({ rows, tokens }, { of, key, from = 0, count = 0, ...narrowing }) {
  if (of === "rows") {
    const lines = narrowedTo(rows.lines, narrowing);
    const place = key ? lineOf(lines, key) : -1;
    return { ...rows, from, total: lines.length, answers: lines.length, lines: lines.slice(from, from + count), place: place < 0 ? null : place };
  }
  const named = JSON.stringify(key);
  const found = tokens.find(({ answer }) => JSON.stringify(answer.key) === named);
  if (found) return found;
  const answer = rows.lines[lineOf(rows.lines, key)];
  return { step: rows.step, answer, tokens: answer?.response_tokens ?? 0, arrays: {}, ids: [], prompt: null, text: null, cut: 0 };
}
