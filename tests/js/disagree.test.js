// The strips of differences of single answers.

import assert from "node:assert/strict";
import { test } from "node:test";

import { cellsOf } from "../../probe/views/panel/static/src/disagree.js";

test("cells of one level are one path, and what the loss leaves out is low", () => {
  const cells = cellsOf([null, 0, -4, 0, 4]);
  assert.deepEqual([...cells.keys()], [null, 0, -4, 4]);
  assert.equal(cells.get(null), "M0 7h3.4v3h-3.4z");
  assert.equal(cells.get(0), "M4 0h3.4v10h-3.4zM12 0h3.4v10h-3.4z");
  assert.equal(cells.get(-4), "M8 0h3.4v10h-3.4z");
});
