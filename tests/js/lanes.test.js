// A step's replicas beside its trainer: what is drawn of them, and in which words.

import assert from "node:assert/strict";
import { test } from "node:test";

import { axisTicks, outline, phasesInWords } from "../../probe/views/panel/static/src/lanes.js";

test("15.6 a lane is as high as it has answers under way, each height until the next one", () => {
  assert.equal(outline([[0.1, 4], [0.5, 2], [0.75, 0]], 4), "M100.0 100H100.0V0.0H500.0V50.0H750.0V100.0V100Z");
  assert.equal(outline([], 4), "");
});

test("15.6 the axis has a few whole times and begins at 0, however long a step is", () => {
  for (const span of [0.004, 0.9, 6.965, 59, 61, 4000]) {
    const ticks = axisTicks(span);
    assert.ok(ticks.length >= 2 && ticks.length <= 5, `${span}: ${ticks.length}`);
    assert.equal(ticks[0].at, 0);
    assert.ok(ticks.every(({ at }) => at <= span * (1 + 1e-6)));
    assert.equal(new Set(ticks.map(({ text }) => text)).size, ticks.length);
  }
  assert.deepEqual(axisTicks(0), []);
  assert.deepEqual(axisTicks(6.965).map(({ text }) => text), ["0 s", "2 s", "4 s", "6 s"]);
});

test("15.6 the trainer's phases are told in the order of time, whichever is the longest", () => {
  const phases = [{ name: "generate", from: 0.01, to: 5.6, inside: false }, { name: "update", from: 5.9, to: 6.9, inside: false }, { name: "data", from: 0, to: 0.01, inside: false }];
  assert.equal(phasesInWords(phases), "Trainer: data from 0 s to 10 ms, generate from 10 ms to 5.6 s, update from 5.9 s to 6.9 s.");
  assert.equal(phasesInWords([]), "Trainer: no phase is known.");
});
