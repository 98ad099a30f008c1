// How tokens are coloured.

import assert from "node:assert/strict";
import { test } from "node:test";

import { COLOURINGS, colouringsOf, confidentAt, numbersOf, sizeAt, turnsOf } from "../../probe/views/panel/static/src/colouring.js";

const ROLLOUT = Float32Array.of(-1, -1, -1, -1, -1);
const ARRAYS = { rollout_log_probs: ROLLOUT, log_probs: Float32Array.of(-1, -1.01, -3, 1, NaN), mask: Float32Array.of(1, 0, 1, 1, 1), clipped_passes: Float32Array.of(0, 0, 2, 0, 0) };

/**
 * @param {string} name
 * @param {Record<string, Float32Array>} [arrays]
 */
const tones = (name, arrays = ARRAYS) => Array.from(arrays.rollout_log_probs ?? Object.values(arrays)[0], (_, at) => COLOURINGS[name].make(arrays).of(at)[0]);

test("a difference has two directions, noise has no colour, and NaN is neither", () => {
  assert.deepEqual(tones("difference"), ["nothing", "nothing", "less", "more", "broken"]);
  assert.deepEqual(COLOURINGS.difference.make(ARRAYS).of(2), ["less", 1]);
  assert.match(COLOURINGS.difference.make(ARRAYS).scale, /^−2 … 0 … 2 nats; no colour between −0.12 and 0.12$/);
});

test("where nothing differs much the scale doesn't make it look so", () => {
  const quiet = { rollout_log_probs: ROLLOUT, log_probs: Float32Array.of(-1.02, -0.99, -1.01, -1, -1.03) };
  assert.deepEqual(new Set(tones("difference", quiet)), new Set(["nothing"]));
});

test("what a tool said has no colour and doesn't set the scale; a token that was sampled and left out has its own", () => {
  const turns = { rollout_log_probs: Float32Array.of(-1, -2, 0, 0), log_probs: Float32Array.of(-2, -3.5, -11, -12), mask: Float32Array.of(1, 0, 0, 0) };
  assert.deepEqual(tones("difference", turns), ["less", "less", "nothing", "nothing"]);
  assert.match(COLOURINGS.difference.make(turns).scale, /^−1.5 … 0 … 1.5 nats/);
  assert.deepEqual(tones("ratio", turns), ["less", "less", "nothing", "nothing"]);
});

test("a token that one side is sure of and the other finds unlikely has a dot, where the loss counts it", () => {
  const [sure, doubt, unlikely] = [0.5, 0.49, 0.05].map((one) => Math.log(one) + 1e-6);
  const arrays = {
    rollout_log_probs: Float32Array.of(sure, -4, doubt, sure, sure, sure, NaN, sure),
    log_probs: Float32Array.of(-4, sure, -4, unlikely + 1e-3, -4, NaN, sure, -Infinity),
    mask: Float32Array.of(1, 1, 1, 1, 0, 1, 1, 1),
  };
  const marked = Array.from(arrays.mask, (_, at) => confidentAt(arrays, at));
  assert.deepEqual(marked, [true, true, false, false, false, false, false, false]);
  for (const name of ["difference", "ratio"]) assert.deepEqual(marked.map((_, at) => COLOURINGS[name].make(arrays).dotted?.(at)), marked);
  assert.equal(COLOURINGS.mask.make(arrays).dotted, undefined);
  assert.equal(COLOURINGS.difference.make(ARRAYS).dotted, undefined, "without such a token nothing is said of dots");
  assert.equal(confidentAt({ mask: arrays.mask }, 0), false);
});

test("the ratio is said as a factor", () => {
  assert.match(COLOURINGS.ratio.make(ARRAYS).scale, /^×0.135 … ×1 … ×7.39/);
});

test("the mask tells what the loss leaves out, and what was clipped", () => {
  assert.deepEqual(tones("mask"), ["nothing", "out", "held", "nothing", "nothing"]);
});

test("only colourings whose numbers are known are offered", () => {
  assert.deepEqual(colouringsOf(ARRAYS), ["difference", "ratio", "mask"]);
  assert.deepEqual(colouringsOf({ entropies: ROLLOUT }), ["entropy"]);
  assert.deepEqual(colouringsOf({}), []);
});

test("a turn begins where the loss begins to count again", () => {
  assert.deepEqual([...(turnsOf(Float32Array.of(0, 1, 1, 0, 0, 1)) ?? [])], [0, 1, 1, 1, 1, 2]);
  assert.equal(turnsOf(Float32Array.of(1, 1)), null);
  assert.equal(turnsOf(undefined), null);
});

test("sizes leave NaN out, and numbers come from base64 as they were", () => {
  assert.equal(sizeAt(Float32Array.of(NaN, -4, 1), 0.99), 4);
  assert.equal(sizeAt(Float32Array.of(NaN), 0.99), 0);
  const packed = btoa(String.fromCharCode(...new Uint8Array(Float32Array.of(0.5, -2).buffer)));
  assert.deepEqual([...numbersOf(packed)], [0.5, -2]);
});
