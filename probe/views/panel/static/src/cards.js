// One chart with its title, what it means, and its numbers as a table.

import { freshId, node, say } from "./dom.js";
import { FacetMark, isFaceted } from "./facets.js";
import { markOf } from "./marks.js";

/** Milliseconds between redraws for new data. */
export const PACE = 250;

/** How much of the main thread one chart may use for new data. */
const SHARE_OF_CARD = 0.015;

const WIDE = new Set(["tiles", "table", "timeline", "stack", "heat", "stragglers"]);

const EMPTY = {
  spans: "No scope has ended yet: phases come from probe.phase, session.step and probe.watch.",
  memory: "No memory was sampled yet.",
  micro: "No micro-batches were recorded: nothing was cut by probe.micro_batches or rearrange_micro_batches yet.",
  padding: "No padded batch was formed yet.",
  scalars: "No metric was logged yet.",
  reductions: "reduce_metrics was not called yet.",
  calls: "No call of an observed function was recorded yet.",
  events: "Nothing went wrong with the observing.",
};

/** The live tables that a `live:` block names anywhere. */
function tablesOf(spec) {
  if (spec === null || typeof spec !== "object") return [];
  const own = typeof spec.table === "string" ? [spec.table] : [];
  return [...new Set([...own, ...Object.values(spec).flatMap(tablesOf)])];
}

/** One chart with its title, what it means, and its numbers as a table. */
export class Card {
  constructor(panel, id, definition) {
    Object.assign(this, { panel, id, definition });
    this.store = panel.store;
    this.model = panel.model;
    this.spec = definition.live;
    this.title = definition.title;
    this.tables = tablesOf(this.spec);
    this.due = 0;
    this.visible = true;
    this.dirty = true;
    this._frame();
    this.mark = this.spec ? (isFaceted(this.spec) ? new FacetMark(this) : markOf(this)) : null;
    if (!this.mark) this._say(this.spec ? `This panel's mark ${this.spec.mark} isn't known here.` : "This picture is in the report: probe report.");
  }

  _frame() {
    const heading = freshId("card");
    this.place = node("span", { class: "pp-place" });
    this.body = node("div", { class: "pp-body" });
    this.message = node("p", { class: "pp-empty", hidden: true });
    this.numbers = node("div", { class: "pp-scroll pp-numbers", hidden: true, tabindex: "0", role: "region", "aria-label": `${this.title}: numbers` });
    const head = node("header", {}, node("h3", { id: heading, text: this.title }), this.place);
    const mark = this.spec?.mark;
    if (mark && mark !== "tiles" && mark !== "table") {
      this.toggle = node("button", { type: "button", class: "pp-plain", "aria-expanded": "false", "aria-label": `Numbers of ${this.title}`, title: "The numbers as a table", text: "Numbers", on: { click: () => this.unfold(this.numbers.hidden) } });
      head.append(this.toggle);
    }
    this.root = node("figure", { class: `pp-card pp-mark-${mark || "none"}`, role: "group", "aria-labelledby": heading }, head, this.message, this.body, this.numbers, this._about());
    if (WIDE.has(mark) || (this.spec && isFaceted(this.spec))) this.root.classList.add("pp-wide");
    if (this.store.ui.unfolded[this.id]) this.unfold(true, false);
  }

  _about() {
    const { about } = this.definition;
    if (!about) return null;
    const lines = [["shows", "Shows"], ["read", "Read it"], ["do", "Then"]].filter(([name]) => about[name]);
    const told = lines.map(([name, title]) => node("p", {}, node("b", { text: `${title}: ` }), about[name]));
    return node("details", { class: "pp-about" }, node("summary", { text: "How to read this" }), ...told);
  }

  /** Show the numbers below the chart, or hide them. */
  unfold(open, draw = true) {
    this.numbers.hidden = !open;
    this.toggle?.setAttribute("aria-expanded", String(open));
    this.store.ui.unfolded[this.id] = open;
    if (open && draw) this._numbers();
  }

  _numbers() {
    const made = this.shown ? this.mark.table() : null;
    if (!made) return;
    const head = node("tr", {}, ...made.head.map((text) => node("th", { scope: "col", text })));
    const rows = made.rows.map((cells) => node("tr", {}, ...cells.map((text, at) => this._cell(text, at, cells.pick))));
    this.numbers.replaceChildren(node("table", { class: "pp-table" }, node("thead", {}, head), node("tbody", {}, ...rows)));
  }

  _cell(text, at, pick) {
    if (at || !pick) return node("td", { text });
    return node("td", {}, node("button", { type: "button", class: "pp-link", title: "What made it", text: text || "–", on: { click: pick } }));
  }

  /** Whether what it shows may have changed since it was drawn: its tables, or the step that is shown. */
  stale() {
    return this.seen !== this._seen();
  }

  _seen() {
    const step = this.spec?.of === "step" || this.spec?.mark === "tiles" ? this.store.step : null;
    return `${step}|${this.tables.map((name) => this.store.table(name).version).join("|")}`;
  }

  get theme() {
    return this.panel.theme;
  }

  _say(text) {
    this.message.hidden = !text;
    say(this.message, text);
  }

  /** Draw. How long it takes decides when new data may draw it again, so that the page stays free. */
  draw(now) {
    if (!this.mark) return;
    this.dirty = false;
    this.seen = this._seen();
    const shown = this.mark.draw();
    this.shown = shown;
    this.body.hidden = !shown;
    this._say(shown ? "" : this._nothing());
    this.root.dataset.state = shown ? "drawn" : "empty";
    if (!this.numbers.hidden && shown && !this.numbers.contains(document.activeElement)) this._numbers();
    const step = this.spec.of === "step" && this.store.step !== null ? `step ${this.store.step}` : "";
    if (this.spec.mark !== "line") say(this.place, [step, this.mark.remark].filter(Boolean).join(" · "));
    const cost = performance.now() - now;
    this.due = now + Math.max(PACE, cost / SHARE_OF_CARD);
  }

  _nothing() {
    const { role, rank, phase, step, zoom } = this.store.ui;
    const held = this.store.table(this.spec.table).count;
    if (!held) return EMPTY[this.spec.table] || "Nothing yet.";
    const chosen = [role, rank !== "" ? `rank ${rank}` : "", phase].filter(Boolean);
    if (chosen.length) return `Nothing here for ${chosen.join(", ")}.`;
    if (this.spec.of === "step" || step !== null) return `Nothing here in step ${this.store.step}.`;
    return zoom ? "Nothing here in this part of the run." : EMPTY[this.spec.table] || "Nothing yet.";
  }

  invalidate() {
    this.due = 0;
    this.dirty = true;
    this.panel.wake();
  }

  restyle() {
    this.mark?.restyle();
    this.invalidate();
  }

  point(text) {
    say(this.place, text);
  }

  pick(selection) {
    this.panel.details.show(selection);
  }

  announce(text) {
    this.panel.announce(text, true);
  }

  destroy() {
    this.mark?.destroy();
  }
}
