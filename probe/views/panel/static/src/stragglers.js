// The mark "stragglers": which rank is the fullest most often.

import { matcher } from "./matching.js";
import { MOST_BARS, categoryTicks, framed, hoverText, largestOf } from "./plot_parts.js";
import { LOOKS, hue } from "./theme.js";
import { many, spell } from "./words.js";

/** @import { Spec } from "./definition_types.js" */
/** @import { Item, PlotFrame, PlotMark } from "./types.js" */
/** @import { Store } from "./store.js" */
/** @typedef {{rank: number, tokens: number, first: number, share: number}} Standing of a rank */

/** A rank stands out where it is the fullest most often and has so much more than the mean. */
const STANDS_OUT = 1.02;

/**
 * Each rank's tokens over the mean of the ranks; who is the fullest most often is marked and named.
 * @param {PlotMark} mark
 * @returns {PlotFrame | null}
 */
export function stragglersOf(mark) {
  const { ranks, rounds } = standings(mark.store, mark.spec);
  if (!rounds) return null;
  const items = ranks.map((one) => {
    const often = `fullest in ${one.first} of ${rounds}`;
    return { ...one, row: -1, label: `rank ${one.rank}`, value: one.share, cells: [`rank ${one.rank}`, `${one.share.toFixed(2)}×`, often, spell(one.tokens, "tokens")] };
  });
  const worst = items.reduce((a, b) => (b.first > a.first || (b.first === a.first && b.share > a.share) ? b : a));
  const stands = worst.first > 0 && worst.share >= STANDS_OUT;
  const said = `${worst.cells[2]} batches, with ${worst.cells[1]} the mean tokens`;
  mark.remark = stands ? `${worst.label} stands out: ${said}` : worst.first ? `no rank stands out; ${worst.label} is ${said}` : "all ranks get the same";
  const layout = {
    showlegend: false, height: Math.min(Math.max(110 + 26 * items.length, 170), 720),
    shapes: [{ type: "line", xref: "x", yref: "paper", x0: 1, x1: 1, y0: 0, y1: 1, line: { color: LOOKS[mark.card.theme].quiet, width: 1.5, dash: "dot" } }],
    axes: {
      x: { title: { text: "tokens ÷ mean of the ranks (1 is even)" }, rangemode: "tozero", range: [0, 1.14 * largestOf([1, ...items.map((one) => one.share)])] },
      y: { type: "category", showgrid: false, ...categoryTicks(mark, items.map((one) => one.label).reverse(), MOST_BARS) },
    },
  };
  const summary = `${mark.remark}, of ${many(items.length, "rank")}.`;
  return framed(mark, { traces: [rankTrace(mark, items, stands ? worst : null)], layout, items, kind: null, head: ["rank", "tokens ÷ mean", "how often", "tokens"], summary });
}

/**
 * @param {PlotMark} mark
 * @param {(Item & Standing)[]} items
 * @param {Item | null} worst
 */
function rankTrace(mark, items, worst) {
  const order = [...items].reverse();
  const look = LOOKS[mark.card.theme];
  return {
    type: "bar", orientation: "h", name: "tokens ÷ mean", x: order.map((one) => one.share), y: order.map((one) => one.label), customdata: order.map((one) => items.indexOf(one)),
    marker: {
      color: order.map((one) => (one === worst ? look.alarm : hue("kind_1", mark.card.theme))),
      pattern: { shape: order.map((one) => (one === worst ? "/" : "")), size: 6, solidity: 0.2, fillmode: "overlay", fgcolor: look.hatch },
    },
    text: order.length <= 32 ? order.map((one) => `${one.cells[1]}, ${one.cells[2]}`) : undefined, textposition: "auto", insidetextanchor: "end", cliponaxis: false,
    hoverinfo: "text", hovertext: order.map((one) => hoverText(one.label, `${one.cells[1]} the mean of the ranks`, one.cells[2], `${one.cells[3]} tokens`)),
  };
}

/**
 * Who is how full, over the batches for which the ranks wait for each other. A batch of one rank tells nothing.
 * @param {Store} store
 * @param {Spec} spec
 * @returns {{ranks: Standing[], rounds: number}}
 */
function standings(store, spec) {
  /** @type {Map<number, {tokens: number, mean: number, first: number}>} */
  const found = new Map();
  let rounds = 0;
  for (const round of roundsOf(store, spec).values()) rounds += scored(found, [...round].sort(([a], [b]) => a - b));
  const ranks = [...found].map(([rank, { tokens, mean, first }]) => ({ rank, tokens, first, share: mean ? tokens / mean : NaN }));
  return { ranks: ranks.sort((a, b) => a.rank - b.rank).slice(0, MOST_BARS), rounds };
}

/**
 * Tokens of each rank by step, phase and round.
 * @param {Store} store
 * @param {Spec} spec
 * @returns {Map<string, Map<number, number>>}
 */
function roundsOf(store, spec) {
  const table = store.table(spec.table);
  const match = matcher(store, table, { ...spec, free: ["rank"], each: "rank" });
  /** @type {Map<string, Map<number, number>>} */
  const rounds = new Map();
  for (let row = 0; row < table.count; row += 1) {
    if (!match(row) || table.partial.has(table.step(row))) continue;
    const key = `${table.step(row)}|${table.code("phase", row)}|${table.code("round", row)}`;
    let round = rounds.get(key);
    if (!round) rounds.set(key, (round = new Map()));
    const rank = table.code("rank", row);
    round.set(rank, (round.get(rank) ?? 0) + table.get("tokens", row));
  }
  return rounds;
}

/**
 * Add a round to the standings.
 * @param {Map<number, {tokens: number, mean: number, first: number}>} found
 * @param {[rank: number, tokens: number][]} round
 * @returns {number} 1 where it counts
 */
function scored(found, round) {
  const sum = round.reduce((total, [, tokens]) => total + tokens, 0);
  if (round.length < 2 || !sum) return 0;
  const top = Math.max(...round.map(([, tokens]) => tokens));
  const first = top > sum / round.length ? round.find(([, tokens]) => tokens === top)?.[0] : null;
  for (const [rank, tokens] of round) {
    const one = found.get(rank) || { tokens: 0, mean: 0, first: 0 };
    found.set(rank, { tokens: one.tokens + tokens, mean: one.mean + sum / round.length, first: one.first + (rank === first ? 1 : 0) });
  }
  return 1;
}
