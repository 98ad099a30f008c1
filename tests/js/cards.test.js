// How soon a chart is drawn again: what it costs decides, but no picture stays for long beside newer numbers.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Card } from "../../probe/views/panel/static/src/cards.js";
import { Clock } from "../../probe/views/panel/static/src/clock.js";
import { Pasts } from "../../probe/views/panel/static/src/past.js";
import { Panel } from "../../probe/views/panel/static/src/view.js";

/** A spec whose series over all steps is asked for. */
const SPEC = /** @type {any} */ ({ table: "spans", y: "duration" });

/**
 * A card without a page, whose pictures cost two seconds and ask for a series.
 * @param {Pasts} pasts
 */
function slow(pasts) {
  let clock = 0;
  const marks = new Map();
  const card = Object.create(Card.prototype);
  Object.assign(card, {
    first: false, body: {}, numbers: { hidden: true }, message: {}, place: {}, sentence: {}, definition: {}, spec: {}, awaits: new Set(), answer: -1, behind: false, tables: ["spans"],
    root: { dataset: {}, toggleAttribute: (/** @type {string} */ name, /** @type {boolean} */ on) => marks.set(name, on), setAttribute: (/** @type {string} */ name, /** @type {string} */ value) => marks.set(name, value) },
    store: { step: null, complete: 0, thins: true, pasts, root: { answers: true }, rows: 0, table: () => ({ version: card.store.rows }) },
    panel: { wake: () => undefined }, _say: () => undefined,
    mark: { draw: () => (pasts.of(SPEC, ""), clock += 2000, true), remark: null },
  });
  const panel = Object.create(Panel.prototype);
  Object.assign(panel, { cards: [card], store: card.store, soon: false, shell: false, wake: () => undefined });
  /** Draw it, as the panel does. */
  const draw = () => {
    const { now } = performance;
    performance.now = () => clock;
    card.draw(clock);
    performance.now = now;
    card.age(true);
  };
  return { card, panel, marks, draw };
}

/**
 * An answer to what was asked for.
 * @param {Pasts} pasts
 * @param {string} key
 */
function learn(pasts, key) {
  const numbers = new DataView(Float64Array.from([0, 5, 5]).buffer);
  pasts.learn([/** @type {any} */ ({ key, until: 0, series: [[5]], more: 0, n: 1, buffer: 0 })], [numbers], new Clock());
}

test("what was asked for is drawn at once when it comes, however long a picture takes; new rows keep the pace", () => {
  const pasts = new Pasts();
  const { card, panel, draw } = slow(pasts);
  draw();
  const { due } = card;
  assert.equal(due, 5000);
  card.store.rows += 1;
  panel._storeChanged("data");
  assert.deepEqual([card.dirty, card.due, panel.soon], [true, due, false]);
  learn(pasts, [...card.awaits][0]);
  panel._storeChanged("data");
  assert.deepEqual([card.dirty, card.due, panel.soon], [true, 0, true]);
});

test("an answer that a card didn't ask for doesn't draw it; the rows of a step that was asked for do", () => {
  const pasts = new Pasts();
  const { card, panel, draw } = slow(pasts);
  draw();
  pasts.of(/** @type {any} */ ({ table: "memory", y: "peak" }), "");
  learn(pasts, [...pasts.awaited].filter((key) => !card.awaits.has(key))[0]);
  panel._storeChanged("data");
  assert.equal(card.dirty, false);
  pasts.version += 1; //  as the store does with such rows
  panel._storeChanged("data");
  assert.deepEqual([card.dirty, card.due], [true, 0]);
});

test("a picture that is older than what it is made of is marked, for screen readers too, until it is drawn again", () => {
  const pasts = new Pasts();
  const { card, panel, marks, draw } = slow(pasts);
  draw();
  assert.deepEqual([...marks], [["data-behind", true], ["aria-busy", "true"]]); //  it has asked for more
  card.age(false); //  nobody answers
  assert.equal(marks.get("aria-busy"), "false");
  learn(pasts, [...card.awaits][0]);
  draw();
  assert.deepEqual([...marks], [["data-behind", false], ["aria-busy", "false"]]);
  card.store.rows += 1;
  panel._storeChanged("data");
  assert.deepEqual([...marks], [["data-behind", true], ["aria-busy", "true"]]);
  draw();
  assert.deepEqual([...marks], [["data-behind", false], ["aria-busy", "false"]]);
});

test("numbers that somebody reads stay, and say that they are older", () => {
  const { card } = slow(new Pasts());
  const focused = {};
  /** @type {string[][]} */
  const told = [];
  Object.assign(card, {
    numbers: { hidden: false, contains: (/** @type {object} */ one) => one === focused }, kept: { hidden: true },
    rows: { setAttribute: (/** @type {string} */ name, /** @type {string} */ value) => told.push([name, value]) },
    _numbers: () => card._keep(false),
  });
  const document = /** @type {any} */ (globalThis).document;
  /** @type {any} */ (globalThis).document = { activeElement: focused };
  card._renew();
  assert.deepEqual([card.kept.hidden, told.pop()], [false, ["aria-busy", "true"]]);
  /** @type {any} */ (globalThis).Node = Object;
  card._left({ relatedTarget: focused });
  assert.equal(card.kept.hidden, false); //  still there
  card._left({ relatedTarget: null });
  assert.deepEqual([card.kept.hidden, told.pop()], [true, ["aria-busy", "false"]]);
  /** @type {any} */ (globalThis).document = document;
});

/** A card of which only the pace is looked at: each picture takes as long as is said. @param {number[]} costs */
function drawn(costs) {
  let clock = 0;
  const { now } = performance;
  performance.now = () => clock;
  const card = Object.create(Card.prototype);
  Object.assign(card, {
    first: true, root: { dataset: {} }, body: {}, numbers: { hidden: true }, message: {}, place: {}, sentence: {}, definition: {}, spec: {},
    store: { step: null, pasts: new Pasts() }, awaits: new Set(), _seen: () => "", _say: () => undefined,
    mark: { draw: () => (clock += costs.shift() ?? 0, true), remark: null },
  });
  try {
    const waits = [];
    while (costs.length) {
      const begin = clock;
      card.draw(begin);
      waits.push(card.due - begin);
    }
    return waits;
  } finally {
    performance.now = now;
  }
}

test("a slow first picture doesn't keep the next one away, and no picture stays for more than five seconds", () => {
  assert.deepEqual(drawn([400, 1, 30, 400]), [1000, 250, 2000, 5000]);
});
