// What a saved copy answers where nobody can be asked.

import assert from "node:assert/strict";
import { test } from "node:test";

import { keptAnswer } from "../../probe/views/panel/static/src/kept_samples.js";

/** @param {number} row */
const line = (row) => ({ kind: /** @type {const} */ ("answer"), of: 0, group: "g", key: /** @type {[string, number, number]} */ (["p", 0, row]), row, response_tokens: 10 + row });

const TOKENS = { step: 3, answer: line(1), tokens: 11, arrays: { mask: "" }, ids: [], prompt: null, text: null, cut: 0 };
const KEPT = { rows: { step: 3, total: 3, answers: 3, kept: 9, sampled: 9, note: "", from: 0, lines: [line(0), line(1), line(2)] }, tokens: [TOKENS] };

test("a window of its lines is what the list asks for", () => {
  const answer = keptAnswer(KEPT, { of: "rows", from: 1, count: 5 });
  assert.deepEqual([answer.lines.map((/** @type {{row: number}} */ { row }) => row), answer.total], [[1, 2], 3]);
});

test("an answer whose tokens it keeps has them, another one its own numbers alone", () => {
  assert.equal(keptAnswer(KEPT, { of: "tokens", key: ["p", 0, 1] }), TOKENS);
  const other = keptAnswer(KEPT, { of: "tokens", key: ["p", 0, 2] });
  assert.deepEqual([other.answer?.row, other.tokens, other.arrays], [2, 12, {}]);
});
