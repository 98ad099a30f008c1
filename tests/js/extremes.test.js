// The newest value of a line: what is missing isn't a value, and what was logged as NaN is.

import assert from "node:assert/strict";
import { test } from "node:test";

import { newest } from "../../probe/views/panel/static/src/extremes.js";

test("the newest value of a metric that became NaN is NaN, and not the last number it had", () => {
  assert.ok(Number.isNaN(newest([0.9, 0.7, NaN], true)));
  assert.equal(newest([0.9, 0.7], true), 0.7);
});

test("of lines that share their steps the newest value is the last that is there", () => {
  assert.equal(newest([0.9, 0.7, NaN], false), 0.7);
  assert.ok(Number.isNaN(newest([], true)));
});
