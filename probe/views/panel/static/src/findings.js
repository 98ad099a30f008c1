// What was found in the run: which finding stands on top, which come after it, and where each of them is.

import { keeps, narrowedTo } from "./kept_samples.js";
import { count } from "./words.js";

/** @import { View } from "./definition_types.js" */
/** @import { Finding } from "./finding_types.js" */
/** @import { AnswerPlace, KeptSamples, Narrowing } from "./sample_types.js" */

/** @typedef {"alarm" | "tuning" | "fine" | "withheld" | "starting" | "silent"} Kind */

/**
 * @typedef {object} Standing what the strip says
 * @property {Kind} kind
 * @property {string} word
 * @property {string} sentence
 * @property {string} why
 * @property {Finding | null} finding
 * @property {Finding[]} more what unfolds below it
 */

/** The word of each kind. @type {Record<Kind, string>} */
export const WORDS = { alarm: "Alarm", tuning: "Worth a change", fine: "All is well", withheld: "Not judged", starting: "Starting", silent: "Silent" };

/**
 * Whether a finding asks for something to be done.
 * @param {Finding} finding
 * @returns {finding is Finding & {kind: "alarm" | "tuning"}}
 */
export const isOpen = (finding) => finding.kind === "alarm" || finding.kind === "tuning";

/**
 * Which view shows a finding; undefined where none here does.
 * @param {Finding} finding
 * @param {Record<string, string>} topics by topic
 */
export function viewOf(finding, topics) {
  return Object.hasOwn(topics, finding.topic) ? topics[finding.topic] : undefined;
}

/**
 * What a finding is known by, while numbers in its sentence go on.
 * @param {Finding} finding
 */
export const keyOf = ({ name, where }) => JSON.stringify([name, where.rank, where.process, where.role, where.phase]);

/**
 * Which finding comes before or after another one, in a ring: the worst follows the last.
 * @param {Finding[]} findings the worst first
 * @param {string | null} from by its key; null: none yet
 * @param {1 | -1} by
 * @returns {{finding: Finding, at: number, many: number} | null} null: there is none
 */
export function walkedTo(findings, from, by) {
  const found = findings.filter(isOpen);
  if (!found.length) return null;
  const now = found.findIndex((one) => keyOf(one) === from);
  const begin = by > 0 ? -1 : 0;
  const at = ((now < 0 ? begin : now) + by + found.length) % found.length;
  return { finding: found[at], at, many: found.length };
}

/**
 * Steps in which findings begin, and of which kind the worst of them is.
 * @param {Finding[]} findings
 * @returns {Map<number, "alarm" | "tuning">}
 */
export function begins(findings) {
  /** @type {Map<number, "alarm" | "tuning">} */
  const found = new Map();
  for (const { kind, since, where } of findings.filter(isOpen)) {
    const step = since ?? where.step;
    if (step !== null && (kind === "alarm" || !found.has(step))) found.set(step, kind);
  }
  return found;
}

/**
 * Alarms and what is worth a change, the worst first. On a view, its own come first among those of one kind: a change
 * that is worth it never hides an alarm. The one that was walked to comes before all.
 * @param {Finding[]} findings the worst first
 * @param {Record<string, string>} topics
 * @param {string | undefined} view undefined: the overview, which is of all
 * @param {string | null} [walked] its key
 * @returns {Finding[]}
 */
export function standingFirst(findings, topics, view, walked = null) {
  /** @param {Finding} one */
  const rank = (one) => (walked !== null && keyOf(one) === walked ? -1 : (one.kind === "alarm" ? 0 : 2) + (view !== undefined && viewOf(one, topics) !== view ? 1 : 0));
  return findings.filter(isOpen).sort((a, b) => rank(a) - rank(b));
}

/**
 * What the strip says; null: nothing, as nothing is known.
 * @param {object} of
 * @param {Finding[]} of.findings the worst first, those of all that is well and of what couldn't be judged too
 * @param {boolean} of.judged whether findings were looked for, all of them
 * @param {boolean} of.looking whether they will be
 * @param {boolean} of.begun whether a step has ended
 * @param {boolean} of.over whether none will come any more
 * @param {boolean} [of.advised] whether the advice has a change of settings
 * @param {string} of.silent for how long nobody has written, in words; "" where somebody writes or all is over
 * @param {Record<string, string>} of.topics
 * @param {string | undefined} of.view
 * @param {string | null} [of.walked] the key of the one that was walked to
 * @returns {Standing | null}
 */
export function standing({ findings, judged, looking, begun, over, advised = false, silent, topics, view, walked = null }) {
  const found = standingFirst(findings, topics, view, walked);
  if (found[0]?.kind === "alarm") return ofFinding(found, over);
  if (!begun) return over ? plain("silent", "No step has ended in this run.") : plain("starting", "No step has ended yet.");
  if (silent) return { ...plain("silent", `No process has reported for ${silent}.`), more: found };
  if (found.length) return ofFinding(found, over);
  if (judged && findings.some(({ kind }) => kind === "fine")) return { ...plain("fine", advised ? "Nothing is wrong." : "Nothing is wrong and nothing is worth a change."), why: withheld(findings), more: findings };
  return looking && !judged ? plain("starting", "Looking for what is wrong in this run.") : null;
}

/**
 * How much couldn't be judged, in words; "" where all was.
 * @param {Finding[]} findings
 */
function withheld(findings) {
  const many = findings.filter(({ kind }) => kind === "withheld").length;
  return many ? `${many === 1 ? "One question" : `${many} questions`} couldn't be judged.` : "";
}

/**
 * @param {Finding[]} found
 * @param {boolean} over
 * @returns {Standing}
 */
function ofFinding([finding, ...more], over) {
  const { kind, sentence, why, failure } = finding;
  return { kind, word: over && failure ? "Failed" : WORDS[kind], sentence, why, finding, more };
}

/**
 * @param {Kind} kind
 * @param {string} sentence
 * @returns {Standing}
 */
function plain(kind, sentence) {
  return { kind, word: WORDS[kind], sentence, why: "", finding: null, more: [] };
}

/**
 * How many findings each view has, alarms and what is worth a change.
 * @param {Finding[]} findings
 * @param {Record<string, string>} topics
 * @returns {Map<string, {alarm: number, tuning: number}>}
 */
export function counted(findings, topics) {
  const found = new Map();
  for (const one of findings) {
    const view = viewOf(one, topics);
    if (!isOpen(one) || view === undefined) continue;
    const known = found.get(view) ?? { alarm: 0, tuning: 0 };
    known[one.kind] += 1;
    found.set(view, known);
  }
  return found;
}

/** Findings whose place is among the samples, and which of them they are of. @type {Record<string, Partial<Narrowing>>} */
const OF_SAMPLES = { gradient_spike: {}, nan: {}, cut_off: { only: "truncated" }, equal_rewards: { only: "no_advantage" }, failed_in_baseline: { only: "failed" }, masked_in_baseline: {}, mismatch: { only: "blocks" }, not_sampled: { only: "changed" } };

/**
 * The samples that a finding is of; null where it is of none.
 * @param {Finding} finding
 * @returns {Partial<Narrowing> | null}
 */
export function samplesOf({ name, where }) {
  if (!Object.hasOwn(OF_SAMPLES, name)) return null;
  const { micro_batch: batch, phase, process, token = null } = where;
  //  The token is of the first answer in the order of the batch.
  return { ...OF_SAMPLES[name], ...(token === null ? {} : { sort: "batch" }), ...(batch === null ? {} : { micro_batch: batch, phase: phase ?? "", process: process ?? "" }) };
}

/**
 * The samples that a finding is of and that can be shown here; null where there are none.
 * @param {Finding} finding
 * @param {Here} here
 */
function samplesIn(finding, { views, sampled = false, kept = null }) {
  const samples = sampled && views.some(({ id }) => id === "samples") ? samplesOf(finding) : null;
  if (!samples || !kept) return samples;
  const { samples: place, where, since } = finding;
  const step = place?.step ?? where.step ?? since; //  a saved copy keeps those of one step
  return step === kept.rows.step && narrowedTo(kept.rows.lines, samples).length ? samples : null;
}

/**
 * @param {Finding["where"]} where
 * @param {string[]} ranks that can be chosen
 */
function rankOf({ rank, process }, ranks) {
  const who = rank === null ? process : `rank ${rank}`;
  return who !== null && ranks.length > 1 && ranks.includes(who) ? who : null;
}

/**
 * @param {(number | null | undefined)[]} steps
 * @param {(step: number) => boolean} has
 */
const firstOf = (steps, has) => steps.find((one) => one !== null && one !== undefined && has(one)) ?? null;

/**
 * @param {Partial<Narrowing>} samples
 * @param {number | null} token
 */
function ofSamples({ micro_batch: batch }, token) {
  if (token !== null) return `token ${token}, `;
  return batch === undefined ? "samples of " : `samples of micro-batch ${batch}, `;
}

/**
 * @typedef {object} Here what can be gone to
 * @property {(step: number) => boolean} has whether a step is there
 * @property {string[]} ranks that can be chosen
 * @property {View[]} views
 * @property {Record<string, string>} topics
 * @property {boolean} [sampled] whether the run has samples
 * @property {KeptSamples | null} [kept] those of a saved copy, which has no others
 */

/**
 * @typedef {object} Way to somewhere
 * @property {string} label of the button
 * @property {number | null} step
 * @property {string | null} rank
 * @property {string | null} tab
 * @property {Partial<Narrowing>} [samples]
 * @property {AnswerPlace} [answer] the one that is opened, and at which token
 */

/**
 * The answer that a finding leads to; null where there is none, or it isn't here.
 * @param {Finding} finding
 * @param {Here} here
 * @returns {AnswerPlace | null}
 */
function answerOf({ samples: place }, { has, kept = null }) {
  if (!place || !has(place.step)) return null;
  const answer = { step: place.step, key: place.key, token: place.token };
  return kept && !keeps(kept, answer) ? null : answer;
}

/**
 * Where a finding leads, and what the button says; null where nothing here shows its place.
 * @param {Finding} finding
 * @param {Here} here
 * @returns {Way | null}
 */
export function destination(finding, here) {
  const { where } = finding;
  const samples = samplesIn(finding, here);
  const answer = samples ? answerOf(finding, here) : null;
  const step = answer?.step ?? firstOf([where.step, finding.since], here.has);
  const rank = rankOf(where, here.ranks);
  const view = here.views.find(({ id }) => id === (samples ? "samples" : viewOf(finding, here.topics)));
  const place = step !== null ? `step ${step}` : (rank ?? view?.title);
  if (place === undefined) return null;
  const told = samples && step !== null ? ofSamples(samples, tokenOf(finding, answer, here)) : "";
  return { label: `Go to ${told}${place}`, step, rank, tab: view?.id ?? null, ...(samples && { samples }), ...(answer && { answer }) };
}

/**
 * The token that is gone to; null where it is none. A saved copy without the answer doesn't have the token either.
 * @param {Finding} finding
 * @param {AnswerPlace | null} answer
 * @param {Here} here
 */
const tokenOf = ({ where }, answer, { kept = null }) => answer?.token ?? (kept ? null : (where.token ?? null));

/**
 * The way to all answers of a step that a finding is of, beside the one to a token; null where it is no other way.
 * @param {Finding} finding
 * @param {Here} here
 * @returns {Way | null}
 */
export function answersOf(finding, here) {
  const { samples: place = null, name } = finding;
  if (!place || !samplesIn(finding, here) || !answerOf(finding, here)) return null; //  the first way leads to all of them
  const samples = OF_SAMPLES[name];
  const answers = here.kept ? narrowedTo(here.kept.rows.lines, samples).length : place.answers;
  if (answers === 0) return null;
  const what = answers === 1 ? "the answer" : `the ${answers === null ? "" : `${count(answers)} `}answers`;
  const kind = `${samples.only === "blocks" ? " with tokens" : ""}${here.kept ? " of this copy" : ""}`;
  return { label: `See ${what}${kind}`, step: place.step, rank: null, tab: "samples", samples };
}
