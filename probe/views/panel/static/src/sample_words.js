// What the lines of the list of samples say, and the sentence about one answer.

import { count, digits, many } from "./words.js";

/** @import { SampleLine } from "./sample_types.js" */

/** The columns of the list. */
export const HEAD = ["Answer", "Reward", "Advantage", "Tokens", "Difference", "What became of it"];

/** A longer name that begins with its group's is told without that. */
const LONG_NAME = 24;

/** @param {SampleLine} line */
export function nameOf({ uid, group, row }) {
  if (!uid || uid === group) return `Answer ${row}`;
  return group && uid.length > LONG_NAME && uid.startsWith(group) ? `…${uid.slice(group.length)}` : uid;
}

/** @param {number | null | undefined} value */
const told = (value) => (value === null || value === undefined ? "–" : digits(value));

/** @param {number | null | undefined} value */
const withSign = (value) => (value ? `${value > 0 ? "+" : ""}${digits(value)}` : told(value));

/** @param {SampleLine} line */
export function answerTexts(line) {
  const { reward, advantage_mean: advantage, response_tokens: tokens = 0, difference_largest: difference, nan_count: nan = 0, turns, tools } = line;
  return [`${nameOf(line)}${line.block ? " ▪" : ""}`, told(reward), withSign(advantage), tokens.toLocaleString("en"), nan ? `${count(nan)} NaN` : withSign(difference), becameOf(line, [turns && turns > 1 ? many(turns, "turn") : "", tools ? many(tools, "tool call") : ""]).join(" · ")];
}

/** @param {SampleLine} line */
export function groupTexts({ group, answers = 0, reward, tokens, difference_largest: difference, equal, truncated, dropped, failed }) {
  const counts = [many(answers, "answer"), truncated ? `${count(truncated)} cut off` : ""];
  const became = [answers > 1 ? "means of the group" : "", equal ? "equal rewards" : "", failed ? `${count(failed)} failed` : "", dropped ? `${count(dropped)} dropped` : ""];
  return [`${group}: ${counts.filter(Boolean).join(", ")}`, told(reward), "", told(tokens), withSign(difference), became.filter(Boolean).join(" · ")];
}

/**
 * @param {SampleLine} line
 * @param {string[]} conversation what is said of its turns, after what went wrong
 */
function becameOf({ ended, truncated, dropped, has_error: error, masked, changed, micro_batches: batches = [], passes }, conversation = []) {
  const missed = [error && dropped !== "failed" ? "failed" : "", masked && !dropped ? "not in the loss" : "", changed ? "other tokens than sampled" : ""];
  return [...missed, dropped ? `dropped: ${dropped}` : "", truncated && dropped !== "truncated" ? "truncated" : "", ...conversation, ended ?? "", trainedBy(batches, passes)].filter(Boolean);
}

/**
 * @param {number[]} batches
 * @param {number | null} [passes]
 */
function trainedBy(batches, passes) {
  const known = [...new Set(batches.filter((one) => one >= 0))];
  if (known.length) return `micro-batch ${known.join(", ")}`;
  return passes ? `trained ${passes === 1 ? "once" : `${passes} times`}` : "";
}

/** @param {SampleLine} line */
export function factsOf(line) {
  const { prompt_tokens: prompt, response_tokens: tokens = 0, loss_tokens: loss, turns, tools, reward, advantage_mean: advantage, weight_version: version, changed_at: other } = line;
  const known = Object.keys(FATES).filter((fate) => line[`${fate}_tokens`]).map((fate) => `${count(line[`${fate}_tokens`])} ${FATES[fate]}`);
  const parts = [
    `Reward ${told(reward)}, advantage ${withSign(advantage)}`,
    `${count(tokens)} tokens${prompt ? ` after ${count(prompt)} of the prompt` : ""}${loss !== null && loss !== undefined && loss !== tokens ? `, of which the loss counts ${count(loss)}` : ""}`,
    turns ? many(turns, "turn") : "", tools ? many(tools, "tool call") : "", version === null || version === undefined ? "" : `weights ${version}`, becameOf(line).join(", "), typeof other === "number" ? `the first other token is ${other}` : "", known.join(", "),
  ];
  return `${parts.filter(Boolean).join("; ")}.`;
}

/** @type {Record<string, string>} */
const FATES = {
  carried: "carried policy gradient", clipped: "clipped in every pass", no_advantage: "without advantage", masked: "outside the loss", dropped: "dropped",
  clip_unknown: "perhaps clipped", unknown: "not recorded",
};
