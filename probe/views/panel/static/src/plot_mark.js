// A chart drawn by plotly: what loads the library, sizes, zooms, points and picks. Each mark is a function from it
// to traces.

import { node, say } from "./dom.js";
import { plotly } from "./plotly.js";
import { placeOn, shownRange } from "./ranges.js";
import { LOOKS, PATTERNS, colourIndex, palette } from "./theme.js";
import { answerer, spell } from "./words.js";

/** One chart drawn by plotly. */
export class PlotMark {
  constructor(card, build) {
    this.card = card;
    this.store = card.store;
    this.spec = card.spec;
    this.build = build;
    this.given = new Map();
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
    this.frame = this.build(this);
    return this.frame !== null && this.frame.items.length > 0;
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

  _loaded(library) {
    this.library = library;
    this._say("");
    if (!this.gone) this.card.invalidate();
  }

  _failed(error) {
    this.loading = false;
    this._say(`plotly can't be started here (${error.message}); the table has the numbers.`);
    this.card.unfold(true);
  }

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

  _layout(own) {
    const look = LOOKS[this.card.theme];
    const font = { family: "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", size: 11.5, color: look.ink };
    const title = { font: { size: 11.5, color: look.quiet }, standoff: 8 };
    const axis = { gridcolor: look.grid, linecolor: look.axis, zeroline: false, automargin: true, fixedrange: true, tickfont: { color: look.quiet }, title };
    const height = own.height || 260;
    this.holder.style.height = `${height}px`;
    const { axes = {} } = own;
    const put = (given) => ({ ...axis, ...given, title: { ...title, ...given?.title } });
    const x = put({ showgrid: false, showline: true, ...this._zoomable(), ...axes.x });
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font, height, width: Math.max(this.holder.clientWidth, 200),
      margin: { l: 8, r: 8, t: own.showlegend ? 34 : 10, b: 8 }, hovermode: "closest", bargap: 0.18, uirevision: "kept",
      dragmode: this.frame.kind ? "zoom" : false,
      legend: { orientation: "h", traceorder: "normal", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", bgcolor: "rgba(0,0,0,0)", font: { size: 11.5 } },
      hoverlabel: { align: "left", bgcolor: look.back, bordercolor: look.axis, font: { ...font, size: 12 } },
      ...own, axes: undefined, xaxis: x, yaxis: put(axes.y),
    };
  }

  _zoomable() {
    if (!this.frame.kind) return {};
    const [from, to] = shownRange(this.store, this.frame.kind);
    const room = this.frame.kind === "step" ? 0.6 : 0;
    return { fixedrange: false, range: this.frame.range || [from - room, to + room] };
  }

  _resize() {
    if (this.drawnOnce && this.holder.clientWidth && this.holder.clientWidth !== this.width) this.card.invalidate();
    this.width = this.holder.clientWidth;
  }

  // ---- what the person does

  _listen() {
    this.holder.on("plotly_click", ({ points }) => this._choose(points[0]));
    this.holder.on("plotly_hover", ({ points }) => this._hovered(points[0]));
    this.holder.on("plotly_unhover", () => this._hovered(null));
    this.holder.on("plotly_doubleclick", () => this.store.choose({ zoom: null }));
    this.holder.on("plotly_relayout", (change) => this._relaid(change));
  }

  _choose(point) {
    const at = point?.customdata;
    const item = this.frame.items[Array.isArray(at) ? at[0] : at];
    if (item) this.card.pick(this.picked(item));
  }

  /** What a box, bar or dot stands for. */
  picked(item) {
    const table = this.store.table(this.spec.table);
    const held = item.row >= 0 && this.frame.generation === table.generation;
    return {
      table: this.spec.table, row: held ? table.row(item.row, this.store.words) : null,
      step: held ? table.step(item.row) : item.step ?? this.store.step, label: item.label,
    };
  }

  _hovered(point) {
    if (!this.frame.kind) return;
    this.store.hover = point ? { kind: this.frame.kind, at: Number(point.x), from: this } : null;
    this.store.tell("hover");
  }

  hover(place) {
    const axis = this.holder._fullLayout?.xaxis;
    const at = this.frame?.kind && place?.from !== this ? placeOn(this.store.clock, place, this.frame.kind) : null;
    const left = axis && at !== null && at !== undefined ? axis._offset + axis.l2p(at) : -1;
    const inside = axis && left >= axis._offset && left <= axis._offset + axis._length;
    this.line.hidden = !inside;
    if (inside) this.line.style.transform = `translateX(${left}px)`;
  }

  _relaid(change) {
    const [from, to] = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    if (!this.frame.kind || from === undefined) return;
    const round = this.frame.kind === "step" ? Math.round : (value) => value;
    this.store.choose({ zoom: { kind: this.frame.kind, from: round(from), to: round(to) } });
  }

  summary() {
    return this.frame.summary;
  }

  table() {
    const rows = this.frame.items.slice(-200).map((item) => Object.assign([...item.cells], { pick: () => this.card.pick(this.picked(item)) }));
    return { head: this.frame.head, rows };
  }

  // ---- shared by the builders

  colour(key, text) {
    const colours = palette(this.store, this.card.theme);
    return colours[colourIndex(this.store, this.spec, this.given, key, text) % colours.length];
  }

  pattern(key) {
    return { shape: PATTERNS[(this.given.get(key) ?? 0) % PATTERNS.length], size: 6, solidity: 0.2, fillmode: "overlay", fgcolor: "rgba(255,255,255,0.5)" };
  }

  get step() {
    return this.spec.of === "step" ? this.store.step : null;
  }

  spell(value) {
    return spell(value, this.spec.unit);
  }

  title(name) {
    return this.spec.names?.[name] || String(name).replaceAll("_", " ").replace("micro batch", "micro-batch");
  }
}
