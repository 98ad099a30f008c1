// The map of the attempt: the time of each step as a bar, and a frame at the chosen one. Dragging it scrubs.

import { drawn, node } from "./dom.js";
import { median } from "./medians.js";

/** @import { Clock } from "./clock.js" */

const HEIGHT = 28;

const LEAST_WIDTH = 120; //  px, where it can't be measured

/** Bars end here above the 99th percentile of the steps after the first, as the scales of the figures do. */
const ROBUST = 1.15;

/**
 * A bar of the map: of one step, or of several where there are more steps than half the pixels.
 * @typedef {object} Bar
 * @property {number} at index of its first step
 * @property {number} many so many steps
 * @property {number} middle their median, in seconds; NaN where none is known
 * @property {number} most the largest of them
 */

/** The map, and in it a slider that nobody sees. */
export class RunMap {
  /** @param {(index: number) => void} chosen is called with the index of the step that was chosen */
  constructor(chosen) {
    this.slider = node("input", { type: "range", min: "0", max: "0", step: "1", "aria-label": "Step", on: { input: () => chosen(Number(this.slider.value)) } });
    this.range = drawn("path", { class: "pp-map-range" });
    this.bars = drawn("path", { class: "pp-map-bars" });
    this.cut = drawn("path", { class: "pp-map-cut" });
    this.chosen = drawn("path", { class: "pp-map-chosen" });
    this.frame = drawn("rect", { class: "pp-map-frame", y: "-2", height: String(HEIGHT + 4), rx: "2" });
    this.marks = { alarm: drawn("path", { class: "pp-map-alarm" }), tuning: drawn("path", { class: "pp-map-tune" }) };
    this.picture = drawn("svg", { "aria-hidden": "true", preserveAspectRatio: "none" }, this.range, this.bars, this.cut, this.chosen, this.frame, this.marks.tuning, this.marks.alarm);
    this.root = node("div", { class: "pp-map", title: "Time of each step; drag to choose one" }, this.picture, this.slider);
    this.told = "";
  }

  /**
   * @param {Clock} clock
   * @param {number} last index of the last step that can be chosen
   * @param {number} at index of the step that is shown
   * @param {string} said of it, for a screen reader
   * @param {Map<number, "alarm" | "tuning">} [begins] steps in which findings begin
   */
  draw(clock, last, at, said, begins = new Map()) {
    const width = this.root.clientWidth || LEAST_WIDTH;
    if (this.slider.max !== String(last)) this.slider.max = String(last);
    if (this.slider.value !== String(at)) this.slider.value = String(at);
    this.slider.disabled = last < 1;
    this.slider.setAttribute("aria-valuetext", said);
    const times = clock.steps.slice(0, last + 1).map((step) => timeOf(clock, step));
    const marked = [...begins].map(([step, kind]) => ({ step, kind, index: clock.spans.has(step) ? clock.indexOf(step) : -1 })).filter(({ index }) => index >= 0 && index <= last);
    const told = JSON.stringify([width, at, times.length, times.at(-1), times.at(-2), marked]);
    if (told === this.told) return;
    this.told = told;
    this.slider.style.setProperty("--pp-thumb", `${Math.max(width / (last + 1), 1)}px`);
    this.picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this._mark(marked, width / Math.max(times.length, 1));
    this._bars(binned(times, Math.floor(width / 2)), limitOf(times), width / Math.max(times.length, 1), at);
  }

  /**
   * A triangle below each step in which a finding begins.
   * @param {{step: number, kind: "alarm" | "tuning", index: number}[]} marked
   * @param {number} pitch px of a step
   */
  _mark(marked, pitch) {
    for (const kind of /** @type {const} */ (["alarm", "tuning"])) {
      const paths = marked.filter((one) => one.kind === kind).map(({ index }) => `M${((index + 0.5) * pitch).toFixed(2)} ${HEIGHT + 2}l4 6h-8Z`);
      this.marks[kind].setAttribute("d", paths.join(""));
    }
    const steps = marked.map(({ step }) => step).sort((a, b) => a - b);
    const text = steps.length ? `Findings begin in step ${steps.join(", ")}` : "";
    this.root.title = `Time of each step; drag to choose one${text ? `. ${text}.` : ""}`;
    if (text) this.slider.setAttribute("aria-description", text);
    else this.slider.removeAttribute("aria-description");
  }

  /**
   * @param {Bar[]} bars
   * @param {number} limit the end of the scale, in seconds
   * @param {number} pitch px of a step
   * @param {number} at
   */
  _bars(bars, limit, pitch, at) {
    const [plain, most, cut, chosen] = [[""], [""], [""], [""]];
    for (const bar of bars) {
      const [x, width] = [bar.at * pitch, Math.max(bar.many * pitch - (pitch * bar.many > 3 ? 1 : 0), 0.75)];
      if (Number.isNaN(bar.middle)) continue;
      const top = box(x, width, Math.min(bar.middle / limit, 1));
      (at >= bar.at && at < bar.at + bar.many ? chosen : plain).push(top);
      if (bar.many > 1) most.push(box(x, width, Math.min(bar.most / limit, 1)));
      if (bar.middle > limit) cut.push(`M${x} 5h${width}v2h${-width}Z`);
    }
    [this.bars, this.range, this.cut, this.chosen].forEach((path, index) => path.setAttribute("d", [plain, most, cut, chosen][index].join("")));
    this.frame.setAttribute("visibility", bars.length ? "visible" : "hidden");
    const wide = Math.max(pitch + 2, 6);
    this.frame.setAttribute("x", String((at + 0.5) * pitch - wide / 2));
    this.frame.setAttribute("width", String(wide));
  }
}

/**
 * @param {number} x
 * @param {number} width
 * @param {number} share of the height
 */
function box(x, width, share) {
  const height = Math.max(share * HEIGHT, 1);
  return `M${x.toFixed(2)} ${HEIGHT}v${(-height).toFixed(2)}h${width.toFixed(2)}v${height.toFixed(2)}Z`;
}

/**
 * @param {Clock} clock
 * @param {number} step
 */
function timeOf(clock, step) {
  const [begin, end] = clock.span(step);
  return end - begin;
}

/**
 * Where the scale ends, so that a slow first step doesn't flatten the rest.
 * @param {number[]} times
 */
export function limitOf(times) {
  const known = (times.length > 2 ? times.slice(1) : times).filter((one) => one > 0).sort((a, b) => a - b);
  return known.length ? ROBUST * known[Math.min(Math.ceil(0.99 * known.length), known.length) - 1] : 1;
}

/**
 * A bar for each step, or for several of them where there would be more than `most`: never each n-th.
 * @param {number[]} times
 * @param {number} most
 * @returns {Bar[]}
 */
export function binned(times, most) {
  const many = Math.max(Math.ceil(times.length / Math.max(most, 1)), 1);
  const made = [];
  for (let at = 0; at < times.length; at += many) {
    const known = times.slice(at, at + many).filter((one) => !Number.isNaN(one));
    made.push({ at, many: Math.min(many, times.length - at), middle: median(known), most: known.length ? Math.max(...known) : NaN });
  }
  return made;
}
