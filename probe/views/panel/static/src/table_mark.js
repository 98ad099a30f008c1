// The mark "table": newest first, sorted by any column, filtered by text.

import { cellText, columnTitle, isText } from "./cell_text.js";
import { node, say } from "./dom.js";
import { rowsOf } from "./sums.js";
import { count, many } from "./words.js";

/** @import { FullCard, Row, TableChoice } from "./types.js" */
/** @import { LiveTable } from "./table.js" */

/** A live table: newest first, sorted by any column, filtered by text. */
export class TableMark {
  /** @param {FullCard} card */
  constructor(card) {
    this.card = card;
    this.store = card.store;
    this.spec = card.spec;
    this.search = node("input", {
      type: "search", class: "pp-search", placeholder: "Filter…", "aria-label": `Filter ${card.title}`, on: { input: () => this._set({ search: this.search.value }) },
    });
    this.search.value = this.choice.search;
    this.told = node("span", { class: "pp-quiet", role: "status" });
    this.remark = "";
    /** @type {Map<string, HTMLElement>} */
    this.heads = new Map();
    this.body = node("tbody");
    /** @type {HTMLTableRowElement[]} */
    this.lines = [];
    /** What stands in the lines. @type {{row: number, data: Row}[]} */
    this.rows = [];
    this.generation = -1;
    const scroller = node("div", { class: "pp-scroll", tabindex: "0", role: "region", "aria-label": card.title }, node("table", { class: "pp-table" }, node("thead", {}, this._head()), this.body));
    card.body.append(node("div", { class: "pp-tools" }, this.spec.search === false ? null : this.search, this.told), scroller);
  }

  /** @returns {TableChoice} */
  get choice() {
    return this.store.ui.tables[this.card.id] || { sort: this.spec.sort || null, down: true, search: "" };
  }

  /** @param {Partial<TableChoice>} changes */
  _set(changes) {
    this.store.ui.tables[this.card.id] = { ...this.choice, ...changes };
    this.store.tell("ui");
  }

  get columns() {
    return this.spec.columns || [...this.schema.columns.keys()];
  }

  get schema() {
    return this.store.table(this.spec.table).schema;
  }

  _head() {
    return node("tr", {}, ...this.columns.map((name) => {
      const title = this.spec.names?.[name] || columnTitle(name);
      const head = node("th", { scope: "col", class: isText(this.schema, name) ? "" : "pp-right" }, node("button", { type: "button", on: { click: () => this._sort(name) } }, title));
      this.heads.set(name, head);
      return head;
    }));
  }

  /** @param {string} name */
  _sort(name) {
    const { sort, down } = this.choice;
    const first = !this.schema.isWord(name); //  numbers from the largest, texts from a to z
    if (sort !== name) this._set({ sort: name, down: first });
    else if (down === first) this._set({ down: !down });
    else this._set({ sort: this.spec.sort || null, down: true });
  }

  destroy() {}

  restyle() {}

  hover() {}

  draw() {
    const { store, spec } = this;
    const table = store.table(spec.table);
    if (!table.count) return false;
    const step = spec.of === "step" || store.ui.step !== null ? store.step : null;
    const found = this._found(table, rowsOf(store, spec, step));
    const most = spec.newest || 200;
    this._order(table, found);
    const shown = found.slice(0, most);
    this.rows = shown.map((row) => ({ row, data: table.row(row, store.words) }));
    this._fill(table);
    say(this.told, this._count(found.length, shown.length, table, step));
    return true;
  }

  /**
   * @param {number} found
   * @param {number} shown
   * @param {LiveTable} table
   * @param {number | null} step
   */
  _count(found, shown, table, step) {
    const place = step === null ? "" : ` in step ${step}`;
    const older = table.thinned ? `; ${many(table.thinned, "older row")} only in the run directory` : "";
    return `${shown < found ? `${count(shown)} of ${many(found, "row")}` : many(found, "row")}${place}${older}`;
  }

  /**
   * @param {LiveTable} table
   * @param {number[]} rows
   */
  _found(table, rows) {
    const asked = this.choice.search.trim().toLowerCase();
    if (!asked) return rows;
    const { words } = this.store;
    const parts = asked.split(/\s+/);
    return rows.filter((row) => {
      const data = table.row(row, words);
      const text = this.columns.map((name) => cellText(table.schema, name, data[name])).join("\n").toLowerCase();
      return parts.every((part) => text.includes(part));
    });
  }

  /**
   * @param {LiveTable} table
   * @param {number[]} rows
   */
  _order(table, rows) {
    const { sort, down } = this.choice;
    rows.reverse(); //  newest first, and so among equals
    for (const [name, head] of this.heads) head.setAttribute("aria-sort", name !== sort ? "none" : down ? "descending" : "ascending");
    if (!sort) return;
    /** @type {(row: number) => string | number} */
    const value = table.schema.isWord(sort) ? (row) => this.store.words.text(table.code(sort, row)) : (row) => table.get(sort, row);
    rows.sort((a, b) => compared(value(a), value(b), down ?? true));
  }

  /**
   * Write into the lines that are there: a table that updates four times a second must not blink.
   * @param {LiveTable} table
   */
  _fill(table) {
    this.rows.forEach(({ data }, at) => {
      const line = this.lines[at] || this._line(at);
      this.columns.forEach((name, column) => say(line.cells[column], cellText(table.schema, name, data[name])));
      if (this.spec.tone) line.dataset.tone = toneOf(data[this.spec.tone]);
      line.hidden = false;
    });
    for (let at = this.rows.length; at < this.lines.length; at += 1) this.lines[at].hidden = true;
    this.generation = table.generation;
  }

  /**
   * @param {number} at
   * @returns {HTMLTableRowElement}
   */
  _line(at) {
    const cells = this.columns.map((name) => node("td", { class: isText(this.schema, name) ? "" : "pp-right" }));
    const line = node("tr", { tabindex: "-1", on: { click: () => this._pick(at), keydown: (event) => this._key(event, at) } }, ...cells);
    if (at === 0) line.tabIndex = 0;
    this.lines.push(line);
    this.body.append(line);
    return line;
  }

  /**
   * @param {KeyboardEvent} event
   * @param {number} at
   */
  _key(event, at) {
    /** @type {Record<string, number>} */
    const moves = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: this.rows.length - 1 };
    if (event.key === "Enter") this._pick(at);
    else if (event.key in moves) this.lines[Math.min(Math.max(moves[event.key], 0), this.rows.length - 1)]?.focus();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** @param {number} at */
  _pick(at) {
    const { data } = this.rows[at];
    this.card.pick({ table: this.spec.table, row: data, step: data.step >= 0 ? data.step : null, label: data.key || data.name || data.message || data.point || "" });
  }

  summary() {
    return this.told.textContent ?? "";
  }

  table() {
    return null;
  }
}

/**
 * @param {any} a
 * @param {any} b
 * @param {boolean} down
 */
function compared(a, b, down) {
  const missing = Number(Number.isNaN(a)) - Number(Number.isNaN(b));
  if (Number.isNaN(a) || Number.isNaN(b)) return missing; //  what is missing comes last, whichever way
  const order = typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
  return down ? -order : order;
}

/** @param {any} value */
function toneOf(value) {
  if (!value || Number.isNaN(value)) return "";
  return value === 1 || /error|fail|off|dropped|nan/i.test(value) ? "alarm" : "";
}
