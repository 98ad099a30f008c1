// Rows into micro-batches as verl 0.9.1 and fixed rows have them. That it is equal to Python's rule on a thousand batches
// is held by tests/analysis/test_what_if_in_pages.py.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Refused, cutRanks, partition } from "../../probe/views/panel/static/src/packing.js";

/** @import { PackerCut } from "../../probe/views/panel/static/src/what_if_types.js" */

/** @type {PackerCut} */
const CAPPED = { packer: "verl.rearrange_micro_batches", cap_tokens: 10, minimum_count: null, divisor: null, group_size: 1, counts_agreed: false, rows_each: null, ordered: true, strict: true };
/** @type {PackerCut} */
const FIXED = { ...CAPPED, packer: "verl.fixed_rows", cap_tokens: null, rows_each: 2 };

test("the largest differencing method, in verl's order", () => {
  assert.deepEqual(partition([8, 7, 6, 5, 4], 2), [[1, 3, 4], [0, 2]]);
  assert.deepEqual(partition([3], 1), [[0]]);
  assert.throws(() => partition([1], 2), Refused);
});

test("equal rows are told apart by their place, the later one first", () => {
  assert.deepEqual(partition([5, 5, 5, 5], 2), [[0, 3], [1, 2]]);
});

test("a cap holds, and the smallest micro-batches stand at both ends", () => {
  assert.deepEqual(cutRanks([[5, 9, 5, 1]], CAPPED), [[[1, 3], [0, 2]]]);
  assert.deepEqual(cutRanks([[9, 1, 5]], { ...CAPPED, ordered: false }).map((parts) => parts.length), [2]);
});

test("ranks that agree on a count have as many micro-batches as the one that needs most", () => {
  assert.deepEqual(cutRanks([[5, 5], [9, 9]], CAPPED).map((parts) => parts.length), [1, 2]);
  assert.deepEqual(cutRanks([[5, 5], [9, 9]], { ...CAPPED, counts_agreed: true }), [[[1], [0]], [[1], [0]]]);
});

test("groups stay together, and counts are multiples of a divisor", () => {
  assert.deepEqual(cutRanks([[2, 3, 4, 1, 1, 1]], { ...CAPPED, group_size: 2 }).flat(2).map((row, at, all) => (at % 2 ? row - all[at - 1] : 1)), [1, 1, 1, 1, 1, 1]);
  assert.equal(cutRanks([[2, 3, 4, 1]], { ...CAPPED, divisor: 2 })[0].length, 2);
});

test("fixed rows are neighbours; verl wants them shared equally, TRL leaves a rest", () => {
  assert.deepEqual(cutRanks([[1, 1, 1, 1]], FIXED), [[[0, 1], [2, 3]]]);
  assert.throws(() => cutRanks([[1, 1, 1]], FIXED), Refused);
  assert.deepEqual(cutRanks([[1, 1, 1]], { ...FIXED, packer: "trl.fixed_rows" }), [[[0, 1], [2]]]);
});

test("what can't be cut is refused with the reason", () => {
  assert.throws(() => cutRanks([[5, 1200]], { ...CAPPED, cap_tokens: 1000 }), /The longest row has 1,200 tokens, which is above a cap of 1,000\./);
  assert.throws(() => cutRanks([[2 ** 27]], { ...CAPPED, cap_tokens: 2 ** 30 }), /too long to be packed in a page/);
  assert.throws(() => cutRanks([[1]], { ...CAPPED, cap_tokens: null }), /The cap isn't known/);
});
