// What the list of samples says of answers that failed, or that the loss leaves out.

import assert from "node:assert/strict";
import { test } from "node:test";

import { answerTexts, factsOf, groupTexts } from "../../probe/views/panel/static/src/sample_words.js";

/** @import { SampleLine } from "../../probe/views/panel/static/src/sample_types.js" */

/** @type {SampleLine} */
const ANSWER = { kind: "answer", of: 0, group: "a", row: 3, reward: 0, response_tokens: 2, micro_batches: [] };

/** @param {Partial<SampleLine>} line */
const became = (line) => answerTexts({ ...ANSWER, ...line }).at(-1);

test("an answer that failed says so once, and one that the loss leaves out that", () => {
  assert.equal(became({ has_error: true, masked: true, ended: "stop" }), "failed · not in the loss · stop");
  assert.equal(became({ has_error: true, dropped: "failed", masked: true }), "dropped: failed");
  assert.equal(became({ has_error: false, masked: false, ended: "stop" }), "stop");
  assert.equal(became({ has_error: null, masked: null }), "");
});

test("a group counts them, and calls of tools are among the facts", () => {
  assert.equal(groupTexts({ kind: "group", of: 0, group: "a", answers: 4, failed: 2, truncated: 1 }).at(-1), "2 failed · 1 truncated");
  assert.match(factsOf({ ...ANSWER, turns: 2, tools: 3 }), /2 turns; 3 tool calls/);
  assert.doesNotMatch(factsOf({ ...ANSWER, tools: 0 }), /tool/);
});
