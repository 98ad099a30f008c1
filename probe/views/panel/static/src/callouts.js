// What stands beside marks in words: names at the last values, and the values that a scale cuts.

import { LOOKS } from "./theme.js";
import { plain } from "./words.js";

/** @import { Layout, PlotMark } from "./types.js" */

/** Narrower charts have a legend instead of names at their right. */
export const NARROW = 640;

/** Pixels between the lines of names, and those above and below the bars. */
const LINE = 15;
const ABOVE = 10;
const BELOW = 34;

/** Values that are said where the scale cuts them; of more the largest. */
const SAID = 2;

/**
 * @typedef {object} End of a series
 * @property {string} label
 * @property {string} text its last value in words
 * @property {number} at where it ends, as the values are
 * @property {string} colour
 */

/**
 * Names at the last values, with leaders where they'd touch; null where a legend has to do.
 * @param {PlotMark} mark
 * @param {End[]} ends
 * @param {{end: number, height: number}} axis
 * @returns {{layout: Layout, shapes: object[], annotations: object[]} | null}
 */
export function directLabels(mark, ends, { end, height }) {
  if (mark.holder.clientWidth < NARROW || ends.length * LINE > height) return null;
  const room = height - ABOVE - BELOW;
  const { ink } = LOOKS[mark.card.theme];
  const placed = spread(ends.map((one) => (Math.min(Math.max(one.at, 0), end) / end) * room), LINE, room);
  const longest = Math.max(...ends.map((one) => plain(one.label, 28).length + one.text.length));
  const annotations = ends.map((one, at) => ({
    xref: "paper", yref: "paper", x: 1, y: placed[at] / room, xanchor: "left", yanchor: "middle", xshift: 14, showarrow: false, align: "left",
    text: `${plain(one.label, 28)}  <b>${plain(one.text, 24)}</b>`, font: { size: 11, color: ink },
  }));
  const shapes = ends.map((one, at) => ({
    type: "line", xref: "paper", yref: "paper", xsizemode: "pixel", xanchor: 1, x0: 2, x1: 11, y0: Math.min(Math.max(one.at / end, 0), 1), y1: placed[at] / room,
    line: { color: one.colour, width: 1.5 },
  }));
  return { layout: { margin: { l: 8, r: Math.min(34 + 7 * longest, 240), t: ABOVE, b: 8 } }, shapes, annotations };
}

/**
 * Places on a line that are at least `gap` apart, each as near as can be to where it belongs.
 * @param {number[]} wanted
 * @param {number} gap
 * @param {number} room
 * @returns {number[]}
 */
export function spread(wanted, gap, room) {
  const order = wanted.map((_, at) => at).sort((a, b) => wanted[a] - wanted[b] || a - b);
  /** Those that touch, as one: where the first of them wants to be, in the mean, and how many they are. @type {{at: number, many: number}[]} */
  const blocks = [];
  order.forEach((place, nth) => {
    let block = { at: wanted[place] - nth * gap, many: 1 };
    for (let before = blocks.at(-1); before && before.at >= block.at; before = blocks.at(-1)) {
      blocks.pop();
      block = { at: (before.at * before.many + block.at * block.many) / (before.many + block.many), many: before.many + block.many };
    }
    blocks.push(block);
  });
  const starts = blocks.flatMap(({ at, many }) => new Array(many).fill(Math.max(Math.min(at, room - (wanted.length - 1) * gap), 0)));
  const places = [...wanted];
  order.forEach((place, nth) => (places[place] = starts[nth] + nth * gap));
  return places;
}

/**
 * A gap in each bar that the scale cuts, and its value in words.
 * @param {PlotMark} mark
 * @param {{x: number, value: number, told: string, width: number}[]} beyond bars that go further than the axis
 * @param {{end: number, by: number}} axis
 */
export function breaks(mark, beyond, { end, by }) {
  const look = LOOKS[mark.card.theme];
  const largest = [...beyond].sort((a, b) => b.value - a.value);
  const shapes = beyond.map(({ x, width }) => {
    const [left, right] = [x - width / 2, x + width / 2];
    const [low, high, slant] = [0.9, 0.935, 0.025].map((share) => (share * end) / by);
    return { type: "path", xref: "x", yref: "y", path: `M${left},${low} L${right},${low + slant} L${right},${high + slant} L${left},${high} Z`, fillcolor: look.back, line: { width: 0 } };
  });
  const annotations = largest.slice(0, SAID).map((one) => ({
    x: one.x + one.width / 2, y: (0.96 * end) / by, xref: "x", yref: "y", xanchor: "left", yanchor: "middle", showarrow: false, xshift: 3,
    text: `${plain(mark.spell(one.value), 24)}: ${one.told}`, font: { size: 11, color: look.ink }, bgcolor: look.back, borderpad: 1,
  }));
  const more = largest.length > 1 ? `, and ${largest.length - 1} more` : "";
  const told = largest.length ? `the scale ends at ${mark.spell(end)}; ${largest[0].told} took ${mark.spell(largest[0].value)}${more}` : "";
  return { shapes, annotations, told: mark.spec.unit === "s" ? told : told.replace(" took ", " has ") };
}
