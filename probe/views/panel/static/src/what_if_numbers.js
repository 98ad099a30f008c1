// What micro-batches come to, as `probe/analysis/what_if/numbers.py` has it, and what the models make of them.

import { cutRanks } from "./packing.js";

/** @import { Answered, MemoryTold, PackerCut, SecondsTold, UnseenTold, WhatIfPhase } from "./what_if_types.js" */

/** What time goes by: of one rank in one round. @typedef {{count: number, computed: number, squares: number}} Work */

/** @typedef {{values: Record<string, number | null>, counts: number[], works: Work[][], batches: number[][]}} StepNumbers */

/** A number that is none, as the run's side says it. @param {number} value */
const known = (value) => (Number.isFinite(value) ? value : null);

/** @param {number[]} values */
const sumOf = (values) => values.reduce((sum, one) => sum + one, 0);

/** @param {number[]} values */
const most = (values) => values.reduce((largest, one) => Math.max(largest, one), 0);

/**
 * Tokens that are computed for a micro-batch.
 * @param {number[]} lengths
 * @param {number} tokens
 * @param {WhatIfPhase["width"]} width
 */
function computedOf(lengths, tokens, { padded, fixed, round_to: multiple }) {
  if (!lengths.length) return 0;
  if (!padded) return Math.ceil(tokens / multiple) * multiple;
  return lengths.length * (fixed || Math.ceil(most(lengths) / multiple) * multiple);
}

/**
 * The numbers of one step.
 * @param {number[][][][]} rounds lengths of the rows of each micro-batch of each rank, in each round
 * @param {number | null} cap
 * @param {WhatIfPhase["width"]} width
 * @returns {StepNumbers}
 */
export function stepNumbers(rounds, cap, width) {
  const ranks = most(rounds.map(({ length }) => length));
  const [whole, counts] = [Array(ranks).fill(0), Array(ranks).fill(0)];
  /** @type {Work[][]} */
  const works = [];
  /** @type {number[][]} */
  const batches = [];
  const sums = { over: 0, largest: 0, padding: 0, fullest: 0, mean: 0, waitsFull: 0, waitsMean: 0, inStep: 0 };
  for (const made of rounds) {
    const told = made.map((parts) => rankOf(parts, cap, width, sums, batches));
    told.forEach(({ tokens, work }, rank) => {
      whole[rank] += tokens;
      counts[rank] += work.count;
    });
    if (!told.length) continue;
    works.push(told.map(({ work }) => work));
    sums.fullest += most(told.map(({ tokens }) => tokens));
    sums.mean += sumOf(told.map(({ tokens }) => tokens)) / told.length;
    sums.waitsFull += most(told.map(({ work }) => work.computed));
    sums.waitsMean += sumOf(told.map(({ work }) => work.computed)) / told.length;
    const longest = most(told.map(({ each }) => each.length));
    for (let at = 0; at < longest; at += 1) sums.inStep += most(told.map(({ each }) => each[at] ?? 0));
  }
  const total = sumOf(whole);
  const values = {
    micro_batches: most(counts),
    over_cap: sums.over,
    largest_tokens: sums.largest,
    rank_imbalance_ratio: known((most(whole) * whole.length) / total),
    mini_batch_imbalance_ratio: known(sums.fullest / sums.mean),
    padding_tokens: sums.padding,
    micro_batch_waiting_ratio: known(1 - sums.waitsMean / sums.inStep),
    waiting_ratio: known(1 - sums.waitsMean / sums.waitsFull),
  };
  return { values, counts, works, batches };
}

/**
 * One rank in one round; what is summed over all of them goes into `sums`.
 * @param {number[][]} parts
 * @param {number | null} cap
 * @param {WhatIfPhase["width"]} width
 * @param {{over: number, largest: number, padding: number}} sums
 * @param {number[][]} batches
 */
function rankOf(parts, cap, width, sums, batches) {
  const work = { count: parts.length, computed: 0, squares: 0 };
  let whole = 0;
  const each = [];
  for (const lengths of parts) {
    const tokens = sumOf(lengths);
    const computed = computedOf(lengths, tokens, width);
    whole += tokens;
    work.computed += computed;
    each.push(computed);
    for (const one of lengths) work.squares += one * one;
    sums.padding += computed - tokens;
    sums.over += cap !== null && tokens > cap ? 1 : 0;
    sums.largest = Math.max(sums.largest, tokens);
    if (lengths.length) batches.push([computed, most(lengths), lengths.length]);
  }
  return { tokens: whole, work, each };
}

/**
 * The value of a line, and the standard error of it.
 * @param {number[]} row
 * @param {{coefficients: number[], covariance: number[][]}} fit
 * @param {number[]} [noise] of a measurement: at least the first, else the second + the third × the value
 */
function foretold(row, { coefficients, covariance }, [least, always, share] = [0, 0, 0]) {
  const value = sumOf(row.map((one, at) => one * coefficients[at]));
  const variance = sumOf(row.map((one, at) => one * sumOf(row.map((other, to) => other * covariance[at][to]))));
  return { value, error: Math.sqrt(Math.max(variance, 0) + Math.max(least, always + share * value) ** 2) };
}

/**
 * What the rank that takes longest does in each round, as the time model wants it; the others wait for it.
 * @param {Work[][]} works of each round the work of every rank
 * @param {SecondsTold} model
 * @returns {number[]}
 */
function slowestOf(works, { coefficients: [batch, token, pair], paces = [] }) {
  const paceOf = new Map(paces);
  const taken = works.map((ranks) => ranks.map(({ count, computed, squares }, rank) => {
    const [alone, pace] = [batch * count + token * computed + pair * squares, paceOf.get(rank) ?? 1];
    return { count, computed, squares, rank, alone, pace };
  }));
  const slowest = taken.map((ranks) => ranks.reduce((worst, one) => (one.pace * one.alone > worst.pace * worst.alone ? one : worst)));
  const shared = /** @type {const} */ (["count", "computed", "squares"]).map((name) => sumOf(slowest.map((one) => one.pace * one[name])));
  return [...shared, ...paces.map(([own]) => sumOf(slowest.filter(({ rank }) => rank === own).map(({ alone }) => alone)))];
}

/**
 * How far a micro-batch is from what was seen of a number: 0 where it isn't, below 0 where it has less.
 * @param {number[]} batch
 * @param {UnseenTold} one
 */
function beyond(batch, { at, foretold: coefficients, below, above, usual, little }) {
  const expected = sumOf([1, ...batch].map((value, to) => value * coefficients[to]));
  const apart = batch[at] - expected;
  const few = little * Math.max(usual, Math.abs(expected));
  if (apart > above + few) return apart - (above + few);
  return Math.min(apart - (below - few), 0);
}

/**
 * The largest peak; or why it isn't told, as `MemoryModel.untold` has it.
 * @param {number[][]} batches
 * @param {MemoryTold | null} model
 * @returns {{peak: {value: number, reach: number} | null, why: string}}
 */
function peakOf(batches, model) {
  if (!model || !batches.length) return { peak: null, why: "" };
  const told = batches.map((one) => ({ batch: one, ...foretold([1, ...one], model, model.noise) }));
  const { batch, value, error } = told.reduce((highest, one) => (one.value > highest.value ? one : highest));
  const unlike = model.unseen.find((one) => beyond(batch, one) < 0 || batches.some((other) => beyond(other, one) > 0));
  if (unlike) return { peak: null, why: unlike.why };
  return { peak: { value, reach: model.reach * error }, why: "" };
}

/**
 * Seconds of the phase, and how many are saved; each with how far its interval reaches.
 * @param {number[]} work
 * @param {number[]} then the same as it was
 * @param {SecondsTold} model
 */
function secondsOf(work, then, model) {
  const now = foretold(work, model);
  const less = foretold(then.map((one, at) => one - work[at]), model);
  return { value: now.value, reach: model.reach * now.error, saved: /** @type {[number, number]} */ ([less.value, model.reach * less.error]) };
}

/**
 * Seconds of a step: as measured, less what the phase saves.
 * @param {number | null} measured
 * @param {{saved: [number, number]} | null} time
 */
function stepOf(measured, time) {
  if (measured === null || !time) return null;
  const [value, reach] = time.saved;
  return { value: measured - value, reach };
}

/**
 * What the batches of a phase come to under other settings.
 * @param {WhatIfPhase} phase
 * @param {number[][][]} rounds lengths of the rows of each rank in each round
 * @param {PackerCut} cut
 * @returns {Answered}
 */
export function answered(phase, rounds, cut) {
  const made = rounds.map((ranks) => cutRanks(ranks, cut).map((parts, rank) => parts.map((part) => part.map((row) => ranks[rank][row]))));
  const { values, counts, works, batches } = stepNumbers(made, cut.cap_tokens, phase.width);
  /** @type {Record<string, number | null>} */
  const after = { ...values };
  /** @type {Record<string, number | null>} */
  const low = {};
  /** @type {Record<string, number | null>} */
  const high = {};
  const time = phase.seconds && secondsOf(slowestOf(works, phase.seconds), phase.work, phase.seconds);
  const { peak, why } = peakOf(batches, phase.memory);
  const step = stepOf(phase.before.predicted_step_s ?? null, time);
  for (const [name, told] of Object.entries({ predicted_s: time, predicted_peak_bytes: peak, predicted_step_s: step })) {
    after[name] = told ? told.value : null;
    low[name] = told ? told.value - told.reach : null;
    high[name] = told ? told.value + told.reach : null;
  }
  return { before: phase.before, after, low, high, modelled: phase.modelled, saved: time ? time.saved : null, counts, notes: [...(phase.seconds?.notes ?? []), ...(why ? [why] : [])], compared: phase.compared };
}

/**
 * What a packer is given for changes; null where a page hasn't its rule.
 * @param {WhatIfPhase} phase
 * @param {Record<string, number | boolean | string>} changes by the names that the run's side has for settings
 * @returns {PackerCut | null}
 */
export function cutOf(phase, changes) {
  if (!phase.in_page || Object.keys(changes).some((name) => !["cap_tokens", "rows_each", "dynamic"].includes(name))) return null;
  const { cuts, parallel } = phase;
  const kind = changes.dynamic === undefined ? cuts.now : changes.dynamic ? "capped" : "fixed";
  const given = kind && cuts[kind];
  if (!given) return null;
  const made = { ...given };
  if (typeof changes.cap_tokens === "number") made.cap_tokens = changes.cap_tokens * parallel;
  if (typeof changes.rows_each === "number") made.rows_each = changes.rows_each;
  return made;
}

/**
 * The lengths that a page is handed; see `packed` in `probe/views/panel/what_if.py`.
 * @param {string} text
 * @returns {Promise<number[][][]>} of each round the ranks, of each the lengths of its rows
 */
export async function lengthsOf(text) {
  const bytes = Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const numbers = new Uint32Array(await new Response(stream).arrayBuffer());
  const [many, ranks] = numbers;
  let at = 2 + many * ranks;
  return Array.from({ length: many }, (_, round) => Array.from({ length: ranks }, (_rank, rank) => {
    const rows = numbers[2 + round * ranks + rank];
    at += rows;
    return [...numbers.subarray(at - rows, at)];
  }));
}
