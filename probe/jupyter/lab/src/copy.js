// The copy that stands below a cell's panel: where the live panel isn't shown, it says why, and leads to a tab, which
// needs neither the kernel nor whatever executes the cells.

import { Panel, Widget } from "@lumino/widgets";
import { node, say } from "../../../views/panel/static/src/dom.js";
import { inShort, standing, whyNoPanel } from "./words.js";

/** @import { Listing } from "./listing.js" */

export const MIME = "application/vnd.probe.copy+json";
const WIDGET_VIEW = "application/vnd.jupyter.widget-view+json";
const PATIENCE_MS = 2000; //  a live panel that comes has come by then
const KEY = /^[0-9a-f]{32}$/;

/**
 * Draws the copy of a panel.
 * @param {{open: (run: string) => void, listing: Listing, rendermime: any, session: (place: Node) => any}} parts `session`
 *   gives the session of the notebook in which a node stands; undefined outside a notebook
 */
export function copyFactory(parts) {
  return {
    safe: true, //  what is a page in it is drawn by JupyterLab, and cleaned where it isn't trusted
    mimeTypes: [MIME],
    defaultRank: 45, //  before the page alone
    createRenderer: () => new CopyOutput(parts),
  };
}

class CopyOutput extends Panel {
  /** @param {Parameters<typeof copyFactory>[0]} parts */
  constructor(parts) {
    super();
    this.parts = parts;
    this.run = "";
    this.trusted = false;
    /** @type {any} */
    this.session = undefined;
    /** @type {any} */
    this.page = null;
    this.words = node("span");
    this.now = node("span");
    this.tab = node("button", { type: "button", class: "jp-mod-styled", text: "Open in a tab", on: { click: () => parts.open(this.run) } });
    this.rule = node("style");
    this.head = node("div", { class: "probe-copy-why", hidden: true }, node("p", {}, this.words, this.now), this.tab);
    this.addClass("probe-copy-output");
    this.addWidget(new Widget({ node: node("div", {}, this.rule, this.head) }));
    this._says = () => this._say();
    this._patience = setTimeout(() => { this.head.hidden = false; }, PATIENCE_MS);
    parts.listing.changed.connect(this._says);
  }

  /** @param {{data: Record<string, any>, trusted: boolean}} model */
  async renderModel(model) {
    const { run, key } = model.data[MIME] ?? {};
    this.run = typeof run === "string" ? run : "";
    this.trusted = model.trusted;
    // The page's own rule is cleaned away where it isn't trusted, and this line goes with it in any case.
    if (KEY.test(key)) {
      this.addClass(`probe-kept-${key}`);
      this.rule.textContent = `:root:has([data-key="${key}"]) .probe-kept-${key} { display: none }`;
    }
    this._say();
    if (typeof model.data["text/html"] !== "string") return;
    if (!this.page) {
      this.page = this.parts.rendermime.createRenderer("text/html");
      this.addWidget(this.page);
    }
    await this.page.renderModel(model);
  }

  /**
   * It stands in a notebook now.
   * @override
   */
  onAfterAttach() {
    this.session = this.parts.session(this.node);
    this.session?.statusChanged.connect(this._says);
    this.session?.kernelChanged.connect(this._says);
    this._say();
  }

  /** @override */
  onBeforeDetach() {
    this.session?.statusChanged.disconnect(this._says);
    this.session?.kernelChanged.disconnect(this._says);
    this.session = undefined;
  }

  /** @override */
  dispose() {
    if (this.isDisposed) return;
    clearTimeout(this._patience);
    this.parts.listing.changed.disconnect(this._says);
    super.dispose();
  }

  _say() {
    const { session, run } = this;
    const widgets = this.parts.rendermime.mimeTypes.includes(WIDGET_VIEW);
    say(this.words, whyNoPanel(this.trusted, widgets, session && (session.session?.kernel?.status ?? null)));
    const known = this.parts.listing.runs.find(({ directory }) => directory === run);
    say(this.now, known ? [`Now: ${standing(known, Date.now() / 1000)}`, inShort(known)].filter(Boolean).join(" · ") : "");
    this.tab.hidden = !run;
  }
}
