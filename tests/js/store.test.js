// The store: messages, gaps, keyframes, rows that replace each other, and tables that nobody here has heard of.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Store } from "../../probe/views/panel/static/src/store.js";
import { Encoder, SCHEMA } from "./rows.js";

/** @import { TableData } from "../../probe/views/panel/static/src/definition_types.js" */

/** @param {number} rank @param {number} tokens @param {object} more */
const micro = (rank, tokens, more = {}) => ({ step: 1, rank, process: `rank-${rank}`, who: `rank ${rank}`, phase: "update", batch: 1, round: 1, micro_batch: 0, tokens, cap: 100, ...more });

function made(limits = {}) {
  return { store: new Store({ schema: SCHEMA, limits }), encoder: new Encoder() };
}

test("rows come out as they went in, words as texts and missing numbers as NaN", () => {
  const { store, encoder } = made();
  store.receive(...encoder.delta("micro", [micro(0, 5), micro(1, 7, { cap: null })]));
  const row = store.table("micro").row(1, store.words);
  assert.equal(row.process, "rank-1");
  assert.equal(row.tokens, 7);
  assert.ok(Number.isNaN(row.cap) && Number.isNaN(row.use));
  assert.equal(store.table("micro").row(0, store.words).use, 0.05);
  assert.deepEqual([...store.ranks].map((code) => store.words.text(code)), ["rank 0", "rank 1"]);
});

test("a derived column is worked out of the kernel's formula, and a division by 0 is missing", () => {
  const { store, encoder } = made();
  store.receive(...encoder.delta("micro", [micro(0, 5, { cap: 0 }), micro(1, 30)]));
  const table = store.table("micro");
  assert.ok(Number.isNaN(table.get("use", 0)));
  assert.equal(table.get("left", 0), -5);
  assert.equal(table.get("left", 1), 70);
});

test("rows with equal keys replace each other, and those without a last key none", () => {
  const { store, encoder } = made();
  store.receive(...encoder.delta("spans", [{ step: 1, rank: 0, scope: 3, begin: 0, peak: 1 }, { step: 1, rank: 0, scope: null, begin: 0, peak: 2 }]));
  store.receive(...encoder.delta("spans", [{ step: 1, rank: 0, scope: 3, begin: 0, end: 2, peak: 9 }, { step: 1, rank: 0, scope: null, begin: 0, peak: 4 }]));
  const table = store.table("spans");
  assert.deepEqual([0, 1, 2].map((row) => table.get("peak", row)), [9, 2, 4]);
  assert.equal(table.get("duration", 0), 2);
});

test("the same number in two processes is not the same batch", () => {
  const { store, encoder } = made();
  store.receive(...encoder.delta("micro", [micro(0, 5), micro(0, 6, { process: "rank-0.1" })]));
  assert.equal(store.table("micro").count, 2);
});

test("a missing message is noticed, and the next keyframe heals it", () => {
  const { store, encoder } = made();
  store.receive(...encoder.delta("micro", [micro(0, 5)]));
  encoder.delta("micro", [micro(1, 6)]); //  lost
  const last = encoder.delta("micro", [micro(2, 7)]);
  store.receive(...last);
  assert.equal(store.broken, true);
  assert.deepEqual(store.losses, { messages: 1, healed: 0 });
  const whole = new Encoder();
  const [head, buffers] = whole.delta("micro", [micro(0, 5), micro(1, 6), micro(2, 7)]);
  store.receive({ ...head, t: "k", seq: 4 }, buffers);
  assert.equal(store.broken, false);
  assert.equal(store.table("micro").count, 3);
  assert.equal(store.losses.healed, 4);
});

test("what comes while it is paused is added when it goes on", () => {
  const { store, encoder } = made();
  store.pause(true);
  store.receive(...encoder.delta("micro", [micro(0, 5)]));
  assert.equal(store.table("micro").count, 0);
  store.pause(false);
  assert.equal(store.table("micro").count, 1);
});

test("a table that only a message declares has words, a time and formulas", () => {
  const { store, encoder } = made();
  /** @type {TableData} */
  const pauses = {
    columns: { t: ["f8", "s"], step: ["i4", "id"], rank: ["i4", "id"], reason: ["i4", "word"], pause_ns: ["f8", "ns"] },
    derived: { pause_s: ["s", ["/", "pause_ns", 1e9]] }, key: [], thin: { scores: ["pause_ns"], group: [], whole: false }, time: ["t"],
  };
  store.table("pauses"); //  a card has asked for it before
  const [head, buffers] = encoder.delta("pauses", [{ t: 4, step: 2, rank: 0, reason: "gc", pause_ns: 5e8 }], pauses);
  store.receive({ ...head, schema: { pauses } }, buffers);
  const row = store.table("pauses").row(0, store.words);
  assert.equal(row.reason, "gc");
  assert.equal(row.pause_s, 0.5);
  assert.deepEqual(store.clock.span(2), [4, 4]);
});

test("a full table forgets, and keeps whole steps and the largest of them", () => {
  const { store, encoder } = made({ rows: 64 });
  for (let step = 1; step <= 100; step += 1) {
    const rows = [0, 1].map((rank) => micro(rank, step === 7 ? 999 : 10 + (step % 5), { step, batch: step }));
    store.receive(...encoder.delta("micro", rows));
  }
  const table = store.table("micro");
  assert.ok(table.count <= 64);
  assert.equal(table.count + table.thinned, 200);
  assert.equal(table.byStep.get(7)?.length, 2);
  for (const [step, rows] of table.byStep) if (!table.partial.has(step)) assert.equal(rows.length, 2);
  assert.equal(table.partial.size, 0);
});

test("a formula with an unknown operator is refused by name", () => {
  /** @type {TableData} */
  const wrong = { columns: { t: ["f8", "s"] }, derived: { x: ["s", ["%", "t", 2]] }, key: [], thin: { scores: [], group: [], whole: false }, time: ["t"] };
  assert.throws(() => new Store({ schema: { wrong } }), /formula: got the operator %/);
});

test("C: the last complete step is followed, what is newer is partial, and the chosen step stays", () => {
  const { store, encoder } = made();
  const [head, buffers] = encoder.delta("micro", [micro(0, 5, { step: 6 }), micro(1, 5, { step: 6 }), micro(0, 5, { step: 7 })]);
  store.receive({ ...head, state: { complete_step: 6 } }, buffers);
  assert.equal(store.clock.newest, 7);
  assert.equal(store.step, 6);
  assert.deepEqual([6, 7].map((step) => store.isPartial(step)), [false, true]);
  /** @type {string[]} */
  const told = [];
  store.listen((why) => told.push(why));
  store.receive({ v: 1, t: "s", seq: store.seq + 1, words: [], words_from: 0, state: { complete_step: 7 } }, []);
  assert.deepEqual(told, ["data"]); //  no row came, and cards show another step
  assert.equal(store.step, 7);
  store.choose({ step: 6 });
  assert.equal(store.step, 6);
});

test("C: where nothing is said of complete steps the newest is followed; before the first all are partial", () => {
  const { store, encoder } = made();
  const [head, buffers] = encoder.delta("micro", [micro(0, 5, { step: 3 })]);
  store.receive(head, buffers);
  assert.equal(store.step, 3);
  assert.equal(store.isPartial(3), false);
  store.receive({ v: 1, t: "s", seq: store.seq + 1, words: [], words_from: 0, state: { complete_step: null } }, []);
  assert.equal(store.step, 3);
  assert.equal(store.isPartial(3), true);
  store.receive({ v: 1, t: "s", seq: store.seq + 1, words: [], words_from: 0, state: { finished: true } }, []);
  assert.equal(store.isPartial(3), false);
});

test("C: while it is paused the step that is followed has rows", () => {
  const { store, encoder } = made();
  const [head, buffers] = encoder.delta("micro", [micro(0, 5, { step: 3 })]);
  store.receive({ ...head, state: { complete_step: 3 } }, buffers);
  store.pause(true);
  const [next, more] = encoder.delta("micro", [micro(0, 5, { step: 4 })]);
  store.receive({ ...next, state: { complete_step: 4 } }, more);
  assert.equal(store.step, 3);
  store.pause(false);
  assert.equal(store.step, 4);
});

test("C: a message without a number says that somebody is there, and loses nothing", () => {
  const { store, encoder } = made();
  store.receive(...encoder.delta("micro", [micro(0, 5)]));
  assert.equal(store.mute(), 0); //  nobody has said how long it may take
  store.receive({ v: 1, t: "s", seq: store.seq, words: [], words_from: 0, state: { silence_s: 6 } }, []);
  store.contact -= 7000;
  assert.ok(store.mute() >= 7);
  store.receive({ v: 1, t: "s", seq: store.seq, words: [], words_from: 0, state: { silence_s: 6 } }, []);
  assert.equal(store.mute(), 0);
  assert.equal(store.broken, false);
  assert.deepEqual(store.losses, { messages: 0, healed: 0 });
});
