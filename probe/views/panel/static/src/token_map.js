// The tokens of one answer as cells of a canvas, as many lines as are in sight; the one under the pointer or the keyboard
// stands beside it in words, and is what a screen reader reads out.

import { COLOURINGS, confidentAt, differences, turnsOf } from "./colouring.js";
import { node, say } from "./dom.js";
import { linesInSight, movedTo, scrolledTo } from "./windows.js";
import { count, digits } from "./words.js";

/** @import { Arrays, Coloured, Tone } from "./colouring.js" */

/**
 * @typedef {object} Answered what is known of the tokens of one answer
 * @property {number} tokens
 * @property {Arrays} arrays
 * @property {number[]} ids
 * @property {number | null} version of the weights
 */

const LINE = 20; //  px of a line
const CELL = 12; //  px of a cell without a word in it …
const WORDED = 52; //  … and with a token's id
const MARGIN = 48; //  px for the position of a line's first token

/** Which colour of the panel a tone has. @type {Record<Tone, string>} */
const INKS = { nothing: "--sunken", less: "--dneg", more: "--dpos", held: "--tune-mark", out: "--k3", broken: "--alarm-mark" };

/** Tones that are the stronger the farther a token is from nothing. @type {Set<Tone>} */
const STRONG = new Set(["less", "more"]);

/** The map. */
export class TokenMap {
  constructor() {
    /** @type {Answered | null} */
    this.shown = null;
    this.colouring = "difference";
    /** @type {Coloured | null} */
    this.coloured = null;
    this.at = 0;
    this.pointed = -1;
    this.frame = 0;
    /** @type {Float32Array | null} */
    this.difference = null;
    /** @type {Uint16Array | null} */
    this.turns = null;
    /** @type {Partial<Record<Tone | "ink" | "quiet" | "accent" | "line" | "ground", string>>} */
    this.inks = {};
    this.canvas = node("canvas", { "aria-hidden": "true" });
    this.room = node("div", { class: "pp-token-room" }, this.canvas);
    this.scroller = node("div", {
      class: "pp-token-map", tabindex: "0", role: "slider", "aria-label": "Token", "aria-valuemin": "0", "aria-valuemax": "0", "aria-valuenow": "0", "aria-valuetext": "",
      on: {
        scroll: () => this._soon(), keydown: (event) => this._key(event), pointermove: (event) => this._point(this._under(event)),
        pointerleave: () => this._point(-1), click: (event) => this.choose(this._under(event)),
      },
    }, this.room);
    this.title = node("h4");
    this.values = Array.from({ length: 8 }, () => [node("dt"), node("dd")]);
    this.facts = node("aside", { "aria-label": "The token" }, this.title, node("dl", {}, ...this.values.flat()));
    this.root = node("div", { class: "pp-tokens" }, this.scroller, this.facts);
    this.sized = new ResizeObserver(() => this._fit());
    this.sized.observe(this.scroller);
  }

  destroy() {
    this.sized.disconnect();
    cancelAnimationFrame(this.frame);
  }

  get cell() {
    return this.shown?.ids.length ? WORDED : CELL;
  }

  /** Tokens of a line. */
  get across() {
    return Math.max(Math.floor((this.scroller.clientWidth - MARGIN) / this.cell), 1);
  }

  get lines() {
    return Math.ceil((this.shown?.tokens ?? 0) / this.across);
  }

  /**
   * Show an answer's tokens, from one of them on.
   * @param {Answered} answered
   * @param {string} colouring
   * @param {number} at
   */
  show(answered, colouring, at) {
    const { arrays, tokens } = answered;
    this.shown = answered;
    this.difference = arrays.log_probs && arrays.rollout_log_probs ? differences(arrays) : null;
    this.turns = turnsOf(arrays.mask);
    this.colour(colouring);
    this.scroller.setAttribute("aria-valuemax", String(Math.max(tokens - 1, 0)));
    this._fit();
    this.scroller.scrollTop = 0;
    this.choose(Math.min(at, tokens - 1));
  }

  /** @param {string} name */
  colour(name) {
    this.colouring = name;
    this.coloured = this.shown && Object.hasOwn(COLOURINGS, name) ? COLOURINGS[name].make(this.shown.arrays) : null;
    this._soon();
  }

  /** Colours are the panel's own, and so the theme's. */
  restyle() {
    this.inks = {};
    this._soon();
  }

  /** @param {number} at */
  choose(at) {
    if (!this.shown || at < 0 || at >= this.shown.tokens) return;
    this.at = at;
    const { scrollTop: top, clientHeight: height } = this.scroller;
    const to = scrolledTo(Math.floor(at / this.across), { top, height, line: LINE });
    if (to !== top) this.scroller.scrollTop = to;
    this.scroller.setAttribute("aria-valuenow", String(at));
    this.scroller.setAttribute("aria-valuetext", this._told(at).map(([name, value]) => `${name} ${value}`).join(", "));
    this._say();
    this._soon();
  }

  /** @param {number} at */
  _point(at) {
    if (at === this.pointed) return;
    this.pointed = at;
    this._say();
    this._soon();
  }

  /** @param {MouseEvent} event */
  _under({ clientX, clientY }) {
    const box = this.scroller.getBoundingClientRect();
    const column = Math.floor((clientX - box.left - MARGIN) / this.cell);
    if (!this.shown || column < 0 || column >= this.across) return -1;
    const at = Math.floor((clientY - box.top + this.scroller.scrollTop) / LINE) * this.across + column;
    return at < this.shown.tokens ? at : -1;
  }

  /** @param {KeyboardEvent} event */
  _key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const page = Math.max(Math.floor(this.scroller.clientHeight / LINE) - 1, 1);
    const to = movedTo(event.key, this.at, { count: this.shown?.tokens ?? 0, page, across: Math.max(this.across, 2) });
    if (to === null) return;
    event.preventDefault();
    this.choose(to);
  }

  /**
   * What is known of a token: names and values.
   * @param {number} at
   * @returns {[name: string, value: string][]}
   */
  _told(at) {
    const { arrays, ids, tokens, version } = /** @type {Answered} */ (this.shown);
    /** @type {[name: string, value: string][]} */
    const told = [["Token", `${at} of ${tokens}`]];
    if (ids.length) told.push(["Token id", String(ids[at])]);
    if (arrays.rollout_log_probs) told.push(["Log-prob, rollout", number(arrays.rollout_log_probs[at])]);
    if (arrays.log_probs) told.push(["Log-prob, training", number(arrays.log_probs[at])]);
    if (this.difference) told.push(["Difference", `${number(this.difference[at])}${confidentAt(arrays, at) ? ", confident disagreement" : ""}`], ["Ratio", `${number(Math.exp(this.difference[at]))}${clippedText(arrays, at)}`]);
    if (arrays.advantages) told.push(["Advantage", number(arrays.advantages[at])]);
    if (arrays.entropies) told.push(["Entropy", number(arrays.entropies[at])]);
    const place = [arrays.mask?.[at] === 0 ? "outside the loss" : "", this.turns ? `turn ${this.turns[at]}` : "", version === null ? "" : `weights ${version}`].filter(Boolean);
    if (place.length) told.push(["Place", place.join(" · ")]);
    return told;
  }

  _say() {
    if (!this.shown?.tokens) return;
    const [[, title], ...told] = this._told(this.pointed < 0 ? this.at : this.pointed);
    say(this.title, `Token ${title}`);
    this.values.forEach(([name, value], index) => {
      const one = told[index];
      name.hidden = value.hidden = !one;
      if (one) say(name, one[0]);
      if (one) say(value, one[1]);
    });
  }

  // ---- the picture

  _soon() {
    if (!this.frame) this.frame = requestAnimationFrame(() => this.draw());
  }

  /** Another width has other lines. */
  _fit() {
    this.room.style.blockSize = `${this.lines * LINE}px`;
    this._soon();
  }

  _colours() {
    if (this.inks.ink) return this.inks;
    const style = getComputedStyle(this.scroller);
    /** @param {string} name */
    const of = (name) => style.getPropertyValue(name).trim();
    this.inks = { ink: of("--ink"), quiet: of("--ink-3"), accent: of("--accent"), line: of("--line-2"), ground: of("--bg") };
    for (const tone of /** @type {Tone[]} */ (Object.keys(INKS))) this.inks[tone] = of(INKS[tone]);
    return this.inks;
  }

  draw() {
    this.frame = 0;
    const { canvas, scroller, shown, coloured } = this;
    const [width, height] = [scroller.clientWidth, Math.min(scroller.clientHeight, Math.max(this.lines * LINE, 1))];
    const context = canvas.getContext("2d");
    if (!shown || !context || !width || !height) return;
    const scale = globalThis.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
      canvas.style.inlineSize = `${width}px`;
      canvas.style.blockSize = `${height}px`;
    }
    const inks = this._colours();
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = '11px ui-monospace, Menlo, Consolas, "Liberation Mono", monospace';
    context.textBaseline = "middle";
    const { across, cell, lines } = this;
    const top = scroller.scrollTop;
    const { first, last } = linesInSight({ top, height, line: LINE, count: lines, spare: 0 });
    for (let line = first; line < last; line += 1) {
      const y = line * LINE - top;
      context.globalAlpha = 1;
      context.fillStyle = inks.quiet ?? "";
      context.fillText(count(line * across), 0, y + LINE / 2, MARGIN - 6);
      const end = Math.min((line + 1) * across, shown.tokens);
      for (let at = line * across; at < end; at += 1) this._cell(context, at, [MARGIN + (at - line * across) * cell, y], coloured);
    }
    this._frame(context, this.at, top, inks.accent ?? "");
    if (this.pointed >= 0) this._frame(context, this.pointed, top, inks.line ?? "");
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {number} at
   * @param {[x: number, y: number]} place
   * @param {Coloured | null} coloured
   */
  _cell(context, at, [x, y], coloured) {
    const { inks, cell, shown } = this;
    const [tone, share] = coloured?.of(at) ?? /** @type {[Tone, number]} */ (["nothing", 0]);
    const low = shown?.arrays.mask?.[at] === 0; //  what the loss leaves out is low, whatever its colour
    const [begin, size] = [low ? y + LINE - 8 : y + 1, low ? 6 : LINE - 3];
    context.fillStyle = inks.nothing ?? "";
    context.fillRect(x, begin, cell - 1, size);
    context.globalAlpha = STRONG.has(tone) ? 0.14 + 0.62 * share : 1;
    context.fillStyle = inks[tone] ?? "";
    context.fillRect(x, begin, cell - 1, size);
    context.globalAlpha = 1;
    if (tone === "broken") this._cross(context, [x, begin, cell - 1, size]);
    else this._dot(context, at, [x + cell - 6, begin + 1], coloured);
    if (!shown?.ids.length) return;
    context.fillStyle = inks.ink ?? "";
    context.fillText(String(shown.ids[at]), x + 4, y + LINE / 2, cell - 9);
  }

  /**
   * NaN isn't told by its colour alone.
   * @param {CanvasRenderingContext2D} context
   * @param {[x: number, y: number, width: number, height: number]} box
   */
  _cross(context, [x, y, width, height]) {
    context.strokeStyle = this.inks.ground ?? "";
    context.beginPath();
    context.moveTo(x + 2, y + 2);
    context.lineTo(x + width - 2, y + height - 2);
    context.stroke();
  }

  /**
   * Confident disagreement isn't told by its colour at all: an outlier sets the scale, and it may be pale.
   * @param {CanvasRenderingContext2D} context
   * @param {number} at
   * @param {[x: number, y: number]} place
   * @param {Coloured | null} coloured
   */
  _dot(context, at, [x, y], coloured) {
    if (!coloured?.dotted?.(at)) return;
    context.fillStyle = this.inks.ink ?? "";
    context.fillRect(x, y, 4, 4);
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {number} at
   * @param {number} top
   * @param {string} ink
   */
  _frame(context, at, top, ink) {
    context.strokeStyle = ink;
    context.lineWidth = 2;
    context.strokeRect(MARGIN + (at % this.across) * this.cell, Math.floor(at / this.across) * LINE - top + 1, this.cell - 1, LINE - 3);
    context.lineWidth = 1;
  }
}

/** @param {number} value */
const number = (value) => (Number.isNaN(value) ? "NaN" : digits(value));

/**
 * @param {Arrays} arrays
 * @param {number} at
 */
function clippedText({ clipped_passes: clipped }, at) {
  if (!clipped) return "";
  return clipped[at] > 0 ? `, clipped in ${clipped[at]} ${clipped[at] === 1 ? "pass" : "passes"}` : "";
}
