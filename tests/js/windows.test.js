// Which lines of a long list are in sight, and where keys lead.

import assert from "node:assert/strict";
import { test } from "node:test";

import { groupFrom, linesInSight, movedTo, piecesOf, scrolledTo } from "../../probe/views/panel/static/src/windows.js";

test("whatever the scrolling, the lines in sight are those that the view covers, with one to either side", () => {
  for (let top = 0; top <= 10_000 * 28; top += 997) {
    const { first, last } = linesInSight({ top, height: 392, line: 28, count: 10_000 });
    assert.ok(first * 28 <= top || first === 0, `${top}`);
    assert.ok(last * 28 >= top + 392 || last === 10_000, `${top}`);
    assert.ok(last - first <= 392 / 28 + 3, `${last - first} lines at ${top}`);
  }
});

test("a list that is shorter than the view, empty, or scrolled beyond its end", () => {
  assert.deepEqual(linesInSight({ top: 0, height: 392, line: 28, count: 3 }), { first: 0, last: 3 });
  assert.deepEqual(linesInSight({ top: 0, height: 392, line: 28, count: 0 }), { first: 0, last: 0 });
  assert.deepEqual(linesInSight({ top: 90_000, height: 392, line: 28, count: 3 }), { first: 3, last: 3 });
  assert.deepEqual(linesInSight({ top: -40, height: 28, line: 28, count: 9 }), { first: 0, last: 2 });
});

test("lines are asked for in whole pieces, each once", () => {
  assert.deepEqual(piecesOf(0, 14, 60), [0]);
  assert.deepEqual(piecesOf(55, 75, 60), [0, 1]);
  assert.deepEqual(piecesOf(60, 60, 60), []);
  assert.deepEqual(piecesOf(119, 121, 60), [1, 2]);
});

test("scrolling brings a line wholly in sight, and does nothing where it is", () => {
  const view = { top: 280, height: 392, line: 28, above: 28 };
  assert.equal(scrolledTo(12, view), 280);
  assert.equal(scrolledTo(3, view), 84);
  const to = scrolledTo(40, view);
  assert.equal(to, 40 * 28 + 28 + 28 - 392);
  assert.equal(scrolledTo(40, { ...view, top: to }), to);
});

test("keys move by lines and pages, and stop at both ends", () => {
  const list = { count: 100, page: 12 };
  assert.deepEqual(["ArrowDown", "ArrowUp", "PageDown", "PageUp", "Home", "End"].map((key) => movedTo(key, 5, list)), [6, 4, 17, 0, 0, 99]);
  assert.equal(movedTo("ArrowDown", 99, list), 99);
  assert.equal(movedTo("ArrowLeft", 5, list), null);
  assert.equal(movedTo("a", 5, list), null);
  assert.equal(movedTo("End", 0, { count: 0, page: 12 }), null);
});

test("among tokens keys move within and between lines, and never leave the answer", () => {
  const map = { count: 95, page: 4, across: 10 };
  assert.deepEqual(["ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp", "PageDown", "PageUp"].map((key) => movedTo(key, 42, map)), [43, 41, 52, 32, 82, 2]);
  assert.deepEqual([movedTo("ArrowUp", 3, map), movedTo("ArrowDown", 90, map)], [3, 90]);
  assert.deepEqual([movedTo("ArrowRight", 94, map), movedTo("PageDown", 90, map)], [94, 94]);
});

test("J and K lead to where a group begins, also from within one, and stay at both ends", () => {
  const groups = [7, 7, 7, 2, 2, 5, 9, 9];
  const list = { count: groups.length, of: (/** @type {number} */ at) => groups[at] };
  assert.deepEqual([0, 1, 2, 3, 4, 5, 6, 7].map((at) => groupFrom(1, at, list)), [3, 3, 3, 5, 5, 6, 6, 7]);
  assert.deepEqual([0, 1, 2, 3, 4, 5, 6, 7].map((at) => groupFrom(-1, at, list)), [0, 0, 0, 0, 0, 3, 5, 5]);
});

test("J and K end where a line isn't here yet, and go on from there line by line", () => {
  const list = { count: 100, of: (/** @type {number} */ at) => (at >= 20 && at < 30 ? 1 : undefined) };
  assert.deepEqual([groupFrom(1, 24, list), groupFrom(1, 30, list), groupFrom(1, 99, list)], [30, 31, 99]);
  assert.deepEqual([groupFrom(-1, 24, list), groupFrom(-1, 19, list), groupFrom(-1, 0, list)], [19, 18, 0]);
  assert.equal(groupFrom(1, 0, { count: 0, of: () => undefined }), 0);
});
