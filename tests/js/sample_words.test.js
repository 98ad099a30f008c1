// What the list of samples says of answers that failed, or that the loss leaves out.

import assert from "node:assert/strict";
import { test } from "node:test";

import { firstOf } from "../../probe/views/panel/static/src/samples.js";
import { answerTexts, factsOf, groupTexts, nameOf } from "../../probe/views/panel/static/src/sample_words.js";

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

test("an answer that is trained on other tokens than were sampled says so, and from where on where that is known", () => {
  assert.equal(became({ changed: true, ended: "stop" }), "other tokens than sampled · stop");
  assert.match(factsOf({ ...ANSWER, changed: true, changed_at: 0 }), /other tokens than sampled; the first other token is 0/);
  assert.doesNotMatch(factsOf({ ...ANSWER, changed: true, changed_at: null }), /first other/);
  assert.equal(became({ changed: false }), "");
});

test("a long name that begins with its group's is told without that, as of verl's keys", () => {
  const group = "0b38afd1-2d6c-4b0f-9ff1-86d0a1f0b7c5";
  assert.equal(nameOf({ ...ANSWER, group, uid: `${group}_0_1` }), "…_0_1");
  assert.equal(nameOf({ ...ANSWER, group: "a", uid: "a_0_1" }), "a_0_1");
  assert.equal(nameOf({ ...ANSWER, group: "", uid: `${group}_0_1` }), `${group}_0_1`);
  assert.equal(nameOf({ ...ANSWER, group, uid: group }), "Answer 3");
});

test("a group counts them, and calls of tools are among the facts", () => {
  const texts = groupTexts({ kind: "group", of: 0, group: "a", answers: 8, failed: 2, truncated: 3, equal: true });
  assert.deepEqual([texts[0], texts.at(-1)], ["a: 8 answers, 3 cut off", "means of the group · equal rewards · 2 failed"]);
  const alone = groupTexts({ kind: "group", of: 0, group: "b", answers: 1, truncated: 0 });
  assert.deepEqual([alone[0], alone.at(-1)], ["b: 1 answer", ""]);
  assert.match(factsOf({ ...ANSWER, turns: 2, tools: 3 }), /2 turns; 3 tool calls/);
  assert.doesNotMatch(factsOf({ ...ANSWER, tools: 0 }), /tool/);
  assert.match(factsOf({ ...ANSWER, turns: 3, tools: 1, has_error: true }), /3 turns; 1 tool call; failed/);
});

test("a line of the list says how long a conversation was, where it is known and was one", () => {
  assert.equal(became({ turns: 3, tools: 2, ended: "stop" }), "3 turns · 2 tool calls · stop");
  assert.equal(became({ turns: 2, tools: 1, has_error: true }), "failed · 2 turns · 1 tool call");
  assert.equal(became({ turns: 1, tools: 0, ended: "stop" }), "stop");
  assert.equal(became({ turns: null, tools: null, ended: "stop" }), "stop");
});

test("of answers trained on other tokens the first that can be looked at where they begin is opened", () => {
  const line = (/** @type {object} */ more) => ({ ...ANSWER, ...more });
  const lines = [{ ...ANSWER, kind: /** @type {const} */ ("group") }, line({ changed_at: null }), line({ changed_at: 8 }), line({ block: true }), line({ changed_at: 3, block: true })];
  const first = (/** @type {number} */ many, only = "changed", sort = "difference") => firstOf(lines.slice(0, many), { only, sort });
  assert.deepEqual([first(5), first(4), first(3), first(2), first(0)], [4, 3, 2, 1, 0]);
  assert.deepEqual([first(5, "changed", "batch"), first(5, "all")], [2, 1]);
});
