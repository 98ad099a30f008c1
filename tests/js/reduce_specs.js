// Reduces series specs as the panel does: {schema, messages, specs} comes on standard input, the numbers go out. The
// Python side of this is tests/live/test_browser_reducers.py.

import { readFileSync } from "node:fs";

import { StepLines, largestByStep, totalOf } from "../../probe/views/panel/static/src/step_lines.js";
import { Store } from "../../probe/views/panel/static/src/store.js";
import { whoSeries, whoStandsOut } from "../../probe/views/panel/static/src/who.js";

/** @import { Spec, TableData, TileSpec } from "../../probe/views/panel/static/src/definition_types.js" */
/** @import { Head } from "../../probe/views/panel/static/src/message_types.js" */

/** @type {{schema: Record<string, TableData>, messages: {head: Head, buffers: string[]}[], specs: Spec[]}} */
const { schema, messages, specs } = JSON.parse(readFileSync(0, "utf8"));

/** @param {string} text base64 */
function bytesOf(text) {
  const { buffer, byteOffset, byteLength } = Buffer.from(text, "base64");
  return new DataView(buffer.slice(byteOffset, byteOffset + byteLength));
}

/** @param {number} value as JSON can say it, which knows no NaN */
const said = (value) => (Number.isFinite(value) ? value : String(value));

const store = new Store({ schema });

/** @param {Spec} spec of a tile, maybe with ranks to compare */
function whoOf(spec) {
  const tile = /** @type {TileSpec} */ (spec);
  const series = whoSeries(tile);
  if (!series) return null;
  const lines = new StepLines(store, series);
  lines.pull();
  return whoStandsOut(tile, lines, () => true);
}

const all = specs.map((spec) => new StepLines(store, spec));
for (const { head, buffers } of messages) {
  store.receive(head, buffers.map(bytesOf));
  for (const lines of all) lines.pull(); //  summed as the rows come, as in a panel
}
const numbers = all.map((lines, at) => {
  const { steps, values } = largestByStep(lines);
  return { steps, values: values.map(said), total: said(totalOf(lines)), pooled: lines.paired ? said(lines.pooled(steps)) : null, who: whoOf(specs[at]) };
});
process.stdout.write(JSON.stringify(numbers));
