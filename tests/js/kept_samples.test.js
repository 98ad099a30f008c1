// What a saved copy answers where nobody can be asked.

import assert from "node:assert/strict";
import { test } from "node:test";

import { keeps, keptAnswer, narrowedTo } from "../../probe/views/panel/static/src/kept_samples.js";

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

test("a narrowing keeps what the list would, and the line of an answer is found among that", () => {
  const lines = [{ ...line(0), changed: true, micro_batches: [1] }, { ...line(1), truncated: true, block: true, micro_batches: [0, 2] }, { ...line(2), changed: true, micro_batches: [0] }];
  const kept = { ...KEPT, rows: { ...KEPT.rows, lines } };
  /** @param {object} question */
  const rows = (question) => keptAnswer(kept, { of: "rows", count: 9, ...question });
  /** @param {object} question */
  const found = (question) => rows(question).lines.map((/** @type {{row: number}} */ { row }) => row);
  assert.deepEqual(["all", "changed", "truncated", "blocks", "failed"].map((only) => found({ only })), [[0, 1, 2], [0, 2], [1], [1], []]);
  assert.deepEqual([rows({ only: "changed" }).total, rows({ only: "changed" }).answers], [2, 2]);
  assert.deepEqual(found({ micro_batch: 0 }), [1, 2]);
  assert.deepEqual(found({ micro_batch: 0, process: "other" }), []);
  assert.deepEqual(narrowedTo([line(0)], { micro_batch: 0 }).length, 1); //  which batch trained it isn't known
  assert.equal(rows({ only: "changed", key: ["p", 0, 2] }).place, 1);
  assert.equal(rows({ only: "changed", key: ["p", 0, 1] }).place, null);
  assert.equal(rows({}).place, null);
  assert.deepEqual([keeps(kept, { step: 3, key: ["p", 0, 2], token: 0 }), keeps(kept, { step: 4, key: ["p", 0, 2], token: 0 }), keeps(kept, { step: 3, key: ["p", 0, 9], token: 0 })], [true, false, false]);
});
