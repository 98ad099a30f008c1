// The views as tabs.

import { freshId, node, say } from "./dom.js";
import { counted } from "./findings.js";
import { many } from "./words.js";

/** @import { View } from "./definition_types.js" */
/** @import { Panel } from "./view.js" */

/** The views as tabs. Each has a place for the number of findings of its view, which is empty without any. */
export class Tabs {
  /** @param {Panel} panel */
  constructor(panel) {
    this.panel = panel;
    this.store = panel.store;
    this.views = this.store.config.views || [];
    /** @type {View | null | undefined} */
    this.shown = null;
    this.pane = node("div", { class: "pp-pane", role: "tabpanel", id: freshId("pane"), tabindex: "-1" });
    this.tabs = this.views.map((view) => this._tab(view));
    this.root = node("div", { class: "pp-tabs", role: "tablist", "aria-label": "Views", on: { keydown: (event) => this._key(event) } }, ...this.tabs);
  }

  /** @param {View} view */
  _tab(view) {
    const found = node("span", { class: "pp-findings", hidden: true });
    return node("button", {
      type: "button", role: "tab", id: freshId("tab"), "aria-controls": this.pane.id, "data-view": view.id, title: view.about,
      on: { click: () => this.store.choose({ tab: view.id }) },
    }, view.title, found);
  }

  get chosen() {
    return this.views.find((view) => view.id === this.store.ui.tab) || this.views[0];
  }

  /** @param {KeyboardEvent} event */
  _key(event) {
    const at = this.views.indexOf(this.chosen);
    /** @type {Record<string, number>} */
    const moves = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: this.views.length - 1 };
    if (!(event.key in moves)) return;
    const to = (moves[event.key] + this.views.length) % this.views.length;
    event.preventDefault();
    this.store.choose({ tab: this.views[to].id });
    this.tabs[to].focus();
  }

  /** How many findings each view has, so that an alarm is seen from every view. */
  _count() {
    const { state, config } = this.store;
    const found = counted(state.verdict?.findings ?? [], config.topics ?? {});
    this.tabs.forEach((tab, at) => {
      const { alarm = 0, tuning = 0 } = found.get(this.views[at].id) ?? {};
      const place = /** @type {HTMLElement} */ (tab.lastElementChild);
      place.hidden = !(alarm + tuning);
      place.dataset.tone = alarm ? "alarm" : "tune";
      say(place, alarm + tuning ? String(alarm + tuning) : "");
      place.title = [alarm && many(alarm, "alarm"), tuning && `${tuning} worth a change`].filter(Boolean).join(", ");
      if (alarm + tuning) tab.setAttribute("aria-description", place.title);
      else tab.removeAttribute("aria-description");
    });
  }

  /** Mark the chosen tab; true where it is another one than before. */
  draw() {
    this._count();
    const { chosen } = this;
    const other = this.shown !== chosen;
    if (!other) return false;
    this.shown = chosen;
    this.tabs.forEach((tab, at) => {
      const selected = this.views[at] === chosen;
      tab.setAttribute("aria-selected", String(selected));
      tab.tabIndex = selected ? 0 : -1;
      if (selected) {
        this.pane.setAttribute("aria-labelledby", tab.id);
        inSight(this.root, tab);
      }
    });
    return true;
  }
}

/**
 * Scroll the row of tabs to one of them, and nothing else: the notebook stays where it is.
 * @param {HTMLElement} row
 * @param {HTMLElement} tab
 */
function inSight(row, tab) {
  const [left, right] = [tab.offsetLeft, tab.offsetLeft + tab.offsetWidth];
  if (left < row.scrollLeft || right > row.scrollLeft + row.clientWidth) row.scrollLeft = left - 8;
}
