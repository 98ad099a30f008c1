// Rows into micro-batches as verl 0.9.1 does it and as fixed rows do, order included, so that a page can answer what a
// step would have come to while nobody else answers. `probe/core/balancing/verl_rule.py` is the same rule in Python; a
// test holds the two equal on a thousand batches. Whole numbers alone: all of them stay below 2^53, or it refuses.

/** @import { PackedRows, PackerCut } from "./what_if_types.js" */

/** The work of a token beside its attention to one other token, as in `probe/core/balancing/partition.py`. */
const LINEAR = 24576;

/** What ends up in one part. @typedef {{sum: number, size: number, first: number, rows: PackedRows}} Part */

/** Parts from the largest to the smallest, empty ones left out, and how far apart they are. @typedef {{spread: number, parts: Part[]}} State */

/** The packer refuses. */
export class Refused extends Error {}

/**
 * The larger part stands in front; of two as large the one with more rows, then the one whose first row comes later.
 * Parts that are compared never share a row.
 * @param {Part} a
 * @param {Part} b
 */
const before = (a, b) => b.sum - a.sum || b.size - a.size || b.first - a.first;

/**
 * The state whose parts are farther apart is taken first; of two as far apart the one whose largest part stands in front.
 * @param {State} a
 * @param {State} b
 */
const earlier = (a, b) => b.spread - a.spread || before(a.parts[0], b.parts[0]);

/** A heap of states, the earliest on top. */
class Heap {
  /** @param {State[]} states */
  constructor(states) {
    this.states = states;
    for (let at = (states.length >> 1) - 1; at >= 0; at -= 1) this._sink(at);
  }

  get size() {
    return this.states.length;
  }

  take() {
    const [top] = this.states;
    const last = /** @type {State} */ (this.states.pop());
    if (this.states.length) this.replace(last);
    return top;
  }

  /** @param {State} state in the place of the one on top */
  replace(state) {
    this.states[0] = state;
    this._sink(0);
  }

  /** @param {number} from */
  _sink(from) {
    const { states } = this;
    const state = states[from];
    let at = from;
    for (let below = 2 * at + 1; below < states.length; below = 2 * at + 1) {
      if (below + 1 < states.length && earlier(states[below + 1], states[below]) < 0) below += 1;
      if (earlier(state, states[below]) <= 0) break;
      states[at] = states[below];
      at = below;
    }
    states[at] = state;
  }
}

/**
 * @param {Part[]} parts
 * @param {number} count
 * @returns {State}
 */
function stateOf(parts, count) {
  parts.sort(before);
  return { spread: parts[0].sum - (parts.length === count ? parts[parts.length - 1].sum : 0), parts };
}

/**
 * The largest part of the one with the smallest of the other, and so on.
 * @param {State} one
 * @param {State} two
 * @param {number} count
 */
function merged(one, two, count) {
  const alone = count - two.parts.length;
  const met = one.parts.length;
  if (alone >= met) return stateOf([...one.parts, ...two.parts], count); //  each meets an empty one
  const parts = one.parts.slice(0, alone);
  for (let at = alone; at < met; at += 1) {
    const [mine, theirs] = [one.parts[at], two.parts[count - 1 - at]];
    parts.push({ sum: mine.sum + theirs.sum, size: mine.size + theirs.size, first: mine.first, rows: [mine.rows, theirs.rows] });
  }
  return stateOf([...parts, ...two.parts.slice(0, count - met)], count);
}

/**
 * The rows of a part, ascending.
 * @param {PackedRows} held
 */
function rowsOf(held) {
  const found = [];
  /** @type {PackedRows[]} */
  const waiting = [held];
  while (waiting.length) {
    const one = /** @type {PackedRows} */ (waiting.pop());
    if (typeof one === "number") found.push(one);
    else waiting.push(one[0], one[1]);
  }
  return found.sort((a, b) => a - b);
}

/**
 * The largest differencing method: rows into parts of nearly equal weight.
 * @param {number[]} weights of each row
 * @param {number} count of parts
 * @returns {number[][]} rows of each part, ascending, in the order in which verl has the parts
 */
export function partition(weights, count) {
  if (weights.length < count) throw new Refused(`${weights.length} rows can't be shared by ${count} micro-batches.`);
  const heap = new Heap(weights.map((sum, row) => ({ spread: count > 1 ? sum : 0, parts: [{ sum, size: 1, first: row, rows: row }] })));
  while (heap.size > 1) {
    const first = heap.take();
    heap.replace(merged(first, heap.states[0], count));
  }
  const { parts } = heap.states[0];
  if (parts.length < count) throw new Refused(`One of ${count} micro-batches would be empty.`);
  return parts.map(({ rows }) => rowsOf(rows));
}

/** @typedef {{tokens: number[], weights: number[], whole: number}} Units what a rank packs: rows, or groups of neighbours */

/** @param {number[]} values */
const sumOf = (values) => values.reduce((sum, one) => sum + one, 0);

/**
 * @param {number[]} values
 * @param {number} size
 */
function grouped(values, size) {
  if (size === 1) return values;
  return Array.from({ length: values.length / size }, (_, at) => sumOf(values.slice(at * size, (at + 1) * size)));
}

/**
 * @param {number[]} lengths
 * @param {PackerCut & {cap: number}} cut
 * @returns {Units}
 */
function unitsOf(lengths, { cap, group_size: size, strict }) {
  if (!lengths.length || lengths.length % size) throw new Refused(`${lengths.length} rows can't be grouped by ${size}.`);
  const weights = grouped(lengths.map((one) => LINEAR * one + one * one), size);
  const whole = sumOf(weights);
  if (!Number.isSafeInteger(whole)) throw new Refused("These rows are too long to be packed in a page.");
  const tokens = grouped(lengths, size);
  const longest = Math.max(...(strict ? tokens : lengths));
  if (longest > cap) throw new Refused(`The longest ${size > 1 && strict ? "group" : "row"} has ${longest.toLocaleString("en")} tokens, which is above a cap of ${cap.toLocaleString("en")}.`);
  return { tokens, weights, whole: sumOf(tokens) };
}

/**
 * The parts in the order in which they run, as rows.
 * @param {number[][]} parts
 * @param {Units} units
 * @param {PackerCut} cut
 */
function ordered(parts, { weights }, { ordered: byWork, group_size: size }) {
  let found = parts;
  if (byWork) {
    const sums = new Map(parts.map((part) => [part, part.reduce((sum, item) => sum + weights[item], 0)]));
    const falling = [...parts].sort((a, b) => (sums.get(b) ?? 0) - (sums.get(a) ?? 0) || b[0] - a[0]);
    found = [...falling.filter((_, at) => at % 2 === 0).reverse(), ...falling.filter((_, at) => at % 2 === 1)]; //  the smallest at both ends
  }
  if (size === 1) return found;
  return found.map((part) => part.flatMap((item) => Array.from({ length: size }, (_, at) => item * size + at)));
}

/**
 * Rows of each micro-batch of ranks that agree on how many each makes: as many as the rank with most tokens needs, and
 * more until each of them is within the cap on every rank.
 * @param {number[][]} ranks lengths of each rank's rows
 * @param {PackerCut & {cap: number}} cut
 * @returns {number[][][]}
 */
function underCap(ranks, cut) {
  const { cap, strict, divisor, minimum_count: minimum } = cut;
  const step = divisor ?? 1;
  const units = ranks.map((lengths) => unitsOf(lengths, cut));
  const fewest = Math.min(...units.map(({ tokens }) => tokens.length));
  const start = Math.max(...units.map(({ tokens, whole }) => Math.max(Math.min(tokens.length, Math.ceil(whole / cap)), minimum ?? 0)));
  for (let count = Math.ceil(start / step) * step; count <= fewest; count += step) {
    const made = partsWithin(units, count, strict ? cap : Infinity);
    if (made) return made.map((parts, rank) => ordered(parts, units[rank], cut));
  }
  throw new Refused(`More micro-batches are needed than the ${fewest} rows or groups of a rank.`);
}

/**
 * Each rank's parts; null where one of them is above the cap.
 * @param {Units[]} units
 * @param {number} count
 * @param {number} cap
 */
function partsWithin(units, count, cap) {
  const made = [];
  for (const { weights, tokens } of units) {
    const parts = partition(weights, count);
    if (parts.some((part) => part.reduce((sum, item) => sum + tokens[item], 0) > cap)) return null;
    made.push(parts);
  }
  return made;
}

/**
 * Neighbours together, so many of them.
 * @param {number} rows
 * @param {PackerCut} cut
 */
function fixedRows(rows, { packer, rows_each: each, group_size: size }) {
  if (!each) throw new Refused("The number of rows in a micro-batch isn't known.");
  const verl = packer.startsWith("verl");
  const many = each * (verl ? size : 1);
  if (verl && rows % many) throw new Refused(`${rows} rows can't be cut into micro-batches of ${many}.`);
  return Array.from({ length: Math.ceil(rows / many) }, (_, at) => Array.from({ length: Math.min(many, rows - at * many) }, (_row, row) => at * many + row));
}

/**
 * Rows of each micro-batch of each rank, in their order.
 * @param {number[][]} ranks lengths of the rows of each rank that cuts at the same time
 * @param {PackerCut} cut
 * @returns {number[][][]}
 */
export function cutRanks(ranks, cut) {
  if (cut.packer.endsWith("fixed_rows")) return ranks.map((lengths) => fixedRows(lengths.length, cut));
  const { cap_tokens: cap } = cut;
  if (!cap) throw new Refused("The cap isn't known.");
  const known = { ...cut, cap };
  return cut.counts_agreed ? underCap(ranks, known) : ranks.map((lengths) => underCap([lengths], known)[0]);
}
