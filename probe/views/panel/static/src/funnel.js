// Where the tokens went, on top of the view Tokens: what is lost shrinks the stream, what is computed beside it is hatched.

import { freshId, node, say } from "./dom.js";

/** @import { FunnelLine } from "./finding_types.js" */
/** @import { Panel } from "./view.js" */

/** The view that it stands in. */
const VIEW = "tokens";

/** The funnel. */
export class Funnel {
  /** @param {Panel} panel */
  constructor(panel) {
    this.panel = panel;
    this.told = "";
    const heading = freshId("funnel");
    this.sentence = node("p", { class: "pp-sentence" });
    this.table = node("div", { class: "pp-scroll", tabindex: "0", role: "region", "aria-label": "Where the tokens went: numbers" });
    this.notes = node("div", { class: "pp-read" });
    this.root = node("figure", { class: "pp-funnel", "aria-labelledby": heading, hidden: true }, node("header", {}, node("h3", { id: heading, text: "Where the tokens went" }), this.sentence), this.table, this.notes);
  }

  draw() {
    const { store, tabs } = this.panel;
    const found = tabs.chosen?.id === VIEW ? store.state.verdict?.ledger : null;
    this.root.hidden = !found;
    if (!found) return;
    const told = JSON.stringify(found);
    if (told === this.told) return;
    this.told = told;
    say(this.sentence, found.sentence);
    const head = node("tr", {}, node("td"), node("td"), ...found.head.map((text) => node("th", { scope: "col", class: "pp-number", text })));
    const widest = Math.max(1, ...found.lines.map(({ stream, part }) => stream + part));
    this.table.replaceChildren(node("table", {}, node("thead", {}, head), node("tbody", {}, ...found.lines.map((line) => rowOf(line, widest)))));
    this.notes.replaceChildren(...found.notes.map((text) => node("p", { text })));
  }
}

/**
 * @param {FunnelLine} line
 * @param {number} widest share of the sampled tokens that a bar may have
 */
function rowOf({ title, about, cells, stream, part, kind }, widest) {
  const parts = [["stream", stream], [kind, part]].filter(([, share]) => Number(share) > 0);
  const bars = parts.map(([name, share]) => node("i", { class: `pp-${name}`, style: `inline-size: ${((100 * Number(share)) / widest).toFixed(3)}%` }));
  const heading = node("th", { scope: "row" }, title, about ? node("small", { text: about }) : null);
  return node("tr", { "data-kind": kind }, heading, node("td", {}, node("div", { class: "pp-stream-bar", "aria-hidden": "true" }, ...bars)), ...cells.map((text) => node("td", { class: "pp-number", text })));
}
