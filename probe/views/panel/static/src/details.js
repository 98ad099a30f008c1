// What made a peak: from any row that was clicked to the scope, its micro-batch and the batch that it was cut from.

import { cellText, columnTitle } from "./cell_text.js";
import { node, say } from "./dom.js";
import { isStep } from "./matching.js";
import { bytes, count, digits, many, seconds, shorten, spell } from "./words.js";

/** @import { Row, Selection } from "./types.js" */
/** @import { Store } from "./store.js" */
/** @import { LiveTable } from "./table.js" */
/** @import { Panel } from "./view.js" */

/**
 * The innermost scope of a step and rank that fits a row; the one with the largest peak where nothing narrows it.
 * @param {Store} store
 * @param {Row | null} row
 * @param {number | null} step
 * @returns {Row | null}
 */
function scopeOf(store, row, step) {
  if (row?.table === "spans") return row;
  const table = store.table("spans");
  let [best, mark] = [-1, -Infinity];
  for (const at of table.byStep.get(step ?? -1) || []) {
    if (!fits(store, table, at, row)) continue;
    const score = fitness(store, table, at, row);
    if (score > mark || best < 0) [best, mark] = [at, score];
  }
  return best < 0 ? null : table.row(best, store.words);
}

/**
 * @param {Store} store
 * @param {LiveTable} table
 * @param {number} at
 * @param {Row | null} row
 * @returns {boolean}
 */
function fits(store, table, at, row) {
  if (!row) return true;
  if ((row.rank >= 0 || row.process) && !sameWriter(store, table, at, row)) return false;
  if (row.table !== "events" && !sameTexts(row, table.row(at, store.words))) return false;
  const batch = table.get("micro_batch", at);
  if (row.micro_batch >= 0 && batch >= 0 && batch !== row.micro_batch) return false;
  const time = row.t ?? row.begin;
  if (time === undefined || Number.isNaN(time)) return true;
  return table.get("begin", at) <= time && !(table.get("end", at) < time);
}

/**
 * Whether two rows agree in role and phase, as far as both say them.
 * @param {Row} a
 * @param {Row} b
 */
function sameTexts(a, b) {
  return ["role", "phase"].every((name) => !a[name] || !b[name] || a[name] === b[name]);
}

/**
 * Whether a row was written by the process that another one is of: a batch's and a scope's number is its own.
 * @param {Store} store
 * @param {LiveTable} table
 * @param {number} at
 * @param {Row} row
 */
function sameWriter(store, table, at, row) {
  const process = store.words.text(table.code("process", at));
  if (process && row.process) return process === row.process;
  return Object.is(table.get("rank", at), row.rank);
}

/**
 * Within a time the innermost scope wins; for a micro-batch the one that carries it; else the highest peak.
 * @param {Store} store
 * @param {LiveTable} table
 * @param {number} at
 * @param {Row | null} row
 */
function fitness(store, table, at, row) {
  if (row && row.micro_batch >= 0 && table.get("micro_batch", at) === row.micro_batch) return 1e18 + (table.get("peak", at) || 0);
  if (row && row.t !== undefined) return table.get("begin", at);
  const innermost = isStep(store, table, at) ? 0 : table.get("micro_batch", at) >= 0 ? 2 : 1;
  return (table.get("peak", at) || 0) + innermost * 1e-3;
}

/**
 * The scope of the micro-batch that made the peak of a phase or step.
 * @param {Store} store
 * @param {Row | null} scope
 * @returns {Row | null}
 */
function makerOf(store, scope) {
  if (!scope || scope.micro_batch >= 0) return null;
  const table = store.table("spans");
  let [best, peak] = [-1, -Infinity];
  for (const at of table.byStep.get(scope.step) || []) {
    if (!(table.get("micro_batch", at) >= 0) || !sameWriter(store, table, at, scope)) continue;
    if (table.get("begin", at) < scope.begin - 1e-9 || table.get("end", at) > scope.end + 1e-9) continue;
    if (table.get("peak", at) > peak) [best, peak] = [at, table.get("peak", at)];
  }
  return best < 0 ? null : table.row(best, store.words);
}

/**
 * The micro-batch row of a scope or row, null where none was recorded.
 * @param {Store} store
 * @param {Row | null} place
 * @param {number | null} step
 * @returns {Row | null}
 */
function microBatchOf(store, place, step) {
  if (place?.table === "micro") return place;
  if (!place || !(place.micro_batch >= 0)) return null;
  const table = store.table("micro");
  /** @type {Row[]} */
  const found = [];
  for (const at of table.byStep.get(step ?? -1) || []) {
    if (!sameWriter(store, table, at, place) || table.get("micro_batch", at) !== place.micro_batch) continue;
    const row = table.row(at, store.words);
    if (place.batch >= 0 ? row.batch === place.batch : sameTexts(place, row)) found.push(row);
  }
  return found.length === 1 ? found[0] : null; //  of several batches none is picked: that would be a guess
}

/**
 * All micro-batches of the batch that one belongs to.
 * @param {Store} store
 * @param {Row} micro
 * @returns {Row[]}
 */
function batchOf(store, micro) {
  const table = store.table("micro");
  const rows = (table.byStep.get(micro.step) || []).filter((at) => sameWriter(store, table, at, micro) && table.get("batch", at) === micro.batch);
  return rows.map((at) => table.row(at, store.words)).sort((a, b) => a.micro_batch - b.micro_batch);
}

/** How much is known of a peak. @type {Record<string, string>} */
const SURE = { exact: "exact", at_most: "at most: the counters were not reset", at_least: "at least: only samples are known" };

/** The drawer: it opens under the figure that was clicked, with a notch at the mark. There is one. */
export class Details {
  /** @param {Panel} panel */
  constructor(panel) {
    this.panel = panel;
    this.store = panel.store;
    this.heading = node("h3", { tabindex: "-1" });
    /** What is drawn. @type {Selection | null} */
    this.drawn = null;
    /** What had the focus before. @type {Element | null} */
    this.opener = null;
    this.content = node("div", { class: "pp-drawer-content" });
    this.path = node("span", { class: "pp-quiet" });
    const close = node("button", { type: "button", class: "pp-button pp-icon", "aria-label": "Close details", title: "Close (Esc)", text: "×", on: { click: () => this.close() } });
    this.root = node("aside", { class: "pp-drawer", "aria-label": "What made it", hidden: true }, node("span", { class: "pp-notch", "aria-hidden": "true" }), node("header", {}, this.heading, this.path, close), this.content);
  }

  /**
   * Show a selection, or close it where it is what is shown.
   * @param {Selection} selection
   * @returns {boolean} whether it is shown now
   */
  toggle(selection) {
    const { selection: shown } = this.store.ui;
    if (shown && sameOf(shown) === sameOf(selection)) {
      this.close();
      return false;
    }
    this.opener = document.activeElement;
    this._show(selection);
    return true;
  }

  /** @param {Selection} selection */
  _show(selection) {
    this.store.ui.selection = selection;
    this.place();
    this.draw();
    this.heading.focus({ preventScroll: true });
    this.root.scrollIntoView({ block: "nearest" });
  }

  close() {
    if (!this.store.ui.selection) return false;
    this.store.ui.selection = null;
    this.draw();
    if (this.opener instanceof HTMLElement && this.opener.isConnected) this.opener.focus({ preventScroll: true });
    return true;
  }

  /** Move the drawer under its figure; without one in this view it is closed. */
  place() {
    const { selection } = this.store.ui;
    const card = selection && this.panel.cards.find((one) => one.id === selection.card);
    if (selection && !card) this.store.ui.selection = null;
    if (!card) this.root.remove();
    else if (this.root.previousElementSibling !== card.root) card.root.after(this.root);
    const at = (selection?.at ?? 24) + (card ? card.root.offsetLeft - this.root.offsetLeft : 0);
    this.root.style.setProperty("--pp-at", `${Math.min(Math.max(at, 16), Math.max(this.root.offsetWidth - 16, 16))}px`);
  }

  draw() {
    const { selection } = this.store.ui;
    this.root.hidden = !selection;
    if (!selection) this.drawn = null;
    if (!selection || this.drawn === selection) return;
    this.drawn = selection;
    this.place();
    const scope = scopeOf(this.store, selection.row, selection.step);
    const maker = makerOf(this.store, scope);
    const micro = microBatchOf(this.store, selection.table === "micro" ? selection.row : maker || scope, selection.step);
    say(this.heading, this._title(selection, scope));
    say(this.path, this._path(selection, scope, micro));
    const held = this.content.contains(document.activeElement);
    const known = node("div", { class: "pp-facts" }, this._scope(scope), this._micro(micro, maker || scope), this._own(selection));
    const ways = node("div", { class: "pp-ways" }, this._actions(selection, micro));
    this.content.replaceChildren(...[this._maker(maker, scope), known, micro ? this._batch(micro) : null, ways.children.length ? ways : null].filter((part) => part !== null));
    if (held) this.heading.focus(); //  what had the focus is gone, and with it the keyboard
  }

  /**
   * @param {Selection} selection
   * @param {Row | null} scope
   */
  _title(selection, scope) {
    /** @type {Partial<Row>} */
    const place = scope || selection.row || {};
    const names = [...new Set([place.role, place.phase || place.name])].filter(Boolean);
    if (place.micro_batch >= 0) names.push(`micro-batch ${place.micro_batch}`);
    return shorten(names.join(" · ") || selection.label || `Step ${selection.step}`, 90);
  }

  /**
   * @param {Selection} selection
   * @param {Row | null} scope
   * @param {Row | null} micro
   */
  _path(selection, scope, micro) {
    const place = scope || selection.row;
    const parts = [];
    if (selection.step !== null && selection.step >= 0) parts.push(`step ${selection.step}`);
    if (place?.who) parts.push(String(place.who));
    if (micro && micro.batch >= 0) parts.push(`batch ${micro.batch}`);
    if (!selection.row && selection.table) parts.push("the row itself is no longer held here; the run directory has it");
    return parts.join(" › ");
  }

  /** @param {Row | null} scope */
  _scope(scope) {
    if (!scope) return node("p", { class: "pp-quiet", text: "No scope was recorded around it." });
    const grew = scope.at_end - scope.at_begin;
    return facts("Memory of the scope", [
      ["Peak allocated", bytes(scope.peak), SURE[scope.peak_kind] || ""],
      ["Peak reserved", bytes(scope.reserved_peak)],
      ["At its start", bytes(scope.at_begin)],
      ["Left behind", Number.isNaN(grew) ? "–" : `${grew > 0 ? "+" : ""}${bytes(grew)}`],
      ["Took", seconds(scope.duration), "host time"],
    ]);
  }

  /**
   * Which micro-batch made the peak of a larger scope.
   * @param {Row | null} maker
   * @param {Row | null} scope
   */
  _maker(maker, scope) {
    if (!maker || !scope) return null;
    const made = maker.peak >= 0.999 * scope.peak;
    const place = shorten([...new Set([maker.role, maker.phase])].filter(Boolean).join(" · "), 60);
    const more = made ? `its peak is the scope's` : `the highest of its micro-batches, ${bytes(maker.peak)}; the peak was outside them`;
    return node("p", {}, node("b", { text: `Micro-batch ${maker.micro_batch}` }), ` of ${place || "the scope"}: ${more}.`);
  }

  /**
   * @param {Row | null} micro
   * @param {Row | null} scope
   */
  _micro(micro, scope) {
    if (!micro) {
      const text = scope && scope.micro_batch >= 0 ? "No tokens were recorded for this micro-batch." : "No micro-batch: the scope is a whole phase or step.";
      return node("p", { class: "pp-quiet", text });
    }
    const padding = micro.padding > 0 ? `${count(micro.padding)} (${spell(micro.padding / (micro.tokens + micro.padding), "percent")})` : "none";
    const part = facts(`Micro-batch ${micro.micro_batch}`, [
      ["Tokens", count(micro.tokens), micro.cap > 0 ? `${spell(micro.use, "percent")} of the cap of ${count(micro.cap)}${micro.over ? ", over it" : ""}` : "no cap"],
      ["Sequences", count(micro.sequences), `mean ${digits(micro.tokens / micro.sequences)} tokens, longest ${count(micro.longest)}`],
      ["Width", Number.isNaN(micro.width) ? "jagged" : count(micro.width)],
      ["Padding", Number.isNaN(micro.width) ? "none (jagged)" : padding],
      ["Workload", Number.isNaN(micro.workload) ? "–" : digits(micro.workload)],
    ]);
    return part;
  }

  /** @param {Row} micro */
  _batch(micro) {
    const rows = batchOf(this.store, micro);
    const most = Math.max(...rows.map((one) => Math.max(one.tokens, one.cap || 0)));
    const bars = rows.map((one) => {
      const bar = node("span", { class: "pp-bar" });
      bar.style.inlineSize = `${(100 * one.tokens) / most}%`;
      const mine = one.micro_batch === micro.micro_batch;
      return node(
        "button",
        { type: "button", class: "pp-bar-row", "aria-current": mine ? "true" : false, on: { click: () => this._show({ table: "micro", row: one, step: one.step, label: "micro-batch", card: this.drawn?.card, at: this.drawn?.at }) } },
        node("span", { text: String(one.micro_batch) }), node("span", { class: "pp-bar-track" }, bar), node("span", { text: count(one.tokens) }),
      );
    });
    return node("div", { class: "pp-batch" }, node("h4", { text: `Batch ${micro.batch}: tokens of its ${many(rows.length, "micro-batch", "micro-batches")} on rank ${micro.rank}` }), ...bars);
  }

  /**
   * What else the clicked row says, for tables that aren't about memory.
   * @param {Selection} selection
   */
  _own({ row }) {
    if (!row || ["spans", "micro", "memory"].includes(row.table)) return null;
    const names = Object.keys(row).filter((name) => !["table", "step", "rank", "who", "t", "role", "phase"].includes(name));
    const { schema } = this.store.table(row.table);
    /** @type {[name: string, value: string][]} */
    const known = names.map((name) => [columnTitle(name), cellText(schema, name, row[name])]);
    return facts("The row", known.filter(([, text]) => text));
  }

  /**
   * @param {Selection} selection
   * @param {Row | null} micro
   */
  _actions(selection, micro) {
    const made = document.createDocumentFragment();
    made.append(...[this._move(selection), micro ? this._toSamples(micro) : null].filter((one) => one !== null));
    return made.childElementCount ? made : null;
  }

  /**
   * From a peak to the answers that made it.
   * @param {Row} micro
   */
  _toSamples({ step, micro_batch: batch, phase, process }) {
    const { views = [] } = this.store.config;
    if (!this.store.state.verdict?.ledger || !views.some(({ id }) => id === "samples")) return null;
    const go = () => this.store.choose({ tab: "samples", step: step === this.store.followed ? null : step, samples: { micro_batch: batch, phase: phase ?? "", process: process ?? "" } });
    return node("button", { type: "button", class: "pp-button", text: `Samples of micro-batch ${batch}`, on: { click: go } });
  }

  /** @param {Selection} selection */
  _move({ step }) {
    if (step === null || !(step >= 0) || this.store.step === step) return null;
    return node("button", { type: "button", class: "pp-button", text: `Move all charts to step ${step}`, on: { click: () => this.panel.goTo(step) } });
  }
}

/**
 * @param {string} title
 * @param {[name: string, value: string, more?: string][]} rows
 */
function facts(title, rows) {
  const list = node("dl", {});
  for (const [name, value, more] of rows) {
    list.append(node("dt", { text: name }), node("dd", {}, node("b", { text: value }), more ? node("span", { class: "pp-quiet", text: ` ${more}` }) : null));
  }
  return node("section", {}, node("h4", { text: title }), list);
}

/**
 * What says that two clicks were on the same mark.
 * @param {Selection} selection
 */
function sameOf({ table, row, step, label, card, time }) {
  return JSON.stringify([card, table, step, label, time ?? null, row && [row.rank, row.process, row.scope, row.micro_batch, row.batch, row.t, row.begin, row.key]]);
}
