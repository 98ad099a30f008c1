// Ticks, ends of axes and bins: as probe/figures/scales.py has them.

import assert from "node:assert/strict";
import { test } from "node:test";

import { binsOf, medianPlace, robustEnd, someOf, stepTicks, wholeTicks } from "../../probe/views/panel/static/src/scales.js";

test("G: whole numbers have whole ticks, each once, and at most ten", () => {
  assert.deepEqual(wholeTicks(-0.6, 2.6), [0, 1, 2]);
  assert.deepEqual(wholeTicks(4, 4), [4]);
  for (const last of [1, 9, 10, 11, 99, 100, 1999]) {
    const ticks = wholeTicks(-0.6, last + 0.6);
    assert.ok(ticks.length <= 10 && ticks.every(Number.isInteger));
    assert.equal(new Set(ticks).size, ticks.length);
  }
});

test("G: the chosen step has a tick, and its neighbours make room", () => {
  const { tickvals, ticktext } = stepTicks(0, 100, 42);
  assert.ok(tickvals.includes(42) && ticktext.includes("<b>42</b>"));
  assert.ok(!tickvals.includes(40) && tickvals.length <= 10);
  assert.ok(!stepTicks(0, 100, 400).tickvals.includes(400));
});

test("G: of many names some are said", () => {
  const names = Array.from({ length: 64 }, (_, at) => String(at));
  assert.deepEqual(someOf(names), ["0", "10", "20", "30", "40", "50", "60"]);
  assert.deepEqual(someOf(["a", "b"]), ["a", "b"]);
});

test("G: one slow first step doesn't flatten the rest, and an even course isn't cut", () => {
  const even = Array.from({ length: 50 }, (_, at) => 60 + (at % 3));
  assert.equal(robustEnd(even), null);
  const end = robustEnd([214, ...even]) ?? 0;
  assert.ok(end > 62 && end < 75);
  assert.equal(robustEnd([214]), null);
  assert.equal(robustEnd([]), null);
});

test("G: more steps than half the pixels share bars, and every step is in one", () => {
  const steps = Array.from({ length: 2000 }, (_, at) => at);
  const found = binsOf(steps, 800);
  assert.ok(found && found.bins.length <= 200);
  assert.deepEqual(found.bins.flatMap(([from, to]) => steps.slice(from, to)), steps);
  assert.equal(binsOf(steps.slice(0, 400), 800), null);
});

test("G: a median is a value that was there", () => {
  assert.equal(medianPlace([5, 9, 1, 7], 0, 4), 0);
  assert.equal(medianPlace([NaN, NaN], 0, 2), -1);
});
