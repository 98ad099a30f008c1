// One answer: what became of it in a sentence, its tokens, how they are coloured, and its text where that is recorded.

import { chooser } from "./chooser.js";
import { COLOURINGS, colouringsOf, numbersOf } from "./colouring.js";
import { node, say } from "./dom.js";
import { factsOf, nameOf } from "./sample_words.js";
import { TokenMap } from "./token_map.js";
import { count } from "./words.js";

/** @import { SampleLine, SampleTokens } from "./sample_types.js" */

/** The part of the view that shows one answer. */
export class SampleAnswer {
  /** @param {() => void} leave what Escape does */
  constructor(leave) {
    this.colouring = "difference";
    this.map = new TokenMap();
    this.title = node("h3");
    this.facts = node("p", { class: "pp-sentence" });
    this.colour = chooser("Colour", Object.entries(COLOURINGS).map(([name, { title }]) => [name, title]), (value) => this._recolour(value));
    this.legend = node("p", { class: "pp-read pp-legend" });
    this.text = node("p", { class: "pp-answer-text", dir: "auto", tabindex: "0", role: "region", "aria-label": "Text of the prompt and the answer" });
    this.texts = node("details", { hidden: true }, node("summary", { text: "Text of the prompt and the answer" }), this.text);
    this.map.root.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.preventDefault();
      leave();
    });
    this.root = node("section", { class: "pp-answer", "aria-label": "One answer, token by token", hidden: true }, node("header", {}, this.title, this.facts), this.colour.root, this.map.root, this.legend, this.texts);
  }

  /** To its tokens with the keyboard. */
  focus() {
    if (!this.map.root.hidden) this.map.scroller.focus();
  }

  /**
   * @param {SampleTokens} told
   * @param {number | null} at the token that is looked at first; null: the first other one, or the one that differs most
   */
  show({ answer: line, tokens, arrays, ids, prompt, text, cut }, at = null) {
    /** @type {Record<string, Float32Array>} */
    const numbers = Object.fromEntries(Object.entries(arrays).map(([name, packed]) => [name, numbersOf(packed)]));
    this.root.hidden = false;
    say(this.title, `${nameOf(line)}${line.group ? ` of group ${line.group}` : ""}`);
    say(this.facts, factsOf(line));
    const known = colouringsOf(numbers);
    for (const option of this.colour.select.options) option.disabled = !known.includes(option.value);
    const colouring = known.includes(this.colouring) ? this.colouring : (known[0] ?? "");
    this.colour.root.hidden = !known.length;
    this.colour.select.value = colouring;
    const cells = Object.keys(numbers).length > 0 || ids.length > 0;
    this.map.root.hidden = !cells;
    if (cells) this.map.show({ tokens, arrays: numbers, ids: ids.length === tokens ? ids : [], version: line.weight_version ?? null }, colouring, at ?? placeOf(line));
    this._legend(cells);
    this.texts.hidden = text === null && prompt === null;
    say(this.text, [prompt, text].filter((one) => one !== null).join("\n\n") + (cut ? `\n… and ${count(cut)} more letters` : ""));
  }

  /** @param {string} name */
  _recolour(name) {
    this.colouring = name;
    this.map.colour(name);
    this._legend(true);
  }

  /** @param {boolean} cells */
  _legend(cells) {
    const { coloured } = this.map;
    if (!cells) say(this.legend, "A run keeps numbers per token for a few answers of each batch; for this one it keeps only those of the whole answer.");
    else if (!coloured) say(this.legend, "No number per token was recorded.");
    else {
      const meant = [coloured.less && `Orange: ${coloured.less}`, coloured.more && `${coloured.less ? "blue" : "Blue"}: ${coloured.more}`].filter(Boolean).join("; ");
      const low = this.map.shown?.arrays.mask && this.colour.select.value !== "mask" ? " Low cells are outside the loss." : "";
      const dots = coloured.dotted ? " Dot: confident disagreement, one side gives the token at least 50 %, the other at most 5 %." : "";
      say(this.legend, `${meant ? `${meant}. ` : ""}${coloured.scale}.${dots}${low} Log-probs and entropies are kept to 3 digits.`);
    }
  }
}

/**
 * The token that is looked at first: the first other one, or the one that differs most.
 * @param {SampleLine} line
 */
function placeOf({ changed_at: other, difference_at: most }) {
  return other ?? most ?? 0;
}
