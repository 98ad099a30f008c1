// Where the tokens went, on top of the view Tokens: what is lost shrinks the stream, what is computed beside it is
// hatched. It is of the chosen or followed step, of the last steps up to it, or of the attempt.

import { freshId, node, say } from "./dom.js";
import { StepAsking } from "./step_asking.js";

/** @import { FoundLedger, FunnelAt, FunnelLine, FunnelTold } from "./finding_types.js" */
/** @import { Panel } from "./view.js" */

/** The view that it stands in. */
const VIEW = "tokens";

/** Of which steps it may be, and what the choice is called. @type {[name: "step" | "recent" | "attempt", text: string][]} */
const CHOICES = [
  ["step", "Step"],
  ["recent", "Last 20"],
  ["attempt", "Attempt"],
];

/** What each part of a bar is, in words. @type {[kind: string, text: string][]} */
const KEYS = [
  ["stream", "still on its way"],
  ["lost", "lost here"],
  ["unknown", "what became of it isn't known"],
  ["added", "computed in addition, beside the stream"],
  ["carried", "carried policy gradient"],
];

/** The funnel. */
export class Funnel {
  /** @param {Panel} panel */
  constructor(panel) {
    this.panel = panel;
    this.store = panel.store;
    this.told = "";
    /** @type {"step" | "recent" | "attempt"} */
    this.choice = "step";
    /** What was last known of a step. @type {FunnelAt | null} */
    this.last = null;
    /** @type {StepAsking<FunnelAt>} */
    this.asking = new StepAsking(panel, "funnel", {
      some: ({ step }) => Boolean(step),
      refused: (at, refused) => ({ at, refused, step: null, recent: null }),
      say: (text) => this._say(text),
      draw: () => this.draw(),
    });
    const heading = freshId("funnel");
    this.title = node("h3", { id: heading });
    this.sentence = node("p", { class: "pp-sentence" });
    this.buttons = CHOICES.map(([name, text]) => node("button", { type: "button", class: "pp-button", "data-choice": name, text, on: { click: () => this._choose(name) } }));
    this.choices = node("div", { class: "pp-funnel-choices", role: "group", "aria-label": "Of which steps" }, ...this.buttons);
    this.note = node("p", { class: "pp-read", role: "status", hidden: true });
    this.tiles = node("dl", { class: "pp-funnel-tiles" });
    this.keys = node("ul", { class: "pp-funnel-keys", "aria-label": "Colours" });
    this.table = node("div", { class: "pp-scroll", tabindex: "0", role: "region", "aria-label": "Where the tokens went: numbers" });
    this.notes = node("div", { class: "pp-read" });
    this.root = node("figure", { class: "pp-funnel", "aria-labelledby": heading, hidden: true }, node("header", {}, this.title, this.sentence, this.choices), this.note, this.tiles, this.keys, this.table, this.notes);
  }

  destroy() {
    this.asking.destroy();
  }

  draw() {
    const { store, tabs } = this.panel;
    const known = tabs.chosen?.id === VIEW ? (store.state.verdict?.ledger ?? null) : null;
    this.root.hidden = !known;
    if (!known) return;
    const found = this._found(known);
    const told = JSON.stringify([this.choice, found, known.lines]);
    if (told === this.told) return;
    this.told = told;
    this.choices.hidden = known.at === undefined; //  of a copy that knows of all steps alone
    for (const one of this.buttons) one.setAttribute("aria-pressed", String(one.dataset.choice === this.choice));
    this._show(found, known.lines);
  }

  /** @param {"step" | "recent" | "attempt"} name */
  _choose(name) {
    this.choice = name;
    this.draw();
  }

  /**
   * What is to be shown: until a step is known, what was shown before.
   * @param {FoundLedger} known
   * @returns {FunnelTold}
   */
  _found(known) {
    if (this.choice === "attempt" || known.at === undefined) {
      this.asking.rest();
      return known;
    }
    const { at, [this.choice]: told, refused } = this._at(known);
    return told ?? { sentence: refused || `What became of the tokens of step ${at} wasn't recorded.`, head: [], lines: [], notes: [], first: at, last: at };
  }

  /**
   * @param {FoundLedger} known
   * @returns {FunnelAt}
   */
  _at(known) {
    const { ui, followed, answers } = this.store;
    const step = ui.step ?? followed;
    if (step === null || known.at === step) {
      this.asking.rest();
      this.last = known;
      return known;
    }
    const told = this.asking.of(step);
    if (told) this.last = told;
    if (told) return told;
    if (!answers) this._say(ui.step === null ? "" : `This copy keeps only the tokens up to step ${known.at}.`);
    const newer = ui.step === null && (this.last?.at ?? -1) < (known.at ?? 0);
    return newer || !this.last ? known : this.last;
  }

  /**
   * @param {FunnelTold} found
   * @param {FunnelLine[]} whole the lines of the attempt
   */
  _show({ sentence, head, lines, notes, tiles = [], first, last }, whole) {
    say(this.title, titleOf(first, last));
    say(this.sentence, sentence);
    this.tiles.hidden = !tiles.length;
    this.tiles.replaceChildren(...tiles.map(({ value, about }) => node("div", {}, node("dt", { text: about }), node("dd", { class: "pp-value", text: value }))));
    this.table.hidden = !lines.length;
    const kinds = new Set(lines.flatMap(({ stream, part, kind }) => [stream > 0 ? "stream" : "", part > 0 ? kind : ""]));
    this.keys.hidden = !lines.length;
    this.keys.replaceChildren(...KEYS.filter(([kind]) => kinds.has(kind)).map(([kind, text]) => node("li", {}, node("i", { class: `pp-${kind}` }), text)));
    const money = lines.some((line) => line.money);
    const names = [...head, ...(money ? ["A step", "Attempt"] : [])];
    const columns = node("tr", {}, node("td"), node("td"), ...names.map((text) => node("th", { scope: "col", class: "pp-number", text })));
    const all = new Map(whole.map((line) => [line.title, line.money?.all ?? ""]));
    const widest = Math.max(1, ...lines.map(({ stream, part }) => stream + part));
    this.table.replaceChildren(node("table", {}, node("thead", {}, columns), node("tbody", {}, ...lines.map((line) => rowOf(line, widest, money ? [line.money?.step ?? "", all.get(line.title) ?? ""] : [])))));
    this.notes.replaceChildren(...notes.map((text) => node("p", { text })));
  }

  /** @param {string} text */
  _say(text) {
    say(this.note, text);
    this.note.hidden = !text;
  }
}

/**
 * Of which steps it is, in words.
 * @param {number} [first]
 * @param {number} [last]
 */
export function titleOf(first, last) {
  if (first === undefined || last === undefined) return "Where the tokens went";
  return first === last ? `Where the tokens of step ${first} went` : `Where the tokens of steps ${first} to ${last} went`;
}

/**
 * @param {FunnelLine} line
 * @param {number} widest share of the sampled tokens that a bar may have
 * @param {string[]} money of a step and of the attempt; [] without a price
 */
function rowOf({ title, about, cells, stream, part, kind }, widest, money) {
  const parts = [["stream", stream], [kind, part]].filter(([, share]) => Number(share) > 0);
  const bars = parts.map(([name, share]) => node("i", { class: `pp-${name}`, style: `inline-size: ${((100 * Number(share)) / widest).toFixed(3)}%` }));
  const heading = node("th", { scope: "row" }, title, about ? node("small", { text: about }) : null);
  return node("tr", { "data-kind": kind }, heading, node("td", {}, node("div", { class: "pp-stream-bar", "aria-hidden": "true" }, ...bars)), ...[...cells, ...money].map((text) => node("td", { class: "pp-number", text })));
}
