// How soon a chart is drawn again: what it costs decides, but no picture stays for long beside newer numbers.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Card } from "../../probe/views/panel/static/src/cards.js";

/** A card of which only the pace is looked at: each picture takes as long as is said. @param {number[]} costs */
function drawn(costs) {
  let clock = 0;
  const { now } = performance;
  performance.now = () => clock;
  const card = Object.create(Card.prototype);
  Object.assign(card, {
    first: true, root: { dataset: {} }, body: {}, numbers: { hidden: true }, message: {}, place: {}, sentence: {}, definition: {}, spec: {},
    store: { step: null }, _seen: () => "", _say: () => undefined,
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
