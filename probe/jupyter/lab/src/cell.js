// What a cell can ask for: a tab beside the notebook.

import { Widget } from "@lumino/widgets";
import { node } from "../../../views/panel/static/src/dom.js";

export const MIME = "application/vnd.probe.tab+json";
const FRESH_S = 30; //  a notebook that is opened later must open nothing by itself

/**
 * Draws the output of `panel(where="tab")`: opens the tab, and stays as a button.
 * @param {(run: string) => void} open
 * @param {Set<number>} seen moments that were answered already: an output may be drawn more than once
 */
export function tabFactory(open, seen = new Set()) {
  return {
    safe: true,
    mimeTypes: [MIME],
    defaultRank: 40,
    createRenderer: () => new TabOutput(open, seen),
  };
}

class TabOutput extends Widget {
  /**
   * @param {(run: string) => void} open
   * @param {Set<number>} seen
   */
  constructor(open, seen) {
    super();
    this.open = open;
    this.seen = seen;
    this.addClass("probe-tab-output");
  }

  /** @param {{data: Record<string, any>}} model */
  renderModel({ data }) {
    const { run, asked_s: asked } = data[MIME] ?? {};
    if (typeof run !== "string") return Promise.resolve();
    this.node.replaceChildren(node("button", { type: "button", class: "jp-mod-styled", text: `Open the panel of ${run} in a tab`, on: { click: () => this.open(run) } }));
    if (Math.abs(Date.now() / 1000 - asked) < FRESH_S && !this.seen.has(asked)) {
      this.seen.add(asked);
      this.open(run);
    }
    return Promise.resolve();
  }
}
