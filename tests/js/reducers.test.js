// The reducers: what a series spec makes of rows.

import assert from "node:assert/strict";
import { test } from "node:test";

import { StepLines, largestByStep, totalOf } from "../../probe/views/panel/static/src/step_lines.js";
import { Store } from "../../probe/views/panel/static/src/store.js";
import { Encoder, SCHEMA } from "./rows.js";

/** @import { Spec } from "../../probe/views/panel/static/src/definition_types.js" */
/** @import { PlainRow } from "./rows.js" */

/** Two ranks with two batches of two micro-batches: the first is even, in the second rank 1 has three times as much. */
const ROWS = [
  [0, 1, [10, 10]], [1, 1, [10, 10]],
  [0, 2, [5, 15]], [1, 2, [45, 15]],
].flatMap(([rank, round, tokens]) => /** @type {number[]} */ (tokens).map((one, at) => (
  { step: 1, rank: Number(rank), process: `rank-${rank}`, who: `rank ${rank}`, phase: "update", batch: Number(round), round: Number(round), micro_batch: at, tokens: one, cap: 50 })));

/**
 * The value at each step.
 * @param {Partial<Spec>} spec
 * @param {PlainRow[]} rows
 */
function values(spec, rows = ROWS) {
  const [store, encoder] = [new Store({ schema: SCHEMA }), new Encoder()];
  store.receive(...encoder.delta("micro", rows));
  const lines = new StepLines(store, { table: "micro", y: "tokens", ...spec });
  lines.pull();
  return largestByStep(lines).values;
}

test("each reducer", () => {
  assert.deepEqual(values({}), [45]);
  assert.deepEqual(values({ reduce: "min" }), [5]);
  assert.deepEqual(values({ reduce: "sum" }), [120]);
  assert.deepEqual(values({ reduce: "mean" }), [15]);
  assert.deepEqual(values({ reduce: "count" }), [8]);
  assert.deepEqual(values({ reduce: "last" }), [15]);
  assert.deepEqual(values({ reduce: "ratio", y: ["tokens", "cap"] }), [120 / 400]);
  assert.deepEqual(values({ reduce: "max", y: "use" }), [0.9]);
});

test("sums over each are reduced, counted and averaged", () => {
  assert.deepEqual(values({ each: "rank" }), [80]);
  assert.deepEqual(values({ each: "rank", reduce: "min" }), [40]);
  assert.deepEqual(values({ each: "rank", reduce: "mean" }), [60]);
  assert.deepEqual(values({ each: "rank", reduce: "count" }), [2]);
  assert.deepEqual(values({ each: "rank", reduce: "imbalance" }), [80 / 60]);
});

test("per: ranks wait for each batch, so the worst batch counts and not the sum of them", () => {
  assert.deepEqual(values({ each: "rank", reduce: "imbalance", per: "round" }), [60 / 40]);
  assert.deepEqual(values({ each: "micro_batch", reduce: "imbalance", per: ["round", "rank"] }), [45 / 30]);
  assert.deepEqual(values({ reduce: "ratio", y: ["tokens", "cap"], per: "round" }), [80 / 200]);
});

test("slots: largest and mean of each slot are summed", () => {
  // Round 2: micro-batch 0 has 5 and 45, micro-batch 1 has 15 and 15.
  assert.deepEqual(values({ each: "rank", slots: "micro_batch", per: "round", reduce: "imbalance" }), [(45 + 15) / (25 + 15)]);
});

test("a mean of a slot is over those that are there", () => {
  const rows = ROWS.filter((row) => row.rank === 0 || row.micro_batch === 0);
  assert.deepEqual(values({ each: "rank", slots: "micro_batch", per: "round", reduce: "imbalance" }, rows), [(45 + 15) / (25 + 15)]);
});

test("D: a lone rank is compared with nobody, also where it is the only one of a batch or the one that was chosen", () => {
  const alone = ROWS.filter((row) => row.rank === 1);
  for (const slots of [undefined, "micro_batch"]) assert.deepEqual(values({ each: "rank", slots, per: "round", reduce: "imbalance" }, alone), [NaN]);
  const later = ROWS.filter((row) => row.rank === 1 || row.round === 1);
  assert.deepEqual(values({ each: "rank", reduce: "imbalance", per: "round" }, later), [1]);
  assert.deepEqual(values({ each: "micro_batch", reduce: "imbalance", per: ["round", "rank"] }, alone), [45 / 30]);
  const [store, encoder] = [new Store({ schema: SCHEMA }), new Encoder()];
  store.receive(...encoder.delta("micro", ROWS));
  store.choose({ rank: "rank 1" });
  const lines = new StepLines(store, { table: "micro", y: "tokens", each: "rank", reduce: "imbalance" });
  lines.pull();
  assert.deepEqual([lines.steps, largestByStep(lines).values], [[1], [NaN]]);
});

test("nothing but 0 tokens has no imbalance", () => {
  const rows = ROWS.map((row) => ({ ...row, tokens: 0 }));
  for (const slots of [undefined, "micro_batch"]) assert.deepEqual(values({ each: "rank", slots, per: "round", reduce: "imbalance" }, rows), [NaN]);
});

test("a process without a rank is none of the ranks", () => {
  const rows = [...ROWS, { ...ROWS[0], rank: null, process: "launcher", tokens: 500 }];
  assert.deepEqual(values({ each: "rank", reduce: "imbalance" }, rows), [80 / 60]);
  assert.deepEqual(values({ reduce: "max" }, rows), [500]);
});

test("scale multiplies at the end, also of what divides", () => {
  assert.deepEqual(values({ reduce: "sum", scale: 2 }), [240]);
  assert.deepEqual(values({ each: "rank", reduce: "imbalance", per: "round", scale: 2 }), [3]);
  assert.deepEqual(values({ reduce: "sum", scale: 2, divide: { table: "micro", reduce: "count", scale: 4 } }), [(120 / 32) * 2]);
});

test("where: words, prefixes, lists and what is not", () => {
  assert.deepEqual(values({ reduce: "sum", where: { phase: "upd*", rank: [0] } }), [40]);
  assert.deepEqual(values({ reduce: "sum", where: { rank: { not: 0 } } }), [80]);
  assert.deepEqual(values({ reduce: "sum", where: { process: ["rank-1", "nobody"] } }), [80]);
});

test("sums are the same however the rows come", () => {
  const [store, encoder] = [new Store({ schema: SCHEMA }), new Encoder()];
  const spec = { table: "micro", y: "tokens", each: "rank", per: "round", reduce: "imbalance" };
  const lines = new StepLines(store, spec);
  for (const row of ROWS) {
    store.receive(...encoder.delta("micro", [row]));
    lines.pull();
  }
  assert.deepEqual(largestByStep(lines).values, values(spec));
});

test("the sum over a run counts what has no step", () => {
  const [store, encoder] = [new Store({ schema: SCHEMA }), new Encoder()];
  store.receive(...encoder.delta("micro", [...ROWS, { ...ROWS[0], step: null, batch: 9, tokens: 3 }, { ...ROWS[0], step: 2, batch: 10, tokens: 4 }]));
  const lines = new StepLines(store, { table: "micro", y: "tokens", reduce: "sum", scale: 2 });
  lines.pull();
  assert.equal(totalOf(lines), 2 * 127);
  assert.equal(totalOf(lines, 1), 2 * 123);
});
