// One chart with its title, what it means, and its numbers as a table.

import { copied, freshId, node, say } from "./dom.js";
import { FacetMark, isFaceted } from "./facets.js";
import { markOf } from "./marks.js";
import { PlotMark } from "./plot_mark.js";
import { walkable } from "./walking.js";

/** @import { Definition, Spec } from "./definition_types.js" */
/** @import { Mark, Selection } from "./types.js" */
/** @import { Panel } from "./view.js" */

/** Milliseconds between redraws for new data. */
export const PACE = 250;

/** How much of the main thread one chart may use for new data. */
const SHARE_OF_CARD = 0.015;
/** Milliseconds after which new data are drawn however long it took: an older picture beside newer numbers misleads. */
const LONGEST = 5000;
/** The same after the first picture, whose making says nothing about how long the next one takes. */
const AFTER_FIRST = 1000;

const WIDE = new Set(["tiles", "table", "timeline", "stack", "heat", "stragglers"]);

/** What a card says while its table is empty. @type {Record<string, string>} */
const EMPTY = {
  spans: "No scope has ended yet: phases come from probe.phase, session.step and probe.watch.",
  memory: "No memory was sampled yet.",
  micro: "No micro-batches were recorded: nothing was cut by probe.micro_batches or rearrange_micro_batches yet.",
  padding: "No padded batch was formed yet.",
  fates: "No samples were recorded. probe.samples(…) records them; verl and TRL need no line.",
  scalars: "No metric was logged yet.",
  reductions: "reduce_metrics was not called yet.",
  calls: "No call of an observed function was recorded yet.",
  events: "probe itself had no errors.",
};

/**
 * The live tables that a `live:` block names anywhere.
 * @param {any} spec
 * @returns {string[]}
 */
function tablesOf(spec) {
  if (spec === null || typeof spec !== "object") return [];
  const own = typeof spec.table === "string" ? [spec.table] : [];
  return [...new Set([...own, ...Object.values(spec).flatMap(tablesOf)])];
}

/** One chart with its title, what it means, and its numbers as a table. */
export class Card {
  /**
   * @param {Panel} panel
   * @param {string} id
   * @param {Definition} definition
   */
  constructor(panel, id, definition) {
    this.panel = panel;
    this.id = id;
    this.definition = definition;
    this.store = panel.store;
    this.model = panel.model;
    /** @type {Spec} */
    this.spec = definition.live ?? { table: "" };
    this.title = definition.title;
    this.tables = tablesOf(definition.live ?? null);
    this.due = 0;
    this.first = true; //  no picture has been drawn
    this.visible = true;
    this.dirty = true;
    this.behind = false; //  it is marked as older than what it is made of
    this.shown = false; //  something is drawn
    this.seen = ""; //  what it was drawn of
    this.answer = -1; //  the last answer for all pictures that it was drawn of
    /** What it asked for when it was drawn, and had no answer then. @type {Set<string>} */
    this.awaits = new Set();
    /** Where in the figure the pointer went down last, px from its left. @type {number | undefined} */
    this.pointed = undefined;
    this.place = node("span", { class: "pp-place" });
    this.sentence = node("p", { class: "pp-sentence", text: definition.about?.shows ?? "" });
    this.body = node("div", { class: "pp-body" });
    this.message = node("p", { class: "pp-empty", hidden: true });
    this.rows = node("div", { class: "pp-scroll", tabindex: "0", role: "region", "aria-label": `${this.title}: numbers` });
    this.kept = node("p", { class: "pp-quiet", text: "Newer numbers come when you leave this table.", hidden: true });
    this.numbers = node("div", { class: "pp-numbers", hidden: true, on: { focusout: (event) => this._left(event) } }, definition.sql ? this._copier(definition.sql) : null, this.rows, this.kept);
    this.toggle = this._toggle();
    this.root = this._frame();
    if (this.store.ui.unfolded[id]) this.unfold(true, false);
    /** @type {Mark | null} */
    this.mark = isFaceted(this.spec) ? new FacetMark(this) : markOf(this);
    if (!this.mark) this._say(definition.live ? `This page can't draw the mark ${this.spec.mark}.` : "This figure is in the report: probe report.");
    if (this.mark instanceof PlotMark) walkable(this, this.mark);
  }

  /** Whether it stands above the controls: numbers that are no figure. */
  get leads() {
    return this.spec.mark === "tiles";
  }

  _frame() {
    const heading = freshId("card");
    const head = node("header", {}, node("h3", { id: heading, text: this.title }), this.place, this.sentence, this.toggle);
    const mark = this.spec.mark || "none";
    const root = node("figure", {
      class: `pp-card pp-mark-${mark}`, "aria-labelledby": heading, on: { pointerdown: (event) => this._point(event) },
    }, head, node("p", { class: "pp-behind" }, node("span", { text: "updating…" })), this.message, this.body, this.numbers, this._read());
    if (WIDE.has(mark) || isFaceted(this.spec)) root.classList.add("pp-wide");
    return root;
  }

  /** @param {PointerEvent} event */
  _point(event) {
    this.pointed = event.clientX - this.root.getBoundingClientRect().left;
  }

  /** What unfolds the numbers, of marks that aren't numbers themselves. */
  _toggle() {
    if (["tiles", "table", undefined].includes(this.spec.mark)) return null;
    return node("button", {
      type: "button", class: "pp-plain", "aria-expanded": "false", "aria-label": `Numbers of ${this.title}`, title: "The numbers as a table", text: "Numbers",
      on: { click: () => this.unfold(this.numbers.hidden) },
    });
  }

  /**
   * What copies the query for the numbers.
   * @param {string} sql
   */
  _copier(sql) {
    const button = node("button", {
      type: "button", class: "pp-plain", "aria-label": `Copy SQL of ${this.title}`, title: "For run.sql(...) and probe sql", text: "Copy SQL",
      on: { click: () => copied(sql.replaceAll("{step}", String(this.store.step))).then((done) => say(button, done ? "Copied" : "Can't be copied here"), () => say(button, "Can't be copied here")) },
    });
    return node("p", {}, button);
  }

  /** How the picture is read, in at most two lines. */
  _read() {
    const { about } = this.definition;
    const text = [about?.read, about?.do].filter(Boolean).join(" ");
    return text && !this.leads ? node("figcaption", { class: "pp-read", text }) : null;
  }

  /**
   * Show the numbers below the chart, or hide them.
   * @param {boolean} open
   * @param {boolean} [draw]
   */
  unfold(open, draw = true) {
    this.numbers.hidden = !open;
    this.toggle?.setAttribute("aria-expanded", String(open));
    this.store.ui.unfolded[this.id] = open;
    if (open && draw) this._numbers();
  }

  /** The numbers of a new picture; where somebody reads them, they stay, and say so. */
  _renew() {
    if (this.numbers.contains(document.activeElement)) this._keep(true);
    else this._numbers();
  }

  /** @param {boolean} old whether the numbers are those of an older picture */
  _keep(old) {
    this.kept.hidden = !old;
    this.rows.setAttribute("aria-busy", String(old));
  }

  /** @param {FocusEvent} event */
  _left({ relatedTarget }) {
    if (!this.kept.hidden && !(relatedTarget instanceof Node && this.numbers.contains(relatedTarget))) this._numbers();
  }

  _numbers() {
    const made = this.shown ? this.mark?.table() : null;
    if (!made) return;
    this._keep(false);
    const head = node("tr", {}, ...made.head.map((text) => node("th", { scope: "col", text: text || "value" })));
    const rows = made.rows.map((cells) => node("tr", {}, ...cells.map((text, at) => this._cell(text, at, cells.pick))));
    this.rows.replaceChildren(node("table", { class: "pp-table" }, node("thead", {}, head), node("tbody", {}, ...rows)));
  }

  /**
   * @param {string} text
   * @param {number} at
   * @param {(() => void) | undefined} pick
   */
  _cell(text, at, pick) {
    if (at || !pick) return node("td", { text });
    return node("td", {}, node("button", { type: "button", class: "pp-link", title: "What made it", text: text || "–", on: { click: pick } }));
  }

  /** Whether what it shows may have changed since it was drawn: its tables, or the step that is shown. */
  stale() {
    return this.seen !== this._seen();
  }

  _seen() {
    const step = this.spec.of === "step" || this.spec.mark === "tiles" ? this.store.step : null;
    return `${step}|${this.store.complete}|${this.store.thins}|${this.tables.map((name) => this.store.table(name).version).join("|")}`;
  }

  /** Whether what was asked for has come since it was drawn: that is drawn at once, whatever a picture costs. */
  get answered() {
    const { pasts } = this.store;
    return this.answer !== pasts.version || pasts.answers(this.awaits);
  }

  /**
   * Mark it while it is older than what it is made of: newer rows are here, or what it asked for is on its way.
   * @param {boolean} answers whether there is somebody who answers
   */
  age(answers) {
    const behind = this.dirty || (answers && this.awaits.size > 0);
    if (behind === this.behind) return;
    this.behind = behind;
    this.root.toggleAttribute("data-behind", behind);
    this.root.setAttribute("aria-busy", String(behind));
  }

  get theme() {
    return this.panel.theme;
  }

  /** @param {string} text */
  _say(text) {
    this.message.hidden = !text;
    say(this.message, text);
  }

  /**
   * Draw. How long it takes decides when new data may draw it again, so that the page stays free.
   * @param {number} now
   */
  draw(now) {
    const { mark, awaits } = this;
    const { pasts } = this.store;
    this.dirty = false;
    this.seen = this._seen();
    this.answer = pasts.version;
    awaits.clear();
    if (!mark) return;
    const shown = pasts.noting(awaits, () => mark.draw());
    this.shown = shown;
    this.body.hidden = !shown;
    this._say(shown ? "" : this._nothing());
    this.root.dataset.state = shown ? "drawn" : "empty";
    if (!this.numbers.hidden && shown) this._renew();
    const step = this.spec.of === "step" && this.store.step !== null ? `step ${this.store.step}` : "";
    if (this.spec.mark !== "line") say(this.place, step);
    say(this.sentence, [shown ? sentenceOf(mark.remark) : "", this.definition.about?.shows].filter(Boolean).join(" "));
    const cost = performance.now() - now;
    const longest = this.first ? AFTER_FIRST : LONGEST;
    if (shown) this.first = false;
    this.due = now + Math.min(Math.max(PACE, cost / SHARE_OF_CARD), longest);
  }

  /** Why nothing is drawn: there are no rows, none of those that were chosen, or none that this picture is made of. */
  _nothing() {
    const { role, rank, phase, step, zoom } = this.store.ui;
    const held = this.store.table(this.spec.table).count;
    if (!held) return EMPTY[this.spec.table] || "Nothing yet.";
    const whole = this.spec.mark === "stragglers"; //  of all ranks and steps, whatever is chosen
    const chosen = [role, whole ? "" : rank, phase].filter(Boolean);
    if (chosen.length) return `${chosen.join(", ")} has no data for this figure.`;
    if (!whole && (this.spec.of === "step" || step !== null)) return `Step ${this.store.step} has no data for this figure.`;
    if (!whole && zoom) return "This part of the run has no data for this figure.";
    return this.definition.missing || "No data for this figure was recorded.";
  }

  /**
   * Say that it can't be drawn.
   * @param {string} why
   */
  fail(why) {
    this._say(`This chart failed: ${why}. The numbers are safe in the run directory.`);
    this.message.dataset.error = "true";
    this.root.dataset.state = "failed";
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

  /** @param {string} text */
  point(text) {
    say(this.place, text);
  }

  /** @param {Selection} selection */
  pick(selection) {
    this.panel.pick({ ...selection, card: this.id, at: this._at() }, this.spec.mark !== "table");
  }

  /** Where the notch of the drawer points: where the pointer went down, else at what has the focus. */
  _at() {
    const focused = document.activeElement;
    if (this.pointed !== undefined) return this.pointed;
    if (!focused || !this.root.contains(focused)) return undefined;
    const { left, width } = focused.getBoundingClientRect();
    return left + width / 2 - this.root.getBoundingClientRect().left;
  }

  /** @param {string} text */
  announce(text) {
    this.panel.announce(text, true);
  }

  destroy() {
    this.mark?.destroy();
  }
}

/**
 * A remark as a sentence.
 * @param {string} remark
 */
function sentenceOf(remark) {
  return remark && `${remark[0].toUpperCase()}${remark.slice(1)}${remark.endsWith(".") ? "" : "."}`;
}
