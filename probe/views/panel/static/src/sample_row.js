// One line of the list of samples, which is used again for another one as the list scrolls.

import { freshId, node, say } from "./dom.js";
import { HEAD, answerTexts, groupTexts } from "./sample_words.js";

/** @import { SampleLine } from "./sample_types.js" */

/** px of a line, as the style sheet has it. */
export const LINE = 28;

/** One line of the list. */
export class SampleRow {
  constructor() {
    this.at = -1;
    /** @type {SampleLine | undefined} */
    this.line = undefined;
    this.cells = HEAD.map(() => node("span", { role: "gridcell" }));
    this.root = node("div", { role: "row", class: "pp-sample-line", id: freshId("sample") }, ...this.cells);
  }

  /**
   * @param {number} at
   * @param {SampleLine | undefined} line undefined: it isn't here yet
   * @param {boolean} active
   * @param {string} open the key of the answer that is open
   */
  write(at, line, active, open) {
    const { root } = this;
    root.hidden = false;
    root.setAttribute("aria-selected", String(active));
    root.toggleAttribute("data-open", line?.kind === "answer" && JSON.stringify(line.key) === open);
    if (at === this.at && line === this.line) return;
    this.at = at;
    this.line = line;
    root.style.transform = `translateY(${at * LINE}px)`;
    root.setAttribute("aria-rowindex", String(at + 2));
    root.dataset.at = String(at);
    root.dataset.kind = line?.kind ?? "";
    const texts = line ? (line.kind === "group" ? groupTexts(line) : answerTexts(line)) : ["…"];
    this.cells.forEach((cell, index) => say(cell, texts[index] ?? ""));
    this.cells[4].toggleAttribute("data-nan", Boolean(line?.nan_count));
  }
}
