// The settings that a person turns, and what they come to as questions and as text.

import assert from "node:assert/strict";
import { test } from "node:test";

import { asked, changesOf, counts, linesOf, overridesOf, placeOf } from "../../probe/views/panel/static/src/what_if_settings.js";

/** @import { SettingTold } from "../../probe/views/panel/static/src/what_if_types.js" */

/** @param {Partial<SettingTold> & {name: string, value: number | boolean}} told @returns {SettingTold} */
const setting = (told) => ({ key: `actor.${told.name}`, choices: [told.value], free: false, known: true, rows: 1, product: null, beside: [], ...told });

const CAP = setting({ name: "cap_tokens", value: 8192, choices: [4096, 8192, 16384], free: true });
const ROWS = setting({ name: "rows_each", value: 4, choices: [1, 2, 4, 8], known: false });
const DYNAMIC = setting({ name: "dynamic", value: true, choices: [false, true] });
const BALANCE = setting({ name: "balance", key: "trainer.balance_batch", value: true, choices: [false, true] });
const ALL = [CAP, ROWS, DYNAMIC, BALANCE];

test("nothing turned changes nothing", () => {
  assert.deepEqual(changesOf(ALL, {}), {});
  assert.deepEqual(changesOf(ALL, { cap_tokens: 8192 }), {});
  assert.equal(overridesOf(linesOf(ALL, {})), "");
});

test("a cap counts only where batches are cut by tokens, rows only where they are fixed", () => {
  assert.deepEqual([CAP, ROWS].map((one) => counts(one, ALL, {})), [true, false]);
  assert.deepEqual([CAP, ROWS].map((one) => counts(one, ALL, { dynamic: false })), [false, true]);
  assert.deepEqual(changesOf(ALL, { dynamic: false, cap_tokens: 4096 }), { rows_each: 4, dynamic: false });
  assert.equal(counts(CAP, [CAP], {}), true);
});

test("what has to be turned with a switch is turned with it", () => {
  const both = setting({ name: "dynamic", value: true, choices: [false, true], beside: ["rollout.dynamic"] });
  assert.equal(overridesOf(linesOf([both], { dynamic: false })), "actor.dynamic=false\nrollout.dynamic=false");
});

test("the change as overrides, and what wasn't set before says so", () => {
  const lines = linesOf(ALL, { dynamic: false, rows_each: 8, balance: false });
  assert.equal(overridesOf(lines), "actor.rows_each=8\nactor.dynamic=false\ntrainer.balance_batch=false");
  assert.deepEqual(lines.map(({ was }) => was), [null, true, true]);
  assert.deepEqual(changesOf(ALL, { balance: false }), { balance: "none" });
});

test("rows that a key stands for, and another key that goes down as it goes up", () => {
  const device = setting({ name: "rows_each", key: "per_device_train_batch_size", value: 2, choices: [1, 2, 4], rows: 3, product: ["gradient_accumulation_steps", 16] });
  assert.deepEqual(changesOf([device], { rows_each: 4 }), { rows_each: 12 });
  assert.equal(overridesOf(linesOf([device], { rows_each: 4 })), "per_device_train_batch_size=4\ngradient_accumulation_steps=4");
});

test("what is typed becomes what can be asked for", () => {
  assert.equal(asked(CAP, 5000.4), 5000);
  assert.equal(asked(ROWS, 7), 8);
  assert.deepEqual([0, -1, NaN, 2 ** 40].map((typed) => asked(CAP, typed)), [null, null, null, null]);
  assert.equal(placeOf(CAP, 9000), 1);
});
