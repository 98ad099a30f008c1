// Small multiples: metrics have no common scale, so each key of a line chart gets a small card of its own.

import { node, say } from "./dom.js";
import { extremes, newest } from "./extremes.js";
import { LineMark } from "./line_mark.js";
import { listOf, matcher } from "./matching.js";
import { many, shorten, spell } from "./words.js";

/** @import { LiveTable } from "./table.js" */
/** @import { Spec } from "./definition_types.js" */
/** @import { CardLike, Place, Selection } from "./types.js" */

const MOST_FACETS = 24;

/**
 * Whether a line chart shows metrics of unlike scales.
 * @param {Spec} spec
 */
export function isFaceted(spec) {
  return spec.mark === "line" && spec.x === "step" && listOf(spec.by)[0] === "key" && !spec.unit;
}

/** One small chart for each key, filtered by text. */
export class FacetMark {
  /** @param {CardLike} card */
  constructor(card) {
    this.card = card;
    this.store = card.store;
    this.spec = card.spec;
    this.remark = "";
    /** @type {Map<string, Facet>} */
    this.facets = new Map();
    /** Codes of keys that have rows. @type {Set<number>} */
    this.found = new Set();
    this.seen = 0; //  rows looked at
    this.choice = "";
    this.free = false; //  of the chosen rank, which has no metrics
    /** @type {(row: number) => boolean} */
    this.match = () => false;
    this.search = node("input", {
      type: "search", class: "pp-search", placeholder: "Filter metrics…", "aria-label": `Filter ${card.title}`, on: { input: () => this._filter() },
    });
    this.search.value = this.asked;
    this.told = node("span", { class: "pp-quiet", role: "status" });
    this.grid = node("div", { class: "pp-facets" });
    card.body.append(node("div", { class: "pp-tools" }, this.search, this.told), this.grid);
  }

  get asked() {
    return this.store.ui.tables[this.card.id]?.search || "";
  }

  _filter() {
    this.store.ui.tables[this.card.id] = { search: this.search.value };
    this.store.tell("ui");
  }

  /** Keys that have rows, by name. */
  _keys() {
    const { step, rank, role, phase } = this.store.ui;
    const table = this.store.table(this.spec.table);
    const choice = JSON.stringify([step === null, rank, role, phase, table.epoch]);
    if (choice !== this.choice) {
      this.choice = choice;
      this.seen = 0;
      this.found = new Set();
      this._loosen(false);
      this.match = matcher(this.store, table, this.spec);
    }
    this._find(table);
    if (!this.found.size && rank !== "" && !this.free) {
      // Metrics are logged by one rank, of all of them.
      this._loosen(true);
      this.seen = 0;
      this.match = matcher(this.store, table, { ...this.spec, free: [...listOf(this.spec.free), "rank"] });
      this._find(table);
    }
    return [...this.found].map((code) => this.store.words.text(code)).sort();
  }

  /**
   * Metrics of other ranks are shown where the chosen one has logged none.
   * @param {boolean} free
   */
  _loosen(free) {
    if (free !== this.free) {
      for (const facet of this.facets.values()) facet.destroy();
      this.facets.clear();
    }
    this.free = free;
  }

  /**
   * Look at the rows that are new.
   * @param {LiveTable} table
   */
  _find(table) {
    const fresh = Math.min(table.total - this.seen, table.count);
    for (let row = table.count - fresh; row < table.count; row += 1) {
      const code = table.code("key", row);
      if (!this.found.has(code) && this.match(row)) this.found.add(code);
    }
    this.seen = table.total;
  }

  draw() {
    const keys = this._keys();
    if (!keys.length) return false;
    const parts = this.asked.toLowerCase().split(/\s+/).filter(Boolean);
    const found = keys.filter((key) => parts.every((part) => key.toLowerCase().includes(part)));
    const shown = found.slice(0, MOST_FACETS);
    const others = this.free ? `; ${this.store.ui.rank} logs none` : "";
    say(this.told, found.length > shown.length ? `${shown.length} of ${many(found.length, "metric")}; filter to see others${others}` : `${many(found.length, "metric")}${others}`);
    this._arrange(shown);
    for (const key of shown) this.facets.get(key)?.draw();
    return true;
  }

  /** @param {string[]} shown */
  _arrange(shown) {
    for (const [key, facet] of this.facets) {
      if (shown.includes(key)) continue;
      facet.destroy();
      this.facets.delete(key);
    }
    shown.forEach((key, at) => {
      let facet = this.facets.get(key);
      if (!facet) this.facets.set(key, (facet = new Facet(this.card, key, this.free)));
      const { root } = facet;
      if (this.grid.children[at] !== root) this.grid.insertBefore(root, this.grid.children[at] || null);
    });
  }

  /** @param {Place | null} place */
  hover(place) {
    for (const facet of this.facets.values()) facet.mark.hover(place);
  }

  restyle() {
    for (const facet of this.facets.values()) facet.mark.restyle();
  }

  destroy() {
    for (const facet of this.facets.values()) facet.destroy();
  }

  summary() {
    return this.told.textContent ?? "";
  }

  /** The last and the extreme values of each metric. */
  table() {
    const rows = [...this.facets].map(([key, { mark }]) => {
      const values = mark.frame.series[0]?.values ?? [];
      const [low = -1, high = -1] = extremes(values, 0, values.length);
      const now = newest(values, mark.alone);
      return [key, Number.isNaN(now) && mark.alone ? "NaN" : spell(now, "number"), ...[values[low], values[high]].map((value) => spell(value, "number"))];
    });
    return { head: ["metric", "now", "smallest", "largest"], rows };
  }
}

/** One of them: what a line mark needs of a card. */
class Facet {
  /**
   * @param {CardLike} card
   * @param {string} key
   * @param {boolean} free whether it is of all ranks, whichever is chosen
   */
  constructor(card, key, free) {
    this.store = card.store;
    this.outer = card;
    this.title = key;
    this.id = `${card.id}:${key}`;
    const [, ...rest] = listOf(card.spec.by);
    this.spec = { ...card.spec, by: rest, where: { ...card.spec.where, key: [key] }, names: { ...card.spec.names, value: "" }, exact: true, free: [...listOf(card.spec.free), ...(free ? ["rank"] : [])] };
    this.place = node("span", { class: "pp-place" });
    this.body = node("div", { class: "pp-body" });
    this.root = node("section", { class: "pp-facet", "aria-label": key }, node("header", {}, node("h4", { text: shorten(key, 60), title: key }), this.place), this.body);
    this.mark = new LineMark(this);
  }

  get theme() {
    return this.outer.theme;
  }

  draw() {
    this.mark.draw();
  }

  /** @param {Selection} selection */
  pick(selection) {
    this.outer.pick(selection);
  }

  /** @param {string} text */
  announce(text) {
    this.outer.announce(text);
  }

  /** @param {string} text */
  point(text) {
    say(this.place, text);
  }

  destroy() {
    this.mark.destroy();
    this.root.remove();
  }
}
