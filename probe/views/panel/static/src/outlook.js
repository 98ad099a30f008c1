// Below the sliders of settings: how far caps can grow, what the advised changes come to together, and what came of
// earlier advice. Whoever looks for findings works it out with the advice; a saved copy keeps it.

import { drawn, freshId, node, say } from "./dom.js";
import { iconOf } from "./kind_icon.js";
import { wholeTicks } from "./scales.js";
import { styleOf } from "./theme.js";

/** @import { OutlookCap, OutlookList, OutlookPeaks, OutlookTold } from "./outlook_types.js" */
/** @import { Theme } from "./types.js" */
/** @import { Panel } from "./view.js" */

/** The view that it stands in. */
const VIEW = "what_if";

const TICKS = 5; //  of an axis
const ROWS = { now: "32", best: "48" }; //  below the picture: texts of caps that are near each other don't touch
const RIGHT = 0.72; //  of the width: beyond it a text ends where it stands

/** The figures. */
export class Outlook {
  /** @param {Panel} panel */
  constructor(panel) {
    this.panel = panel;
    /** What is drawn, and for which theme. @type {[told: OutlookTold | null, theme: Theme | null]} */
    this.shown = [null, null];
    this.root = node("div", { class: "pp-outlook", hidden: true });
  }

  draw() {
    const { store, tabs, theme } = this.panel;
    const told = tabs.chosen?.id === VIEW ? (store.state.outlook ?? null) : null;
    this.root.hidden = !told;
    const [last, look] = this.shown;
    if (!told || (last === told && look === theme)) return;
    this.shown = [told, theme];
    if (look !== theme || JSON.stringify(last) !== JSON.stringify(told)) this._draw(told, theme);
  }

  /**
   * What is unfolded stays so.
   * @param {OutlookTold} told
   * @param {Theme} theme
   */
  _draw({ caps, remarks, together, earlier }, theme) {
    const open = new Set([...this.root.querySelectorAll("details[open]")].map((one) => one.getAttribute("data-of")));
    const figures = caps.map((one) => peaksOf(one, theme));
    if (!caps.length && remarks.length) figures.push(framed("How far the cap can grow", remarks.join(" ")));
    if (together) figures.push(listOf("together", together.title ?? "", together));
    this.root.replaceChildren(...figures, listOf("earlier", "What came of earlier advice", earlier));
    for (const one of this.root.querySelectorAll("details")) if (open.has(one.getAttribute("data-of"))) one.open = true;
  }
}

/**
 * A figure with its title and one sentence.
 * @param {string} title
 * @param {string} sentence
 * @param {...(Node | null)} content
 */
function framed(title, sentence, ...content) {
  const heading = freshId("outlook");
  return node("figure", { "aria-labelledby": heading }, node("header", {}, node("h3", { id: heading, text: title }), node("p", { class: "pp-sentence", text: sentence })), ...content);
}

/**
 * Changes, or promises.
 * @param {string} name
 * @param {string} title
 * @param {OutlookList} list
 */
function listOf(name, title, { sentence, head, rows, notes = [] }) {
  if (!rows.length) return framed(title, sentence);
  const columns = node("tr", {}, ...head.map((text) => node("th", { scope: "col", text })));
  const lines = rows.map(({ cells, when, sum = false, held, about = "" }) => {
    const made = cells.map((text, at) => cellOf(text, head[at], at ? "" : "row", at === 1 ? about : ""));
    if (when) made.at(-1)?.querySelector("span")?.prepend(iconOf(when === "ready" ? "fine" : "tuning"));
    return node("tr", { "data-sum": sum, "data-when": when ?? null, "data-missed": held === false }, ...made);
  });
  const table = node("table", { "data-list": name }, node("thead", {}, columns), node("tbody", {}, ...lines));
  return framed(title, sentence, table, node("div", { class: "pp-read" }, ...notes.map((text) => node("p", { text }))));
}

/**
 * @param {string} text
 * @param {string} column which a narrow panel says beside it
 * @param {string} scope
 * @param {string} about
 */
function cellOf(text, column, scope, about) {
  return node(scope ? "th" : "td", { scope: scope || null, "data-column": column }, node("span", { text }), about ? node("small", { text: about }) : null);
}

// ------------------------------------------------------------------------------------------------ how far a cap can grow

/**
 * Where things stand: shares of the width and of the height, from the upper left.
 * @param {OutlookPeaks} of
 */
export function placesOf({ dots, line, capacity, now, best, aim }) {
  const across = [...dots.map(([tokens]) => tokens), ...line.map(([tokens]) => tokens), ...[now, best].flatMap((one) => (one ? [one.at] : []))];
  const up = [...dots.map(([, peak]) => peak), ...line.flatMap(([, , low, high]) => [low, high]), capacity, ...(aim ? [aim.low, aim.high] : [])];
  const [left, right, low, high] = [Math.min(...across), Math.max(...across), Math.min(...up), Math.max(...up)];
  const [wide, tall] = [(right - left || 1) * 1.06, (high - low || 1) * 1.1];
  const [from, floor] = [left - 0.03 * wide, low - 0.05 * tall];
  return {
    x: (/** @type {number} */ tokens) => (tokens - from) / wide,
    y: (/** @type {number} */ peak) => 1 - (peak - floor) / tall,
    tokens: wholeTicks(from, from + wide, TICKS),
    peaks: wholeTicks(floor, floor + tall, TICKS),
  };
}

/** @param {number} share */
const percent = (share) => `${(100 * share).toFixed(2)}%`;

/**
 * What the figure shows, in words.
 * @param {OutlookPeaks} of
 */
export function peaksInWords({ title, sentence, capacity, now, best, aim, slope }) {
  const told = [`${title}. ${sentence}`, `${slope}; the capacity is ${capacity.toFixed(1)} GiB.`];
  if (now) told.push(`The cap is ${now.text}.`);
  if (best) told.push(`It can be ${best.text}${aim ? `, where memory peaks at ${aim.text} GiB` : ""}.`);
  return told.join(" ");
}

/**
 * @param {OutlookPeaks} told
 * @param {Theme} theme
 */
function peaksOf(told, theme) {
  const { title, sentence, notes, head, rows } = told;
  const columns = node("tr", {}, ...head.map((text) => node("th", { scope: "col", text })));
  const lines = rows.map((cells) => node("tr", {}, ...cells.map((text) => node("td", { text }))));
  const table = node("table", { class: "pp-outlook-numbers", "aria-label": `${title}: numbers` }, node("thead", {}, columns), node("tbody", {}, ...lines));
  const numbers = node("details", { "data-of": title }, node("summary", { text: "Numbers" }), table);
  return framed(`How far the cap can grow: ${title}`, sentence, pictureOf(told, theme), node("div", { class: "pp-read" }, node("p", { text: notes.join(" ") })), numbers);
}

/**
 * The picture fills its place: marks stand at shares of it, so that no text is stretched.
 * @param {OutlookPeaks} told
 * @param {Theme} theme
 */
function pictureOf(told, theme) {
  const { dots, capacity, now, best, slope, phase } = told;
  const places = placesOf(told);
  const { x, y } = places;
  const full = percent(y(capacity));
  const grid = places.peaks.map((peak) => across("pp-outlook-grid", y(peak)));
  const ticks = places.peaks.filter((peak) => Math.abs(y(peak) - y(capacity)) > 0.06).map((peak) => label("pp-outlook-up", { x: "-8", y: percent(y(peak)), dy: "4" }, String(peak)));
  const tokens = places.tokens.map((at) => label("pp-outlook-along", { x: percent(x(at)), y: "100%", dy: "16" }, at.toLocaleString("en-US")));
  const marks = dots.map(([at, peak]) => drawn("circle", { cx: percent(x(at)), cy: percent(y(peak)), r: "1.8", fill: styleOf({ by: "phase" }, phase ?? "", theme).colour }));
  const limit = [across("pp-outlook-full", y(capacity)), label("pp-outlook-limit", { x: "0", y: full, dy: "-5" }, `${capacity.toFixed(1)} GiB: what can be allocated`)];
  const caps = [...capOf(now, places, "now"), ...capOf(best, places, "best")];
  const picture = drawn("svg", { role: "img", "aria-label": peaksInWords(told) }, ...grid, ...ticks, ...tokens, shapes(told, places), ...marks, ...limit, ...caps, ...aimOf(told, places));
  return node("div", { class: "pp-outlook-picture" }, picture, node("p", { class: "pp-outlook-slope", text: slope }));
}

/**
 * The line and its band, which may be stretched.
 * @param {OutlookPeaks} of
 * @param {ReturnType<typeof placesOf>} places
 */
function shapes({ line, seen }, { x, y }) {
  const at = (/** @type {number} */ tokens, /** @type {number} */ peak) => `${(100 * x(tokens)).toFixed(2)} ${(100 * y(peak)).toFixed(2)}`;
  const edge = [...line.map(([tokens, , , high]) => at(tokens, high)), ...line.map(([tokens, , low]) => at(tokens, low)).reverse()];
  const path = (/** @type {OutlookPeaks["line"]} */ some) => (some.length ? `M${some.map(([tokens, peak]) => at(tokens, peak)).join("L")}` : "");
  const known = line.filter(([tokens]) => tokens <= seen);
  return drawn("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", width: "100%", height: "100%" },
    drawn("path", { class: "pp-outlook-band", d: edge.length ? `M${edge.join("L")}Z` : "" }),
    drawn("path", { class: "pp-outlook-line", d: path(known) }),
    drawn("path", { class: "pp-outlook-line pp-outlook-beyond", d: path(line.filter(([tokens]) => tokens >= seen)) }));
}

/**
 * A cap: a line over the picture, and its number below.
 * @param {OutlookCap | null} cap
 * @param {ReturnType<typeof placesOf>} places
 * @param {"now" | "best"} kind
 */
function capOf(cap, { x }, kind) {
  if (!cap) return [];
  const at = percent(x(cap.at));
  const words = `${kind === "now" ? "cap" : "best"} ${cap.text}`;
  return [
    drawn("line", { class: `pp-outlook-${kind}`, x1: at, x2: at, y1: "0", y2: "100%" }),
    label(`pp-outlook-cap pp-outlook-${kind}`, { x: at, y: "100%", dy: ROWS[kind], "text-anchor": x(cap.at) > RIGHT ? "end" : "middle" }, words),
  ];
}

/**
 * The highest peak of the replay under the best cap.
 * @param {OutlookPeaks} of
 * @param {ReturnType<typeof placesOf>} places
 */
function aimOf({ aim }, { x, y }) {
  if (!aim) return [];
  const [at, high] = [percent(x(aim.at)), percent(y(aim.peak))];
  const place = x(aim.at) > RIGHT ? { dx: "-9", dy: "24", "text-anchor": "end" } : { dx: "9", dy: "14", "text-anchor": "start" };
  return [
    drawn("line", { class: "pp-outlook-reach", x1: at, x2: at, y1: percent(y(aim.low)), y2: percent(y(aim.high)) }),
    drawn("circle", { class: "pp-outlook-aim", cx: at, cy: high, r: "4.5" }),
    label("pp-outlook-aim", { x: at, y: high, ...place }, `${aim.text} GiB`),
  ];
}

/**
 * @param {string} kind
 * @param {number} at
 */
const across = (kind, at) => drawn("line", { class: kind, x1: "0", x2: "100%", y1: percent(at), y2: percent(at) });

/**
 * @param {string} kind
 * @param {Record<string, string>} place
 * @param {string} words
 */
function label(kind, place, words) {
  const made = drawn("text", { class: kind, ...place });
  say(made, words);
  return made;
}
