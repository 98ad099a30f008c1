// A chart drawn by plotly: what loads the library, sizes, zooms, points and picks. Each mark is a function from it
// to traces.

import { node, say } from "./dom.js";
import { plotly } from "./plotly.js";
import { placeOn, shownRange } from "./ranges.js";
import { LOOKS, styleOf } from "./theme.js";
import { answerer, spell } from "./words.js";

/** @import { Builder, FullCard, Item, Layout, NumbersTable, Place, PlotFrame, Selection } from "./types.js" */

/** @typedef {{x: unknown, customdata?: number | number[]}} Point of plotly's */
/** @typedef {{points: Point[]}} Picked what plotly says of a click */

/** @type {PlotFrame} */
const NOTHING = { generation: -1, traces: [], layout: {}, items: [], kind: null, head: [], summary: "" };

/** One chart drawn by plotly. */
export class PlotMark {
  /**
   * @param {FullCard} card
   * @param {Builder} build
   */
  constructor(card, build) {
    this.card = card;
    this.store = card.store;
    this.spec = card.spec;
    this.build = build;
    this.remark = ""; //  what the builder says of the picture as a whole
    this.frame = NOTHING;
    /** plotly.js, where it is loaded. @type {any} */
    this.library = null;
    this.loading = false;
    this.drawnOnce = false;
    this.gone = false;
    this.width = 0;
    /** plotly adds `on` and `_fullLayout`. @type {HTMLDivElement & {on?: any, _fullLayout?: any}} */
    this.holder = node("div", { class: "pp-plotly", role: "img" });
    this.line = node("div", { class: "pp-crosshair", hidden: true });
    this.note = node("p", { class: "pp-quiet", hidden: true });
    card.body.append(this.note, node("div", { class: "pp-stage" }, this.holder, this.line));
    this.sized = new ResizeObserver(() => this._resize());
    this.sized.observe(this.holder);
  }

  destroy() {
    this.gone = true;
    this.sized.disconnect();
    if (this.drawnOnce) this.library.purge(this.holder);
  }

  restyle() {
    this.card.invalidate();
  }

  read() {
    this.frame = this.build(this) ?? NOTHING;
    return this.frame.items.length > 0;
  }

  draw() {
    if (!this.read()) return false;
    this.holder.setAttribute("aria-label", `${this.card.title}: ${this.summary()}`);
    if (!this.library) this._load();
    else this._react();
    return true;
  }

  _load() {
    if (this.loading) return;
    const promise = plotly(this.card.model);
    if (!promise) {
      this._say(`Waiting for the ${answerer(this.store.config).name} to send plotly; the table below has the numbers.`);
      return;
    }
    this.loading = true;
    this._say("Loading the chart…");
    promise.then((library) => this._loaded(library), (error) => this._failed(error));
  }

  /** @param {any} library */
  _loaded(library) {
    this.library = library;
    this._say("");
    if (!this.gone) this.card.invalidate();
  }

  /** @param {Error} error */
  _failed(error) {
    this.loading = false;
    this._say(`plotly can't be started here (${error.message}); the table has the numbers.`);
    this.card.unfold(true);
  }

  /** @param {string} text */
  _say(text) {
    this.note.hidden = !text;
    say(this.note, text);
  }

  _react() {
    const { traces, layout } = this.frame;
    const config = { displayModeBar: false, responsive: false, doubleClick: false, showTips: false };
    this.library.react(this.holder, traces, this._layout(layout), config);
    if (!this.drawnOnce) this._listen();
    this.drawnOnce = true;
  }

  /**
   * @param {Layout} own
   * @returns {Layout}
   */
  _layout(own) {
    const look = LOOKS[this.card.theme];
    const font = { family: "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", size: 11.5, color: look.ink };
    const title = { font: { size: 11.5, color: look.quiet }, standoff: 8 };
    const axis = { gridcolor: look.grid, linecolor: look.axis, zeroline: false, automargin: true, fixedrange: true, tickfont: { color: look.quiet }, title };
    const height = own.height || 260;
    this.holder.style.height = `${height}px`;
    const { axes = {} } = own;
    /** @param {Layout} given */
    const axisOf = (given) => ({ ...axis, ...given, title: { ...title, ...given?.title } });
    const x = axisOf({ showgrid: false, showline: true, ...this._zoomable(), ...axes.x });
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font, height, width: Math.max(this.holder.clientWidth, 200),
      margin: { l: 8, r: 8, t: own.showlegend ? 34 : 10, b: 8 }, hovermode: "closest", bargap: 0.18, uirevision: "kept",
      dragmode: this.frame.kind ? "zoom" : false,
      legend: { orientation: "h", traceorder: "normal", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", bgcolor: "rgba(0,0,0,0)", font: { size: 11.5 } },
      hoverlabel: { align: "left", bgcolor: look.back, bordercolor: look.axis, font: { ...font, size: 12 } },
      ...own, axes: undefined, xaxis: x, yaxis: axisOf(axes.y),
    };
  }

  _zoomable() {
    if (!this.frame.kind) return {};
    const [from, to] = shownRange(this.store, this.frame.kind);
    const margin = this.frame.kind === "step" ? 0.6 : 0;
    return { fixedrange: false, range: this.frame.range || [from - margin, to + margin] };
  }

  _resize() {
    if (this.drawnOnce && this.holder.clientWidth && this.holder.clientWidth !== this.width) this.card.invalidate();
    this.width = this.holder.clientWidth;
  }

  // ---- what the person does

  _listen() {
    this.holder.on("plotly_click", (/** @type {Picked} */ { points }) => this._choose(points[0]));
    this.holder.on("plotly_hover", (/** @type {Picked} */ { points }) => this._hovered(points[0]));
    this.holder.on("plotly_unhover", () => this._hovered(null));
    this.holder.on("plotly_doubleclick", () => this.store.choose({ zoom: null }));
    this.holder.on("plotly_relayout", (/** @type {Record<string, number>} */ change) => this._relaid(change));
  }

  /** @param {Point | undefined} point */
  _choose(point) {
    const at = point?.customdata;
    const item = this.frame.items[(Array.isArray(at) ? at[0] : at) ?? -1];
    if (item) this.card.pick(this.picked(item));
  }

  /**
   * What a box, bar or dot stands for.
   * @param {Item} item
   * @returns {Selection}
   */
  picked(item) {
    const table = this.store.table(this.spec.table);
    const { row = -1 } = item;
    const held = row >= 0 && this.frame.generation === table.generation;
    return {
      table: this.spec.table, row: held ? table.row(row, this.store.words) : null,
      step: held ? table.step(row) : item.step ?? this.store.step, label: item.label,
    };
  }

  /** @param {Point | null} point */
  _hovered(point) {
    if (!this.frame.kind) return;
    this.store.hover = point ? { kind: this.frame.kind, at: Number(point.x), from: this } : null;
    this.store.tell("hover");
  }

  /** @param {Place | null} place */
  hover(place) {
    const axis = this.holder._fullLayout?.xaxis;
    const at = this.frame.kind && place?.from !== this ? placeOn(this.store.clock, place, this.frame.kind) : null;
    const left = axis && at !== null && at !== undefined ? axis._offset + axis.l2p(at) : -1;
    const inside = axis && left >= axis._offset && left <= axis._offset + axis._length;
    this.line.hidden = !inside;
    if (inside) this.line.style.transform = `translateX(${left}px)`;
  }

  /** @param {Record<string, number>} change */
  _relaid(change) {
    const [from, to] = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    if (!this.frame.kind || from === undefined) return;
    const round = this.frame.kind === "step" ? Math.round : Number;
    this.store.choose({ zoom: { kind: this.frame.kind, from: round(from), to: round(to) } });
  }

  summary() {
    return this.frame.summary;
  }

  /** @returns {NumbersTable} */
  table() {
    const rows = this.frame.items.slice(-200).map((item) => Object.assign([...item.cells], { pick: () => this.card.pick(this.picked(item)) }));
    return { head: this.frame.head, rows };
  }

  // ---- shared by the builders

  /**
   * How a series looks, by its name.
   * @param {string} label
   */
  style(label) {
    return styleOf(this.spec, label, this.card.theme);
  }

  /**
   * What the bars of a series are filled with.
   * @param {string} label
   */
  filling(label) {
    const { colour, pattern } = this.style(label);
    return { color: colour, pattern: { shape: pattern, size: 6, solidity: 0.2, fillmode: "overlay", fgcolor: LOOKS[this.card.theme].hatch } };
  }

  get step() {
    return this.spec.of === "step" ? this.store.step : null;
  }

  /** @param {number} value */
  spell(value) {
    return spell(value, this.spec.unit);
  }

  /** @param {string} name */
  title(name) {
    if (name === "who") return this.spec.names?.[name] || "rank or process";
    return this.spec.names?.[name] || String(name).replaceAll("_", " ").replace("micro batch", "micro-batch");
  }
}
