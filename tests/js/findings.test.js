// What the strip says of findings: which stands on top, how many a view has, and where each leads.

import assert from "node:assert/strict";
import { test } from "node:test";

import { answersOf, begins, counted, destination, keyOf, standing, standingFirst, walkedTo } from "../../probe/views/panel/static/src/findings.js";

/** @import { Finding } from "../../probe/views/panel/static/src/finding_types.js" */

const TOPICS = { overview: "overview", memory: "memory", padding_tax: "tokens", reductions: "metrics" };
const NOWHERE = { step: null, role: null, phase: null, micro_batch: null, rank: null, process: null };

/**
 * @param {Finding["kind"]} kind
 * @param {string} name
 * @param {string} topic
 * @param {object} where
 * @param {Partial<Finding>} more
 * @returns {Finding}
 */
const found = (kind, name, topic = "overview", where = {}, more = {}) => ({ kind, name, topic, sentence: `${name}.`, why: "", since: null, change: null, ...more, where: { ...NOWHERE, ...where } });

const LEAK = found("alarm", "leak", "memory", { rank: 1 });
const NAN = found("alarm", "nan", "reductions", { step: 9, rank: 1 });
const PADDING = found("tuning", "padding", "padding_tax");
const FINE = found("fine", "peak", "memory");

/** @param {object} of */
const said = (of) => standing({ findings: [], judged: true, looking: true, begun: true, over: false, silent: "", topics: TOPICS, view: undefined, ...of });

/** @param {Finding[]} list */
const names = (list) => list.map(({ name }) => name);

test("the worst stands on top, the other alarms and what is worth a change are more", () => {
  const now = said({ findings: [LEAK, NAN, PADDING, FINE] });
  assert.equal(now?.word, "Alarm");
  assert.equal(now?.sentence, "leak.");
  assert.deepEqual(names(now?.more ?? []), ["nan", "padding"]);
});

test("on a view its own come first, but never before an alarm", () => {
  const all = [LEAK, NAN, PADDING, FINE];
  assert.deepEqual(names(standingFirst(all, TOPICS, "metrics")), ["nan", "leak", "padding"]);
  assert.deepEqual(names(standingFirst(all, TOPICS, "tokens")), ["leak", "nan", "padding"]);
  assert.deepEqual(names(standingFirst(all, TOPICS, undefined)), ["leak", "nan", "padding"]);
});

test("without alarm and tuning all is well, where all could be looked for", () => {
  assert.equal(said({ findings: [FINE] })?.sentence, "Nothing is wrong and nothing is worth a change.");
  assert.equal(said({ findings: [FINE], advised: true })?.sentence, "Nothing is wrong.");
  assert.equal(said({ findings: [FINE] })?.word, "All is well");
  assert.deepEqual(names(said({ findings: [FINE] })?.more ?? []), ["peak"]);
  assert.notEqual(said({ findings: [FINE], judged: false })?.kind, "fine");
  assert.equal(said({ findings: [FINE], judged: false, looking: false }), null);
});

test("before a step has ended nothing is judged but an alarm; in a run that is over it isn't 'not yet'", () => {
  assert.deepEqual([said({ begun: false, findings: [PADDING] })?.word, said({ begun: false })?.sentence], ["Starting", "No step has ended yet."]);
  assert.equal(said({ begun: false, findings: [LEAK] })?.word, "Alarm");
  assert.equal(said({ begun: false, over: true })?.sentence, "No step has ended in this run.");
});

test("a run from which nothing comes is silent, unless an alarm says why", () => {
  assert.deepEqual([said({ silent: "14 s", findings: [FINE] })?.word, said({ silent: "14 s" })?.sentence], ["Silent", "No process has reported for 14 s."]);
  assert.equal(said({ silent: "14 s", findings: [NAN] })?.word, "Alarm");
  assert.deepEqual(names(said({ silent: "14 s", findings: [PADDING] })?.more ?? []), ["padding"]);
});

test("a view has the number of its own alarms and of what is worth a change", () => {
  const made = counted([LEAK, { ...LEAK, kind: "tuning" }, PADDING, FINE, found("alarm", "else", "constructor")], TOPICS);
  assert.deepEqual([...made], [["memory", { alarm: 1, tuning: 1 }], ["tokens", { alarm: 0, tuning: 1 }]]);
});

const HERE = { has: (/** @type {number} */ step) => step < 12, ranks: ["rank 0", "rank 1"], views: [{ id: "memory", title: "Memory", panels: [] }, { id: "metrics", title: "Metrics", panels: [] }], topics: TOPICS };

test("a finding leads to its step, rank and view, as far as they are here", () => {
  assert.deepEqual(destination(NAN, HERE), { label: "Go to step 9", step: 9, rank: "rank 1", tab: "metrics" });
  assert.deepEqual(destination(LEAK, HERE), { label: "Go to rank 1", step: null, rank: "rank 1", tab: "memory" });
  assert.deepEqual(destination({ ...LEAK, since: 3 }, HERE), { label: "Go to step 3", step: 3, rank: "rank 1", tab: "memory" });
  assert.deepEqual(destination(found("alarm", "a", "memory", { step: 40 }), HERE), { label: "Go to Memory", step: null, rank: null, tab: "memory" });
  assert.deepEqual(destination(NAN, { ...HERE, ranks: ["rank 1"], views: [] }), { label: "Go to step 9", step: 9, rank: null, tab: null });
  assert.equal(destination(PADDING, { ...HERE, views: [] }), null);
});

test("what ended a run is 'Failed' once nobody writes any more, and an alarm before", () => {
  const raised = found("alarm", "failed", "overview", { rank: 1 }, { failure: true });
  assert.equal(said({ findings: [raised], over: true })?.word, "Failed");
  assert.equal(said({ findings: [raised], over: false })?.word, "Alarm");
  assert.equal(said({ findings: [LEAK], over: true })?.word, "Alarm");
});

test("[ and ] go through alarms and what is worth a change in a ring, the worst first", () => {
  const all = [LEAK, NAN, PADDING, FINE];
  /** @type {(from: Finding | null, by: 1 | -1) => string | undefined} */
  const to = (from, by) => walkedTo(all, from && keyOf(from), by)?.finding.name;
  assert.deepEqual([to(null, 1), to(LEAK, 1), to(NAN, 1), to(PADDING, 1)], ["leak", "nan", "padding", "leak"]);
  assert.deepEqual([to(null, -1), to(LEAK, -1), to(PADDING, -1)], ["padding", "padding", "nan"]);
  assert.deepEqual(walkedTo(all, keyOf(LEAK), 1), { finding: NAN, at: 1, many: 3 });
  assert.equal(to(FINE, 1), "leak"); //  one that has gone: from the begin
  assert.equal(walkedTo([FINE], null, 1), null);
});

test("the one that was walked to stands on top while numbers in its sentence go on", () => {
  const all = [LEAK, NAN, { ...PADDING, sentence: "padding, 31 %." }];
  assert.deepEqual(names(standingFirst(all, TOPICS, "memory", keyOf(PADDING))), ["padding", "leak", "nan"]);
  assert.equal(said({ findings: all, walked: keyOf(PADDING) })?.sentence, "padding, 31 %.");
  assert.equal(said({ findings: all, walked: keyOf(FINE) })?.sentence, "leak.");
});

test("the map is marked where findings begin, red where one of them is an alarm", () => {
  const since = found("tuning", "slow", "overview", { step: 9 }, { since: 4 });
  const same = found("tuning", "late", "overview", { step: 9 });
  assert.deepEqual([...begins([NAN, since, same, FINE, LEAK])], [[9, "alarm"], [4, "tuning"]]);
});

test("a finding about samples leads to them where the run has any: to those of its micro-batch, or of its kind", () => {
  const views = [{ id: "overview", title: "Overview", panels: [] }, { id: "samples", title: "Samples", panels: [] }, { id: "metrics", title: "Metrics", panels: [] }];
  const here = { has: () => true, ranks: [], views, topics: TOPICS, sampled: true };
  const spike = found("alarm", "gradient_spike", "overview", { step: 9, micro_batch: 3, phase: "update", process: "rank-00001" });
  const to = destination(spike, here);
  assert.deepEqual([to?.label, to?.tab, to?.samples], ["Go to samples of micro-batch 3, step 9", "samples", { micro_batch: 3, phase: "update", process: "rank-00001" }]);
  assert.deepEqual(destination(found("tuning", "cut_off", "overview", { step: 4 }), here)?.samples, { only: "truncated" });
  assert.deepEqual(destination(found("tuning", "equal_rewards", "overview", {}, { since: 2 }), here)?.samples, { only: "no_advantage" });
  assert.equal(destination(NAN, here)?.tab, "samples");
  assert.deepEqual(destination(found("alarm", "mismatch", "overview", {}, { since: 4 }), here), { label: "Go to samples of step 4", step: 4, rank: null, tab: "samples", samples: { only: "blocks" } });
  assert.deepEqual(destination(found("alarm", "not_sampled", "overview", { step: 4 }), here)?.samples, { only: "changed" });
  const token = destination(found("alarm", "not_sampled", "overview", { step: 4, token: 212 }), here);
  assert.deepEqual([token?.label, token?.samples], ["Go to token 212, step 4", { only: "changed", sort: "batch" }]); //  the token is of the first one
  assert.deepEqual([destination(spike, { ...here, sampled: false })?.tab, destination(LEAK, here)?.samples], ["overview", undefined]);
});

test("where an answer and a token of it are known, one button leads to that and another one to all such answers", () => {
  const views = [{ id: "overview", title: "Overview", panels: [] }, { id: "samples", title: "Samples", panels: [] }];
  const here = { has: (/** @type {number} */ step) => step < 9, ranks: [], views, topics: TOPICS, sampled: true };
  const place = { step: 4, answers: 14, key: /** @type {[string, number, number]} */ (["p", 0, 3]), token: 212 };
  const tokens = found("alarm", "not_sampled", "overview", {}, { since: 2, samples: place });
  const answer = { step: 4, key: place.key, token: 212 };
  assert.deepEqual(destination(tokens, here), { label: "Go to token 212, step 4", step: 4, rank: null, tab: "samples", samples: { only: "changed" }, answer });
  assert.deepEqual(answersOf(tokens, here), { label: "See the 14 answers", step: 4, rank: null, tab: "samples", samples: { only: "changed" } });
  const label = (/** @type {object} */ more, name = "not_sampled") => answersOf(found("alarm", name, "overview", {}, { samples: { ...place, ...more } }), here)?.label;
  assert.deepEqual([label({ answers: 1 }), label({ answers: null }), label({ answers: 0 }), label({ step: 9 })], ["See the answer", "See the answers", undefined, undefined]);
  assert.equal(label({}, "mismatch"), "See the 14 answers with tokens");
  assert.equal(answersOf(found("alarm", "not_sampled", "overview", {}, { since: 2 }), here), null);
  assert.equal(answersOf(tokens, { ...here, sampled: false }), null);
});

test("in a saved copy a finding leads to the answers that it keeps, and to no other step's", () => {
  const views = [{ id: "overview", title: "Overview", panels: [] }, { id: "samples", title: "Samples", panels: [] }];
  const line = (/** @type {number} */ row, /** @type {object} */ more) => ({ kind: /** @type {const} */ ("answer"), of: 0, group: "g", key: /** @type {[string, number, number]} */ (["p", 0, row]), ...more });
  const rows = { step: 4, total: 2, answers: 2, kept: 9, sampled: 9, note: "", from: 0, lines: [line(3, { changed: true }), line(5, {})] };
  const here = { has: () => true, ranks: [], views, topics: TOPICS, sampled: true, kept: { rows, tokens: [] } };
  const of = (/** @type {number} */ step, /** @type {number} */ row) => found("alarm", "not_sampled", "overview", { token: 21 }, { since: step, samples: { step, answers: 14, key: ["p", 0, row], token: 21 } });
  assert.deepEqual([destination(of(4, 3), here)?.label, answersOf(of(4, 3), here)?.label], ["Go to token 21, step 4", "See the answer of this copy"]);
  assert.deepEqual([destination(of(4, 8), here)?.label, answersOf(of(4, 8), here)], ["Go to samples of step 4", null]); //  it isn't kept
  assert.deepEqual([destination(of(2, 3), here)?.tab, answersOf(of(2, 3), here)], ["overview", null]);
  assert.equal(destination(found("tuning", "cut_off", "overview", { step: 4 }), here)?.tab, "overview"); //  it keeps none
});

test("what couldn't be judged is counted where all is well, and is nothing to do", () => {
  const unknown = { ...found("withheld", "agreement"), sentence: "It isn't known." };
  assert.deepEqual([said({ findings: [FINE, unknown] })?.why, said({ findings: [FINE, unknown, unknown] })?.why], ["One question couldn't be judged.", "2 questions couldn't be judged."]);
  assert.deepEqual(said({ findings: [FINE, unknown] })?.more, [FINE, unknown]);
  assert.deepEqual(names(said({ findings: [PADDING, FINE, unknown] })?.more ?? []), []);
  assert.equal(said({ findings: [unknown] }), null);
  assert.deepEqual([walkedTo([unknown], null, 1), counted([unknown], TOPICS).size, begins([{ ...unknown, since: 3 }]).size], [null, 0, 0]);
});
