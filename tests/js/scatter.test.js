// Which lines are drawn through dots: as `rising_line` and `no_line` in probe/figures/marks/fit.py.

import assert from "node:assert/strict";
import { test } from "node:test";

import { noLine, risingLine } from "../../probe/views/panel/static/src/scatter.js";

const FIT = { explained: 0.5, rows: 8 };
const TOKENS = [100, 200, 400, 500, 600, 700, 800, 900];

test("D: a line needs so many dots, rises, and explains its share", () => {
  assert.equal(risingLine(TOKENS, TOKENS.map((one) => 3 * one), FIT)?.slope, 3);
  assert.equal(risingLine(TOKENS.slice(0, 7), TOKENS.slice(0, 7), FIT), null);
  assert.equal(risingLine(TOKENS, TOKENS.map((one) => 10_000 - one), FIT), null);
  assert.equal(risingLine(TOKENS, [5, 1, 9, 2, 8, 1, 9, 3], FIT), null);
});

test("D: where there is no line it is said why", () => {
  assert.equal(noLine(FIT, 3), "no line: needs 8 dots of a series or more");
  assert.equal(noLine(FIT, 30), "no line: no rising line explains 50 % of the variance");
});
