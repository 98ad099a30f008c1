// Lines over many steps: points that several steps share.

import assert from "node:assert/strict";
import { test } from "node:test";

import { spread } from "../../probe/views/panel/static/src/callouts.js";
import { binned } from "../../probe/views/panel/static/src/step_lines.js";

const STEPS = Array.from({ length: 2000 }, (_, at) => at);

test("G: of 2,000 steps a line shows the median of some, and their range holds every one", () => {
  const values = STEPS.map((step) => (step === 777 ? 9 : 1));
  const { xs, series: [line], steps } = binned({ xs: STEPS, series: [{ key: "0", label: "a", values }] }, [0, 1999], 800);
  assert.ok(xs.length <= 200 && steps === 10);
  assert.ok([...line.values].every((one) => one === 1));
  assert.deepEqual([Math.max(...line.high ?? []), line.top], [9, [777, 9]]);
});

test("G: a part that is zoomed into shows each of its steps", () => {
  const { xs, steps } = binned({ xs: STEPS, series: [{ key: "0", label: "a", values: STEPS }] }, [100, 140], 800);
  assert.deepEqual([xs, steps], [STEPS.slice(100, 141), undefined]);
});

test("G: names that would touch are moved apart, and no further than need be", () => {
  assert.deepEqual(spread([10, 50, 90], 15, 200), [10, 50, 90]);
  assert.deepEqual(spread([10, 12, 90], 15, 200), [3.5, 18.5, 90]);
  assert.deepEqual(spread([198, 199], 15, 200), [185, 200]);
});
