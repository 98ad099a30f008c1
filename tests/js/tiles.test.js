// What a tile says: as `meaning` and `why_missing` in probe/dashboards/standing.py.

import assert from "node:assert/strict";
import { test } from "node:test";

import { median } from "../../probe/views/panel/static/src/medians.js";
import { extentText, lastOf, meaning, whyMissing } from "../../probe/views/panel/static/src/tiles.js";

const MEANS = { good: "There is room.", warn: "It may not fit.", alarm: "It won't fit." };
const TILE = { id: "a", title: "A", table: "spans", y: "peak", means: MEANS };

test("D: without a value a tile means nothing", () => {
  for (const limits of [{}, { warn: 0.8 }]) assert.equal(meaning({ ...TILE, ...limits }, NaN, "none"), "");
});

test("D: with a value it says what its limits say, and where there are none what it always means", () => {
  assert.equal(meaning({ ...TILE, warn: 0.8 }, 1, "warn"), "It may not fit.");
  assert.equal(meaning(TILE, 1, "none"), "There is room.");
});

test("D: a value that can't be compared with its limits is not judged", () => {
  assert.equal(meaning({ ...TILE, warn: 0.8, capacity: { table: "memory", y: "total" } }, 1, "none"), "No capacity is known to compare it with.");
  assert.equal(meaning({ ...TILE, alarm: 0.8 }, 1, "none"), "");
});

test("D: the reason is that there are no rows, or that they have no value", () => {
  const missing = { rows: "nothing was cut", value: "needs two ranks or more" };
  assert.equal(whyMissing({ ...TILE, missing }, false), "nothing was cut");
  assert.equal(whyMissing({ ...TILE, missing }, true), "needs two ranks or more");
  assert.equal(whyMissing({ ...TILE, missing: { rows: "nothing was cut" } }, true), "nothing was cut");
  assert.equal(whyMissing(TILE, false), "Not measured.");
});

test("D: the window is of the last steps that have a value, and its median is what is judged", () => {
  assert.deepEqual(lastOf([9, 3, NaN, 1, NaN], 2), [3, 1]);
  assert.equal(median([9, 1, 2]), 2);
  assert.equal(median([9, 1, 2, 4]), 3);
  assert.ok(Number.isNaN(median([])));
});

test("G: an extent says its unit once where both ends have the same", () => {
  const text = (/** @type {number[]} */ values, unit = "s") => extentText(values, unit).replaceAll("\u00a0", " ");
  assert.equal(text([63, 59.6, 61]), "59.6 to 63 s");
  assert.equal(text([0.5, 2]), "500 ms to 2 s");
  assert.equal(text([2, 2]), "2 s");
  assert.equal(text([0.1, 0.2], "number"), "0.1 to 0.2");
});
