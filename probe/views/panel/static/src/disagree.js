// Why rollout and training disagree, in the view Tokens: what was found, each cause that was looked for with what was
// seen of it, the differences of single answers by position, and, where they begin at one token, their mean from there on.
// An answer's strip leads to that answer among the samples.

import { Curve } from "./difference_curve.js";
import { drawn, freshId, node, say } from "./dom.js";
import { many } from "./words.js";

/** @import { DifferenceStrip, Disagreement, LookedFor } from "./finding_types.js" */
/** @import { Panel } from "./view.js" */

/** The view that it stands in. */
const VIEW = "tokens";

const CELL = 4; //  of a strip's picture, in its own units, with the gap behind it
const HIGH = 10;

const OPENS = "A click on a strip opens its answer at that token.";
const READ = "Each strip is an answer by position, its width its number of tokens. Each part shows the largest difference in it: orange is less likely in training than in the rollout, blue more likely, from 0.1 to 2 nats. Low grey is outside the loss. ● marks the answers concerned. On the right is the largest difference, in nats.";

/** The figure. */
export class Disagree {
  /** @param {Panel} panel */
  constructor(panel) {
    this.panel = panel;
    this.store = panel.store;
    this.told = "";
    const heading = freshId("disagree");
    this.title = node("h3", { id: heading });
    this.sentence = node("p", { class: "pp-sentence" });
    this.confidence = node("p", { class: "pp-read" });
    this.causes = node("table", { class: "pp-causes", "aria-labelledby": heading });
    this.scroll = node("div", { class: "pp-scroll", tabindex: "0", role: "region", "aria-label": "The causes that were looked for" }, this.causes);
    this.looked = node("details", {}, node("summary", { text: "Causes that were looked for" }), this.scroll);
    this.curve = new Curve();
    this.parts = node("div", { class: "pp-disagree-parts" }, this.curve.root, this.looked);
    this.strips = node("ul", { class: "pp-difference-strips", "aria-label": "Differences of single answers, by position" });
    this.notes = node("div", { class: "pp-read" });
    this.root = node("figure", { class: "pp-disagree", "aria-labelledby": heading, hidden: true }, node("header", {}, this.title, this.sentence), this.confidence, this.parts, this.strips, this.notes);
  }

  draw() {
    const { store, tabs } = this.panel;
    const known = tabs.chosen?.id === VIEW ? (store.state.verdict?.disagreement ?? null) : null;
    this.root.hidden = !known;
    if (!known) return;
    const open = known.strips.map((strip) => this._reaches(strip));
    const told = JSON.stringify([known, open]);
    if (told === this.told) return;
    const another = !this.told || JSON.parse(this.told)[0].agree !== known.agree;
    this.told = told;
    if (another) this.looked.open = !known.agree; //  what the person has folded stays so, until it is another answer
    this._show(known);
  }

  /**
   * Whether an answer can be looked at token by token.
   * @param {DifferenceStrip} strip
   */
  _reaches({ step, key, token }) {
    return step !== null && key !== null && this.panel.samples.reaches({ step, key, token });
  }

  /**
   * Open the answer of a strip: at what was clicked, with the keyboard at the token that is looked at first.
   * @param {DifferenceStrip} strip
   * @param {MouseEvent} event
   */
  _open({ step, key, token, tops }, { target, clientX, detail }) {
    if (step === null || key === null) return;
    const picture = target instanceof Element && detail > 0 ? target.closest("button")?.querySelector("svg") : null;
    const box = picture?.getBoundingClientRect();
    const share = box?.width ? (clientX - box.left) / box.width : -1;
    this.panel.samples.lead({ step, key, token: share >= 0 && share < 1 ? tops[Math.floor(share * tops.length)] : token });
  }

  /** @param {Disagreement} told */
  _show({ agree, sentence, confidence, causes, curve, strips, notes }) {
    say(this.title, agree ? "Rollout and training agree" : "Why rollout and training disagree");
    say(this.sentence, sentence);
    say(this.confidence, confidence);
    const head = node("tr", {}, ...["Cause", "What was seen", "Is it?"].map((text) => node("th", { scope: "col", text })));
    this.causes.replaceChildren(node("thead", {}, head), node("tbody", {}, ...causes.map(rowOf)));
    this.curve.show(curve);
    this.parts.toggleAttribute("data-both", curve !== null);
    const open = strips.map((strip) => this._reaches(strip));
    this.strips.hidden = !strips.length;
    this.strips.replaceChildren(...strips.map((strip, at) => stripOf(strip, open[at] ? (event) => this._open(strip, event) : null)));
    const read = strips.length ? [[READ, open.includes(true) ? OPENS : ""].filter(Boolean).join(" ")] : [];
    this.notes.replaceChildren(...[...read, ...notes].map((text) => node("p", { text })));
  }
}

/** @param {LookedFor} cause */
function rowOf({ name, seen, state, word }) {
  return node("tr", { "data-state": state }, node("th", { scope: "row", text: name }), node("td", { text: seen }), node("td", { text: word }));
}

/**
 * @param {DifferenceStrip} strip
 * @param {((event: MouseEvent) => void) | null} open null: it leads nowhere
 */
function stripOf({ name, about, concerned, largest, tokens, share, levels, token }, open) {
  const label = `${many(tokens, "token")}, the largest difference ${largest}${concerned ? "; concerned" : ""}`;
  const picture = drawn("svg", { viewBox: `0 0 ${levels.length * CELL} ${HIGH}`, preserveAspectRatio: "none", role: "img", "aria-label": label, style: `inline-size: ${(100 * share).toFixed(1)}%` }, ...paths(levels));
  const title = node("span", { title: about }, concerned ? "● " : "", name, about ? node("small", { text: ` ${about}` }) : null);
  const parts = [title, node("span", { class: "pp-difference-strip" }, picture), node("span", { class: "pp-number", text: largest })];
  if (!open) return node("li", {}, node("div", { class: "pp-strip-line" }, ...parts));
  return node("li", {}, node("button", { type: "button", class: "pp-strip-line", "aria-label": `Open ${name} at token ${token}: ${label}`, on: { click: open } }, ...parts));
}

/**
 * The cells of a strip, those of one level in one path.
 * @param {(number | null)[]} levels
 */
export function cellsOf(levels) {
  /** @type {Map<number | null, string>} */
  const cells = new Map();
  levels.forEach((level, at) => {
    const [from, high] = level === null ? [HIGH - 3, 3] : [0, HIGH];
    cells.set(level, `${cells.get(level) ?? ""}M${at * CELL} ${from}h${CELL - 0.6}v${high}h${0.6 - CELL}z`);
  });
  return cells;
}

/** @param {(number | null)[]} levels */
function paths(levels) {
  return [...cellsOf(levels)].map(([level, d]) => drawn("path", { d, class: classOf(level), "fill-opacity": level ? String(0.16 + 0.21 * Math.abs(level)) : "1" }));
}

/** @param {number | null} level */
function classOf(level) {
  if (level === null) return "pp-left-out";
  if (level === 0) return "pp-noise";
  return level < 0 ? "pp-less" : "pp-more-likely";
}
