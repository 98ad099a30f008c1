// The mark "stragglers": which rank is the fullest most often.

import { matcher } from "./matching.js";
import { MOST_BARS, categoryTicks, framed, hoverText, largestOf } from "./plot_parts.js";
import { ALARM, LOOKS, palette } from "./theme.js";
import { many, spell } from "./words.js";

//  A rank is called the straggler where it is the fullest most often and has so much more than the mean.
const STANDS_OUT = 1.02;

/** Each rank's tokens over the mean of the ranks; who is the fullest most often is marked and named. */
export function stragglersOf(mark) {
  const { spec, store } = mark;
  const { ranks, rounds } = standings(store, spec);
  if (!rounds) return null;
  const look = LOOKS[mark.card.theme];
  const items = ranks.map((one) => {
    const often = `fullest in ${one.first} of ${rounds}`;
    return { ...one, row: -1, label: `rank ${one.rank}`, value: one.share, cells: [`rank ${one.rank}`, `${one.share.toFixed(2)}×`, often, spell(one.tokens, "tokens")] };
  });
  const worst = items.reduce((a, b) => (b.first > a.first || (b.first === a.first && b.share > a.share) ? b : a));
  const stands = worst.first > 0 && worst.share >= STANDS_OUT;
  const said = `${worst.cells[2]} batches, with ${worst.cells[1]} the mean tokens`;
  mark.remark = stands ? `${worst.label} is the straggler: ${said}` : worst.first ? `no rank stands out; ${worst.label} is ${said}` : "all ranks get the same";
  const order = [...items].reverse();
  const isWorst = (one) => stands && one === worst;
  const trace = {
    type: "bar", orientation: "h", name: "tokens ÷ mean", x: order.map((one) => one.share), y: order.map((one) => one.label), customdata: order.map((one) => items.indexOf(one)),
    marker: { color: order.map((one) => (isWorst(one) ? ALARM : palette(store, mark.card.theme)[0])), pattern: { shape: order.map((one) => (isWorst(one) ? "/" : "")), size: 6, solidity: 0.2, fillmode: "overlay", fgcolor: "rgba(255,255,255,0.5)" } },
    text: order.length <= 32 ? order.map((one) => `${one.cells[1]}, ${one.cells[2]}`) : undefined, textposition: "auto", insidetextanchor: "end", cliponaxis: false,
    hoverinfo: "text", hovertext: order.map((one) => hoverText(one.label, `${one.cells[1]} the mean of the ranks`, one.cells[2], `${one.cells[3]} tokens`)),
  };
  const layout = {
    showlegend: false, height: Math.min(Math.max(110 + 26 * items.length, 170), 720),
    shapes: [{ type: "line", xref: "x", yref: "paper", x0: 1, x1: 1, y0: 0, y1: 1, line: { color: look.quiet, width: 1.5, dash: "dot" } }],
    axes: { x: { title: { text: "tokens ÷ mean of the ranks (1 is even)" }, rangemode: "tozero", range: [0, 1.14 * largestOf([1, ...items.map((one) => one.share)])] }, y: { type: "category", showgrid: false, ...categoryTicks(mark, order.map((one) => one.label)) } },
  };
  return framed(mark, { traces: [trace], layout, items, kind: null, head: ["rank", "tokens ÷ mean", "how often", "tokens"], summary: `${mark.remark}, of ${many(items.length, "rank")}.` });
}

/** Tokens of each rank in each round: the n-th batch that it cut in a (step, phase). Rounds of one rank tell nothing. */
function standings(store, spec) {
  const table = store.table(spec.table);
  const match = matcher(store, table, { ...spec, free: ["rank"] });
  const batches = new Map(); //  "step|phase" → rank → batch → tokens
  for (let row = 0; row < table.count; row += 1) {
    if (!match(row) || table.partial.has(table.step(row))) continue;
    const [place, rank] = [`${table.step(row)}|${table.columns.get("phase")[row]}`, table.columns.get("rank")[row]];
    const own = inside(inside(batches, place), rank);
    const batch = table.columns.get("batch")[row];
    own.set(batch, (own.get(batch) || 0) + table.columns.get("tokens")[row]);
  }
  const found = new Map();
  let rounds = 0;
  for (const ranks of batches.values()) for (const round of roundsOf(ranks)) rounds += scored(found, round);
  const ranks = [...found].map(([rank, { tokens, mean, first }]) => ({ rank, tokens, first, share: mean ? tokens / mean : NaN }));
  return { ranks: ranks.sort((a, b) => a.rank - b.rank).slice(0, MOST_BARS), rounds };
}

function inside(map, key) {
  if (!map.has(key)) map.set(key, new Map());
  return map.get(key);
}

/** Per round [[rank, tokens], …] by rank. */
function* roundsOf(ranks) {
  const sums = [...ranks].sort(([a], [b]) => a - b).map(([rank, own]) => [rank, [...own].sort(([a], [b]) => a - b).map(([, tokens]) => tokens)]);
  const most = Math.max(...sums.map(([, own]) => own.length));
  for (let at = 0; at < most; at += 1) yield sums.filter(([, own]) => at < own.length).map(([rank, own]) => [rank, own[at]]);
}

/** Add a round to the standings; 1 where it counts. */
function scored(found, round) {
  const sum = round.reduce((total, [, tokens]) => total + tokens, 0);
  if (round.length < 2 || !sum) return 0;
  const top = Math.max(...round.map(([, tokens]) => tokens));
  const first = top > sum / round.length ? round.find(([, tokens]) => tokens === top)[0] : null;
  for (const [rank, tokens] of round) {
    const one = found.get(rank) || { tokens: 0, mean: 0, first: 0 };
    found.set(rank, { tokens: one.tokens + tokens, mean: one.mean + sum / round.length, first: one.first + (rank === first ? 1 : 0) });
  }
  return 1;
}
