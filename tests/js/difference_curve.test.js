// The mean difference by token: its line with gaps, its ticks, and what is said of it.

import assert from "node:assert/strict";
import { test } from "node:test";

import { curveInWords, levelsOf, lineOf, roundUp, ticksOf } from "../../probe/views/panel/static/src/difference_curve.js";

/** @import { DifferenceCurve } from "../../probe/views/panel/static/src/finding_types.js" */

/** @type {DifferenceCurve} */
const CURVE = { begin: -20, width: 10, answers: [4, 9], place: 30, concerned: [0.1, null, 2, 3, 1], others: [0.1, 0.1, 0.1, null, 0.1] };

test("a point that isn't known is a gap, and one without neighbours a short dash", () => {
  assert.equal(lineOf([0, 1, null, 1, 0], 1), "M100.00 100.00L300.00 0.00M700.00 0.00L900.00 100.00");
  assert.equal(lineOf([null, 0.5, null, null], 1), "M312.50 50.00h125.00");
  assert.equal(lineOf([null, null], 1), "");
});

test("an axis ends at a round number, and the first token that differs has a tick where it is within the picture", () => {
  assert.deepEqual([0.31, 0.5, 1, 2.2, 7, 0.03].map(roundUp), [0.5, 0.5, 1, 5, 10, 0.05]);
  assert.deepEqual(ticksOf(CURVE), [[-20, 0], [-10, 0.2], [0, 0.4], [10, 0.6], [20, 0.8], [30, 1]]);
});

test("it is said how large the differences are before that token and from it on", () => {
  assert.deepEqual(levelsOf(CURVE), [0.1, 2]);
  assert.equal(curveInWords(CURVE), "Mean difference by token, median of the points: 0.1 nats before the first token that differs, 2 nats from it on.");
  assert.deepEqual(levelsOf({ ...CURVE, begin: 0, concerned: [1, 2] }), [null, 1]);
  assert.equal(curveInWords({ ...CURVE, begin: 0, concerned: [1, 2] }), "Mean difference by token, median of the points: 1 nats from it on.");
});
