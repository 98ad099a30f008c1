// The line mark: one uPlot each, with zoom and hover that all charts share.

import uPlot from "uplot";
import { spread } from "./callouts.js";
import { drawn, node, say } from "./dom.js";
import { extremes, lastKnown, newest } from "./extremes.js";
import { guideLines } from "./guides.js";
import { axisOf, shownValues } from "./line_axes.js";
import { lighten, paintBand, sayCut } from "./line_painting.js";
import { nearestRow } from "./nearest_row.js";
import { clockText, placeOn, shownRange } from "./ranges.js";
import { robustEnd } from "./scales.js";
import { StepLines, binned, linesBeside } from "./step_lines.js";
import { summed } from "./sums.js";
import { LOOKS, styleOf } from "./theme.js";
import { TimeLines } from "./time_lines.js";
import { many, shorten, spell } from "./words.js";

/** @import { CardLike, GuideLine, Line, LineData, Place, Selection } from "./types.js" */

/** A metric's scale is cut where something is so many times as large as its end. */
const MUCH = 3;

/** Pixels between the lines of names at the last values, and those of a leader. */
const LINE = 17;
const LEADER = 14;

/** plotly's dashes as those of a canvas. @type {Record<string, number[]>} */
const DASHES = { dash: [6, 4], dot: [2, 3], dashdot: [6, 3, 2, 3], longdash: [11, 4] };

/** One chart of lines over time or steps. */
export class LineMark {
  /** @param {CardLike} card */
  constructor(card) {
    this.card = card;
    this.store = card.store;
    this.spec = card.spec;
    this.remark = "";
    /** @type {"time" | "step"} */
    this.kind = this.spec.x === "time" ? "time" : "step";
    /** @type {uPlot | null} */
    this.plot = null;
    /** What the plot was made for. @type {string | null} */
    this.made = null;
    /** @type {LineData} */
    this.frame = { xs: [], series: [] };
    /** @type {[from: number, to: number]} */
    this.shown = [0, 1];
    /** @type {StepLines | TimeLines | null} */
    this.lines = null;
    /** @type {GuideLine[]} */
    this.guides = [];
    /** @type {{stroke: string, dash: number[]}[]} */
    this.colours = [];
    /** Where the axis ends, if anything goes beyond. @type {number | null} */
    this.cut = null;
    this.following = false; //  the cursor is moved by another chart
    this.pressed = 0; //  where the mouse went down
    this.walked = -1; //  which of the step's values the keyboard is on
    this.legend = node("div", { class: "pp-legend" });
    this.meaning = node("p", { class: "pp-quiet pp-meaning", hidden: true });
    this.more = node("p", { class: "pp-quiet", hidden: true });
    this.holder = node("div", {
      class: "pp-plot", tabindex: "0", role: "img", on: { keydown: (event) => this._key(event), blur: () => this._leave() },
    });
    this.leaders = drawn("svg", { class: "pp-leaders", "aria-hidden": "true" });
    this.stage = node("div", { class: "pp-lined" }, this.legend, this.holder, this.leaders);
    card.body.append(this.meaning, this.stage, this.more);
    this.sized = new ResizeObserver(() => this._resize());
    this.sized.observe(this.holder);
  }

  destroy() {
    this.sized.disconnect();
    this.plot?.destroy();
  }

  restyle() {
    this.plot?.destroy();
    this.plot = null;
    this.made = null;
  }

  // ---- data

  /** Sum up what is shown; false where that is nothing. */
  read() {
    const { store, spec } = this;
    const shown = shownRange(store, this.kind);
    if (spec.beside) {
      this.lines = null;
      this.frame = binned(linesBeside(store, spec), shown, this.pixels());
    } else {
      const lines = this.kind === "time" ? summed(store, TimeLines, spec) : summed(store, StepLines, spec);
      this.lines = lines;
      this.frame = lines instanceof TimeLines ? lines.data(...shown) : binned(lines.data(), shown, this.pixels());
    }
    this.shown = shown;
    this.walked = -1;
    this.cut = this._cut();
    this.guides = (spec.lines || []).flatMap((guide) => guideLines(store, spec, guide)).filter((guide) => guide.value > 0);
    const most = Math.max(0, ...this.frame.series.map((one) => one.values[extremes(one.values, 0, one.values.length)[1] ?? -1] || 0));
    // A capacity far above would press the lines flat: then its number in the legend has to do.
    for (const guide of this.guides) guide.far = most > 0 && guide.value > 5 * most;
    return this.frame.xs.length > 0 && this.frame.series.length > 0;
  }

  /** How wide it is. */
  pixels() {
    return this.holder.clientWidth || 600;
  }

  /** Where the axis ends so that a few values don't flatten the rest; of memory the largest decides. */
  _cut() {
    const { series, xs } = this.frame;
    if (this.kind !== "step" || this.spec.unit === "bytes" || !series.length) return null;
    const largest = xs.map((_, at) => Math.max(...series.map((one) => (one.high ?? one.values)[at]).filter((one) => !Number.isNaN(one))));
    const least = Math.min(...series.flatMap((one) => [...(one.low ?? one.values)].filter((value) => !Number.isNaN(value))));
    const end = least >= 0 ? robustEnd(largest) : null;
    // A metric's own course, such as a loss that falls, is shown whole; what would flatten it isn't.
    return end !== null && this.spec.exact && Math.max(...largest.filter(Number.isFinite)) < MUCH * end ? null : end;
  }

  draw() {
    if (!this.read()) return false;
    const memory = this.spec.unit === "bytes" ? this.store.state.memory ?? "" : "";
    this.meaning.hidden = !memory;
    say(this.meaning, memory);
    const series = this.frame.series;
    const made = JSON.stringify([series.map((one) => one.key + one.label), this.frame.steps, this.guides.map((one) => [one.title, one.value, one.far]), this.card.theme]);
    const guides = this.guides.map((guide) => new Array(this.frame.xs.length).fill(guide.far ? null : guide.value));
    /** @type {uPlot.AlignedData} */
    const columns = [this.frame.xs, ...series.map((one) => gaps(one.values)), ...guides, ...this._edges()];
    if (this.plot && made === this.made) this._update(this.plot, columns);
    else this._make(columns, made);
    this._readout(this.plot?.cursor.idx);
    this.holder.setAttribute("aria-label", this.card.title + ": " + this.summary());
    return true;
  }

  /** The largest and the smallest values of each point, between which a band is drawn. */
  _edges() {
    return this.frame.steps ? this.frame.series.flatMap((one) => [gaps(one.high ?? []), gaps(one.low ?? [])]) : [];
  }

  /**
   * @param {uPlot} plot
   * @param {uPlot.AlignedData} columns
   */
  _update(plot, columns) {
    plot.batch(() => {
      plot.setData(columns, false);
      const [from, to] = this._scale();
      plot.setScale("x", { min: from, max: to });
    });
  }

  /** @returns {[from: number, to: number]} */
  _scale() {
    const [from, to] = this.shown;
    if (to > from) return [from, to];
    return [from - 0.5, from + 0.5];
  }

  // ---- uPlot

  /**
   * @param {uPlot.AlignedData} columns
   * @param {string} made
   */
  _make(columns, made) {
    this.plot?.destroy();
    this.made = made;
    const { series } = this.frame;
    this.colours = series.map((one) => {
      const { colour, dash } = styleOf(this.spec, one.label, this.card.theme);
      return { stroke: colour, dash: DASHES[dash] ?? [] };
    });
    const plot = new uPlot(this._options(), columns, this.holder);
    for (const event of /** @type {const} */ (["mousedown", "click"])) plot.over.addEventListener(event, (at) => this._mouse(plot, at));
    this.plot = plot;
    this._legend();
  }

  /** @returns {uPlot.Options} */
  _options() {
    const hidden = this.store.ui.hidden[this.card.id] || {};
    const look = LOOKS[this.card.theme];
    const series = this.frame.series.map((one, at) => ({
      label: one.label, stroke: this.colours[at].stroke, dash: this.colours[at].dash, width: 1.75, spanGaps: true,
      show: !hidden[one.key], points: { show: this.frame.xs.length < 40, size: 5, fill: this.colours[at].stroke },
    }));
    const guides = this.guides.map((guide) => ({ label: guide.title, stroke: look.quiet, width: 1.25, dash: [5, 4], points: { show: false } }));
    const edges = this._edges().map((_, at) => ({ stroke: "transparent", width: 0, points: { show: false }, show: !hidden[this.frame.series[at >> 1].key] }));
    const first = 1 + series.length + guides.length;
    const bands = edges.length ? series.map((one, at) => ({ series: /** @type {[number, number]} */ ([first + 2 * at, first + 2 * at + 1]), fill: `${one.stroke}38` })) : [];
    return {
      width: Math.max(this.holder.clientWidth, 120),
      height: this.height(),
      padding: [10, this.stage.hasAttribute("data-direct") ? 8 : 20, 0, 0],
      legend: { show: false },
      focus: { alpha: 0.35 },
      cursor: { drag: { x: true, y: false, setScale: false }, focus: { prox: 18 }, points: { size: 7 } },
      scales: { x: { time: false, range: () => this._scale() }, y: { range: (_, low, high) => shownValues(this, low, high) } },
      axes: [axisOf(this, look, true), axisOf(this, look, false)],
      series: [{}, ...series, ...guides, ...edges],
      bands,
      hooks: {
        setCursor: [(plot) => this._moved(plot)],
        setSelect: [(plot) => this._zoom(plot)],
        drawClear: [(plot) => paintBand(this, plot, look)],
        draw: [(plot) => lighten(this, plot, look), (plot) => sayCut(this, plot, look), (plot) => this._nameEnds(plot)],
      },
    };
  }

  /** How high it is. */
  height() {
    return this.holder.clientHeight || 200;
  }

  _resize() {
    const width = this.holder.clientWidth;
    if (!this.plot || !width || (width === this.plot.width && this.height() === this.plot.height)) return;
    this.plot.setSize({ width, height: this.height() });
    if (this.kind === "step") this.draw(); //  more or fewer steps share a point
  }

  // ---- what the person does

  /** @param {uPlot} plot */
  _moved(plot) {
    this._readout(plot.cursor.idx);
    if (this.following) return;
    const { left, idx } = plot.cursor;
    const there = left !== undefined && left >= 0 && idx !== null && idx !== undefined;
    this.store.hover = there ? { kind: this.kind, at: plot.posToVal(left, "x"), from: this } : null;
    this.store.tell("hover");
  }

  /**
   * Another chart is pointed at: show the same place here.
   * @param {Place | null} place
   */
  hover(place) {
    if (!this.plot || place?.from === this) return;
    const at = placeOn(this.store.clock, place, this.kind);
    const left = at === null || at === undefined ? -10 : this.plot.valToPos(at, "x");
    this.following = true;
    this.plot.setCursor({ left: left < 0 || left > this.plot.over.clientWidth ? -10 : left, top: -10 });
    this.following = false;
  }

  /** @param {uPlot} plot */
  _zoom(plot) {
    const { left, width } = plot.select;
    if (width < 6) return;
    const [from, to] = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
    plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    const step = this.kind === "step";
    this.store.choose({ zoom: { kind: this.kind, from: step ? Math.round(from) : from, to: step ? Math.round(to) : to } });
  }

  /**
   * @param {uPlot} plot
   * @param {MouseEvent} event
   */
  _mouse(plot, event) {
    if (event.type === "mousedown") this.pressed = event.clientX;
    else if (Math.abs(event.clientX - this.pressed) < 5) this._choose(plot.cursor.idx, plot.cursor.top);
  }

  /**
   * @param {number | null | undefined} index
   * @param {number | undefined} top in the plot
   */
  _choose(index, top) {
    const { plot } = this;
    if (!plot || index === null || index === undefined || top === undefined) return;
    let [best, distance] = [-1, Infinity];
    this.frame.series.forEach((one, at) => {
      const value = one.values[index];
      if (Number.isNaN(value) || !plot.series[at + 1].show) return;
      const off = Math.abs(plot.valToPos(value, "y") - top);
      if (off < distance) [best, distance] = [at, off];
    });
    if (best >= 0) this.card.pick(this._picked(this.frame.series[best], index));
  }

  /**
   * The row behind a point.
   * @param {Line} series
   * @param {number} index
   * @returns {Selection}
   */
  _picked(series, index) {
    const x = series.at?.[index] ?? this.frame.xs[index];
    const { lines, store } = this;
    if (!(lines instanceof TimeLines)) {
      const row = lines?.rowOf(series.key, x) ?? -1;
      return { table: this.spec.table, row: row < 0 ? null : store.table(this.spec.table).row(row, store.words), step: x, label: series.label };
    }
    const row = nearestRow(lines, store, x, this.frame.width || 0, series);
    const step = store.clock.stepAt(x);
    return { table: this.spec.table, row: row === null ? null : lines.table.row(row, store.words), step, time: x, label: series.label };
  }

  /**
   * Up and down go through the values of the step that is shown, the largest first; left and right are the panel's,
   * which moves the step of all figures.
   * @param {KeyboardEvent} event
   */
  _key(event) {
    const by = { ArrowDown: 1, ArrowUp: -1, Enter: 0 }[event.key];
    const at = this._placeOfStep();
    const { plot } = this;
    if (by === undefined || !plot || at < 0) return;
    event.preventDefault();
    const { series } = this.frame;
    const known = series.filter((one, index) => !Number.isNaN(one.values[at]) && plot.series[index + 1].show).sort((a, b) => b.values[at] - a.values[at]);
    if (!known.length) return;
    this.walked = Math.min(Math.max(this.walked + by, 0), known.length - 1);
    const one = known[this.walked];
    if (by === 0) {
      this.card.pick(this._picked(one, at));
      return;
    }
    plot.setCursor({ left: plot.valToPos(this.frame.xs[at], "x"), top: plot.valToPos(one.values[at], "y") });
    const text = [this._place(this.frame.xs[at]), one.label, spell(one.values[at], this.spec.unit)].filter(Boolean).join(", ");
    this.card.announce(text);
    this.card.point(text);
  }

  _leave() {
    this.walked = -1;
    this.plot?.setCursor({ left: -10, top: -10 });
  }

  /** Where the step that is shown stands among the points, else the one before it; −1 where there is none. */
  _placeOfStep() {
    const { xs } = this.frame;
    const { step, clock } = this.store;
    const until = step === null ? Infinity : this.kind === "step" ? step : clock.span(step)[1];
    let at = xs.length - 1;
    while (at > 0 && xs[at] > until) at -= 1;
    return at;
  }

  // ---- words

  _legend() {
    /** @type {HTMLElement[]} */
    const entries = this.frame.series.map((one, at) => this._entry(one, at));
    for (const guide of this.guides) {
      const swatch = node("span", { class: "pp-swatch pp-dashed" });
      entries.push(node("span", { class: "pp-key" }, swatch, node("span", { text: guide.title }), node("b", { text: spell(guide.value, this.spec.unit) }), guide.far ? node("span", { text: "(far above)" }) : null));
    }
    const more = this.lines?.more.size;
    this.more.hidden = !more;
    if (more) say(this.more, `and ${many(more, "series", "series")} more: choose a role, rank or phase`);
    this.legend.replaceChildren(...entries);
    const named = entries.length > 1 || this.frame.series.some((one) => one.label);
    this.stage.toggleAttribute("data-direct", named && entries.length * LINE <= this.height() - 40);
  }

  /**
   * The names stand at the last values, with leaders, where they would touch: further apart. In a narrow panel, whose
   * style has no place for them, they are a legend.
   * @param {uPlot} plot
   */
  _nameEnds(plot) {
    if (!this.stage.hasAttribute("data-direct")) return;
    const [top, room] = [plot.bbox.top / devicePixelRatio, plot.bbox.height / devicePixelRatio];
    const ends = [...this.frame.series.map((one, at) => ({ value: lastKnown(one.values), ...this.colours[at] })), ...this.guides.map((one) => ({ value: one.far ? Infinity : one.value, stroke: "var(--ink-3)", dash: [3, 3] }))];
    const wanted = ends.map(({ value }) => (Number.isNaN(value) ? room : Math.min(Math.max(value === Infinity ? 0 : plot.valToPos(value, "y"), 0), room)));
    const placed = spread(wanted, LINE, room);
    [...this.legend.children].forEach((one, at) => {
      if (one instanceof HTMLElement) one.style.setProperty("--pp-y", `${(top + placed[at] - LINE / 2).toFixed(1)}px`);
    });
    this.leaders.replaceChildren(...ends.map(({ stroke, dash }, at) => drawn("path", {
      d: `M1 ${(top + wanted[at]).toFixed(1)}L${LEADER - 2} ${(top + placed[at]).toFixed(1)}`, style: `stroke: ${stroke}`, ...(dash.length ? { "stroke-dasharray": dash.join(" ") } : {}),
    })));
  }

  /**
   * @param {Line} one
   * @param {number} at
   */
  _entry(one, at) {
    const swatch = node("span", { class: "pp-swatch" });
    swatch.style.background = this.colours[at].stroke;
    const shown = this.plot?.series[at + 1].show;
    const button = node(
      "button",
      { class: "pp-key", type: "button", "aria-pressed": String(shown), title: `Show or hide ${one.label || this.card.title}`, on: { click: () => this._toggle(at, button) } },
      one.label ? swatch : null, one.label ? node("span", { text: shorten(one.label, 40) }) : null, node("b"),
    );
    return button;
  }

  /**
   * @param {number} at
   * @param {HTMLElement} button
   */
  _toggle(at, button) {
    const show = !this.plot?.series[at + 1].show;
    const { hidden } = this.store.ui;
    hidden[this.card.id] = { ...hidden[this.card.id], [this.frame.series[at].key]: !show };
    button.setAttribute("aria-pressed", String(show));
    this.plot?.setSeries(at + 1, { show });
    const edges = 1 + this.frame.series.length + this.guides.length + 2 * at;
    if (this.frame.steps) for (const one of [edges, edges + 1]) this.plot?.setSeries(one, { show });
  }

  /** @param {number | null | undefined} index */
  _readout(index) {
    if (!this.legend.children.length) return;
    this.frame.series.forEach((one, at) => {
      const target = this.legend.children[at]?.querySelector("b");
      if (target) say(target, this._spelled(index === null || index === undefined ? newest(one.values, this.alone) : one.values[index]));
    });
    const place = index === null || index === undefined ? "" : this._place(this.frame.xs[index]);
    this.card.point(place);
  }

  /** Whether it is of one metric alone: where a step of it has no number, NaN was logged. */
  get alone() {
    return this.spec.exact === true && this.frame.series.length === 1;
  }

  /** @param {number} value */
  _spelled(value) {
    return this.alone && Number.isNaN(value) ? "NaN" : spell(value, this.spec.unit);
  }

  /** @param {number} x */
  _place(x, exact = false) {
    if (this.kind === "step") return this.frame.steps && !exact ? `median of ${this.frame.steps} steps around ${x}` : `step ${x}`;
    const step = this.store.clock.stepAt(x);
    return step === null ? clockText(x) : `${clockText(x, 0.1)}, step ${step}`;
  }

  /** The chart in a sentence. */
  summary() {
    const { xs, series } = this.frame;
    const told = series.slice(0, 6).map((one) => {
      const at = extremes(one.values, 0, one.values.length)[1];
      if (at === undefined) return `${one.label} has no value`;
      const [x, y] = one.top || [xs[at], one.values[at]];
      return `${one.label} now ${this._spelled(newest(one.values, this.alone))}, largest ${spell(y, this.spec.unit)} at ${this._place(x, true)}`;
    });
    return `${told.join("; ")}.`;
  }

  /** The chart as a table: newest first. */
  table() {
    const { xs, series } = this.frame;
    const rows = [];
    for (let at = xs.length - 1; at >= 0 && rows.length < 200; at -= 1) {
      rows.push([this._place(xs[at]), ...series.map((one) => spell(one.values[at], this.spec.unit))]);
    }
    return { head: [this.kind, ...series.map((one) => one.label)], rows };
  }
}

/**
 * uPlot draws gaps at null, and NaN not at all well.
 * @param {Iterable<number>} values
 * @returns {(number | null)[]}
 */
function gaps(values) {
  return Array.from(values, (value) => (Number.isFinite(value) ? value : null));
}
