// Where the marks of the figure "How far the cap can grow" stand, and what it says to whoever doesn't see it.

import assert from "node:assert/strict";
import { test } from "node:test";

import { peaksInWords, placesOf } from "../../probe/views/panel/static/src/outlook.js";

/** @type {import("../../probe/views/panel/static/src/outlook_types.js").OutlookPeaks} */
const TOLD = {
  title: "actor · update", phase: "update", sentence: "Each dot is a micro-batch; beyond 8,000 tokens nothing was seen.",
  dots: [[4000, 32], [8000, 44]], line: [[4000, 32, 31.5, 32.5], [8000, 44, 43.5, 44.5], [16000, 68, 66, 70]],
  seen: 8000, capacity: 60, now: { at: 8192, text: "8,192" }, best: { at: 13056, text: "13,056" },
  aim: { at: 13056, peak: 59, low: 58, high: 60, text: "59.0 ± 1.0" }, slope: "3.0 ± 0.1 GiB for 1,024 tokens",
  notes: [], head: [], rows: [],
};

test("every mark stands inside the picture, in the order of its numbers", () => {
  const { x, y, tokens, peaks } = placesOf(TOLD);
  const across = [4000, 8000, 8192, 13056, 16000].map(x);
  const up = [31.5, 44, 58, 60, 70].map(y);
  for (const share of [...across, ...up, ...tokens.map(x), ...peaks.map(y)]) assert.ok(share >= 0 && share <= 1, String(share));
  assert.deepEqual(across, [...across].sort((a, b) => a - b));
  assert.deepEqual(up, [...up].sort((a, b) => b - a)); //  a higher peak stands nearer the upper edge
  assert.ok(tokens.length > 1 && tokens.length <= 5 && peaks.length > 1 && peaks.length <= 5);
});

test("a capacity far above everything that was seen has its line in the picture", () => {
  const { y } = placesOf({ ...TOLD, capacity: 200 });
  assert.ok(y(200) > 0 && y(200) < y(70));
});

test("one micro-batch alone has a place", () => {
  const { x, y } = placesOf({ ...TOLD, dots: [[4000, 32]], line: [[4000, 32, 32, 32]], capacity: 32, now: null, best: null, aim: null });
  for (const share of [x(4000), y(32)]) assert.ok(share > 0 && share < 1);
});

test("words say the caps and what is expected, and nothing of a cap that isn't known", () => {
  const told = peaksInWords(TOLD);
  assert.match(told, /the capacity is 60\.0 GiB\. The cap is 8,192\. It can be 13,056, where memory peaks at 59\.0 ± 1\.0 GiB\.$/);
  assert.doesNotMatch(peaksInWords({ ...TOLD, best: null, aim: null }), /It can be/);
  assert.doesNotMatch(peaksInWords({ ...TOLD, now: null, best: null, aim: null }), /cap is/);
});
