// What happened beside what would have: a line for each number, both on one scale of its own.

import { node } from "./dom.js";
import { bytes, count, digits, seconds } from "./words.js";

/** @import { Answered } from "./what_if_types.js" */

/** @param {number} value */
const times = (value) => `${value.toFixed(2)}×`;

/** @param {number} value */
const percent = (value) => `${digits(100 * value)} %`;

/** @param {number} value */
const whole = (value) => (Number.isInteger(value) && value < 1e6 ? value.toLocaleString("en") : count(value));

/** @type {{name: string, title: string, about: string, spell: (value: number) => string}[]} */
const LINES = [
  { name: "predicted_step_s", title: "Time of the step", about: "what if: recorded plus the predicted change", spell: seconds },
  { name: "predicted_s", title: "Time in micro-batches", about: "of the slowest rank", spell: seconds },
  { name: "predicted_peak_bytes", title: "Largest peak", about: "of a micro-batch", spell: bytes },
  { name: "micro_batches", title: "Micro-batches of a rank", about: "of the rank with the most", spell: whole },
  { name: "largest_tokens", title: "Largest micro-batch, tokens", about: "", spell: whole },
  { name: "over_cap", title: "Micro-batches above the cap", about: "", spell: whole },
  { name: "rank_imbalance_ratio", title: "Imbalance over ranks", about: "fullest ÷ mean", spell: times },
  { name: "mini_batch_imbalance_ratio", title: "Imbalance over mini-batches", about: "fullest ÷ mean, in each mini-batch", spell: times },
  { name: "waiting_ratio", title: "Waiting for the fullest rank", about: "if time is proportional to tokens", spell: percent },
  { name: "padding_tokens", title: "Padding computed, tokens", about: "", spell: whole },
];

/** @param {number | null | undefined} value */
const known = (value) => typeof value === "number";

/**
 * @param {Answered | null} answer
 * @param {string} name
 * @param {(value: number) => string} spell
 */
function texts(answer, name, spell) {
  const [then, now, low, high] = [answer?.before[name], answer?.after[name], answer?.low[name], answer?.high[name]];
  const reach = known(low) && known(high) ? (Number(high) - Number(low)) / 2 : null;
  return { then: known(then) ? spell(Number(then)) : "–", now: known(now) ? spell(Number(now)) : "–", reach: reach === null ? "" : `± ${spell(reach)}` };
}

/**
 * What is said below the name of a number.
 * @param {Answered | null} answer
 * @param {string} name
 * @param {string} about
 * @param {(value: number) => string} spell
 */
function below(answer, name, about, spell) {
  const modelled = answer?.modelled[name];
  if (known(modelled)) about += `; the model gives ${spell(Number(modelled))} for the recorded`;
  if (name === "predicted_s" && answer?.saved && Math.abs(answer.saved[0]) > 0) {
    const [saved, reach] = answer.saved;
    return `${about}, so ${seconds(Math.abs(saved))} ± ${seconds(reach)} ${saved > 0 ? "less" : "more"}`;
  }
  const counts = name === "micro_batches" ? (answer?.counts ?? []) : [];
  if (counts.length < 2) return about;
  const [least, most] = [Math.min(...counts), Math.max(...counts)];
  return least === most ? `${most} on each of ${counts.length} ranks` : `${least} to ${most} over ${counts.length} ranks`;
}

/**
 * Both values on one scale, with the interval, and the end of what there is room for.
 * @param {Answered} answer
 * @param {string} name
 * @param {number | null} room
 */
function scale({ before, after, low, high }, name, room) {
  const all = [before[name], after[name], low[name], high[name], room].filter(known).map(Number);
  const [least, most] = [Math.min(...all), Math.max(...all)];
  /** @param {number | null | undefined} value */
  const at = (value) => (most > least ? 4 + (92 * (Number(value) - least)) / (most - least) : 50);
  /** @type {(from: number, to: number) => string} */
  const span = (from, to) => `inset-inline-start: ${Math.min(from, to).toFixed(2)}%; inline-size: ${Math.abs(to - from).toFixed(2)}%`;
  const [then, now] = [before[name], after[name]];
  const marks = [
    known(then) && known(now) ? node("i", { class: "pp-way", style: span(at(then), at(now)) }) : null,
    known(low[name]) && known(high[name]) ? node("i", { class: "pp-interval", style: span(at(low[name]), at(high[name])) }) : null,
    room === null ? null : node("i", { class: "pp-room", style: `inset-inline-start: ${at(room).toFixed(2)}%` }),
    known(then) ? node("i", { class: "pp-then", style: `inset-inline-start: ${at(then).toFixed(2)}%` }) : null,
    known(now) ? node("i", { class: "pp-now", style: `inset-inline-start: ${at(now).toFixed(2)}%` }) : null,
  ];
  return node("div", { class: "pp-both", "aria-hidden": "true" }, ...marks);
}

/**
 * The lines of a table.
 * @param {Answered | null} answer null while nothing is known
 * @param {number | null} room bytes that may be allocated
 */
export function linesFor(answer, room) {
  return LINES.map(({ name, title, about, spell }) => {
    const { then, now, reach } = texts(answer, name, spell);
    const said = below(answer, name, about, spell);
    const full = name === "predicted_peak_bytes" && room !== null && known(answer?.high[name]) && Number(answer?.high[name]) > room;
    const heading = node("th", { scope: "row" }, title, said ? node("small", { text: said }) : null, full ? node("small", { class: "pp-full", text: `may pass the ${bytes(Number(room))} that there is room for` }) : null);
    const drawn = answer ? scale(answer, name, name === "predicted_peak_bytes" ? room : null) : null;
    return node("tr", { "data-number": name }, heading, node("td", { class: "pp-number", text: then }), node("td", { class: "pp-scale" }, drawn), node("td", { class: "pp-number" }, node("b", { text: now }), reach ? ` ${reach}` : null));
  });
}
