// The rollout of a step in the view Tokens: a lane for each replica, as high as it has answers under way, below the
// trainer's phases, on one clock. Which step it is is said above it; the chosen one is asked of whoever reads the run.

import { drawn, freshId, node, say } from "./dom.js";
import { clockText } from "./ranges.js";
import { StepAsking } from "./step_asking.js";
import { hue, styleOf } from "./theme.js";
import { seconds } from "./words.js";

/** @import { Lane, LanePhase, Lanes as Told, OtherRules } from "./finding_types.js" */
/** @import { Theme } from "./types.js" */
/** @import { Panel } from "./view.js" */

/** The view that it stands in. */
const VIEW = "tokens";
//  Findings whose evidence the lanes are.
const LEADING = new Set(["long_tail", "idle_trainer", "idle_rollout"]);

const WIDE = 1000; //  of a lane's picture, in its own units
const HIGH = 100;

/** The figure. */
export class Lanes {
  /** @param {Panel} panel */
  constructor(panel) {
    this.panel = panel;
    this.store = panel.store;
    /** @type {StepAsking<Told>} */
    this.asking = new StepAsking(panel, "lanes", {
      some: ({ lanes }) => lanes.length > 0,
      refused: (step, reason) => ({ step, sentence: reason, notes: [], lanes: [], phases: [] }),
      say: (text) => this._say(text),
      draw: () => this.draw(),
    });
    /** What is drawn, and for which theme. @type {[told: Told | null, theme: Theme | null]} */
    this.shown = [null, null];
    const heading = freshId("lanes");
    this.title = node("h3", { id: heading });
    this.sentence = node("p", { class: "pp-sentence" });
    this.head = node("thead");
    this.body = node("tbody");
    this.axis = node("tfoot");
    this.table = node("table", { class: "pp-lane-table", "aria-labelledby": heading }, this.head, this.body, this.axis);
    this.numbers = node("table", { "aria-labelledby": heading });
    this.unfolded = node("details", {}, node("summary", { text: "Numbers" }), node("div", { class: "pp-scroll", tabindex: "0", role: "region", "aria-label": "The replicas: numbers" }, this.numbers));
    this.note = node("p", { class: "pp-read", role: "status", hidden: true });
    this.notes = node("div", { class: "pp-read" });
    this.rules = node("section", { class: "pp-rules", "aria-label": "Replayed with other rules", hidden: true });
    this.root = node("figure", { class: "pp-lanes", "aria-labelledby": heading, hidden: true }, node("header", {}, this.title, this.sentence), this.note, this.table, this.notes, this.unfolded, this.rules);
  }

  destroy() {
    this.asking.destroy();
  }

  draw() {
    const found = this.panel.tabs.chosen?.id === VIEW ? this._found() : null;
    this.root.hidden = !found;
    if (!found) return;
    const { verdict } = this.store.state;
    this.root.toggleAttribute("data-found", (verdict?.findings ?? []).some(({ name }) => LEADING.has(name)));
    this._show(found);
  }

  /** The step to show: the chosen or followed one, which is asked for where it isn't here; until then another one. */
  _found() {
    const { state, ui, followed } = this.store;
    const known = state.long_tail ?? null;
    if (!known && !this.asking.fetched) return null; //  nobody has told of any so far
    const step = ui.step ?? followed;
    if (step === null || known?.step === step) {
      this.asking.rest();
      return known;
    }
    return this.asking.of(step) ?? this._meanwhile(known);
  }

  /**
   * What is shown until the step has been asked for: what was, but no older one than is known.
   * @param {Told | null} known
   */
  _meanwhile(known) {
    const { ui, answers } = this.store;
    if (!answers) this._say(known && ui.step !== null ? `This copy keeps only the replicas of step ${known.step}.` : "");
    const [last] = this.shown;
    const newer = known && ui.step === null && (last?.step ?? -1) < (known.step ?? 0);
    return newer || !last ? known : last;
  }

  /** @param {Told} told */
  _show(told) {
    const { theme } = this.panel;
    if (this.shown[0] === told && this.shown[1] === theme) return;
    this.shown = [told, theme];
    say(this.title, `Replicas beside the trainer, step ${told.step}`);
    say(this.sentence, told.sentence);
    const some = told.lanes.length > 0;
    for (const one of [this.table, this.notes, this.unfolded]) one.hidden = !some;
    this.rules.hidden = !told.rules;
    this.rules.replaceChildren(...(told.rules ? otherRules(told.rules) : []));
    if (!some) return;
    this._draw(told, theme);
    const { head = [] } = told;
    const rows = told.lanes.map(({ name, cells }) => node("tr", {}, node("th", { scope: "row", text: name }), ...cells.map((text) => node("td", { class: "pp-number", text }))));
    const columns = node("tr", {}, node("th", { scope: "col", text: "Replica" }), ...head.map((text) => node("th", { scope: "col", class: "pp-number", text })));
    this.numbers.replaceChildren(node("thead", {}, columns), node("tbody", {}, ...rows));
    this.notes.replaceChildren(...[howToRead(told), ...told.notes].map((text) => node("p", { text })));
  }

  /**
   * @param {Told} told
   * @param {Theme} theme
   */
  _draw({ span = 0, tail = null, most = 1, phases, lanes }, theme) {
    this.table.style.setProperty("--from", share(tail ? tail[0] : span, span));
    this.table.style.setProperty("--to", share(tail ? tail[1] : span, span));
    this.table.style.setProperty("--busy", hue("generate", theme));
    this.table.toggleAttribute("data-tail", tail !== null);
    this.head.replaceChildren(node("tr", {}, node("td"), node("td", { class: "pp-lane" }, tail ? marked(tail, span) : null), ...["Ends at", "Idle in the tail"].map((text) => node("th", { scope: "col", class: "pp-number", text }))));
    this.body.replaceChildren(trainer(phases, span, theme), ...lanes.map((lane) => laneOf(lane, most, span)));
    this.axis.replaceChildren(node("tr", {}, node("td"), node("td", { class: "pp-lane" }, axisOf(span)), node("td", { colspan: "2" })));
  }

  /** @param {string} text */
  _say(text) {
    say(this.note, text);
    this.note.hidden = !text;
  }
}

/** @param {Told} told */
function howToRead({ tail = null, most = 1, left_out = 0 }) {
  const read = [`The height of a lane is the number of answers under way, at most ${most} at once.`];
  if (tail) read.push("Shaded: the tail, from the end of 90 % of the answers to the end of the last. Ticks: answers that end in it. Hatched: the replica has nothing left to do.");
  if (left_out) read.push(`${left_out} more replicas, which ended earlier, aren't drawn.`);
  return read.join(" ");
}

/**
 * What other rules would have saved, as a table.
 * @param {OtherRules} rules
 */
export function otherRules({ head, rows, note }) {
  const columns = head.map((text, at) => node("th", { scope: "col", class: at === 1 ? "pp-number" : null, text }));
  const lines = rows.map(([what, saves, price]) => node("tr", {}, node("th", { scope: "row", text: what }), node("td", { class: "pp-number", text: saves }), node("td", { text: price })));
  const table = node("table", {}, node("thead", {}, node("tr", {}, ...columns)), node("tbody", {}, ...lines));
  return [node("h4", { text: "Replayed with other rules" }), node("div", { class: "pp-scroll", tabindex: "0", role: "region", "aria-label": "Other rules: numbers" }, table), node("p", { class: "pp-read", text: note })];
}

/**
 * @param {number} at seconds
 * @param {number} span
 */
const share = (at, span) => `${((100 * at) / (span || 1)).toFixed(3)}%`;

/**
 * Where the tail begins, in words: on the side of the line that has more room.
 * @param {[from: number, to: number]} tail
 * @param {number} span
 */
function marked([from], span) {
  const side = from > span / 2 ? `inset-inline-end: ${share(span - from, span)}` : `inset-inline-start: ${share(from, span)}`;
  return node("span", { class: "pp-tail-begin", style: side, text: `90 % ended: ${seconds(from)}` });
}

/**
 * What the trainer did, in the order of time.
 * @param {LanePhase[]} phases
 */
export function phasesInWords(phases) {
  const told = [...phases].sort((a, b) => a.from - b.from || b.to - a.to).map(({ name, from, to }) => `${name} from ${seconds(from)} to ${seconds(to)}`);
  return `Trainer: ${told.join(", ") || "no phase is known"}.`;
}

/**
 * @param {LanePhase[]} phases longest first: what lies inside another is drawn over it
 * @param {number} span
 * @param {Theme} theme
 */
function trainer(phases, span, theme) {
  const boxes = phases.map(({ name, from, to, inside }) => {
    const place = `inset-inline-start: ${share(from, span)}; inline-size: ${share(to - from, span)}; --phase: ${styleOf({ by: "phase" }, name, theme).colour}`;
    return node("span", { class: "pp-phase", style: place, "data-inside": inside, title: `${name}, ${seconds(to - from)}` }, inside ? null : node("i", { text: name }));
  });
  const row = node("div", { class: "pp-phases", role: "img", "aria-label": phasesInWords(phases) }, ...boxes);
  return node("tr", { class: "pp-trainer" }, node("th", { scope: "row", text: "trainer" }), node("td", { class: "pp-lane" }, row), node("td", { colspan: "2" }));
}

/**
 * @param {Lane} lane
 * @param {number} most answers under way at once in any lane
 * @param {number} span
 */
function laneOf({ name, points, late, rests, ends, idle, about }, most, span) {
  const busy = drawn("path", { class: "pp-busy", d: outline(points, most) });
  const ticks = drawn("path", { class: "pp-late", d: late.map((at) => `M${(at * WIDE).toFixed(1)} ${HIGH * 0.55}V${HIGH}`).join("") });
  const picture = drawn("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: "none", role: "img", "aria-label": about }, busy, ticks);
  const idleFor = rests.map(([from, to]) => node("i", { class: "pp-idle", style: `inset-inline-start: ${share(from, span)}; inline-size: ${share(to - from, span)}` }));
  return node("tr", {}, node("th", { scope: "row", title: name, text: name }), node("td", { class: "pp-lane" }, picture, ...idleFor), node("td", { class: "pp-number", text: ends }), node("td", { class: "pp-number", text: idle }));
}

/**
 * The outline of what is under way: each height holds from its place to the next one.
 * @param {[at: number, high: number][]} points shares of the span
 * @param {number} most the height of the lane
 */
export function outline(points, most) {
  const steps = points.map(([at, high]) => `H${(at * WIDE).toFixed(1)}V${(HIGH * (1 - high / most)).toFixed(1)}`);
  return points.length ? `M${(points[0][0] * WIDE).toFixed(1)} ${HIGH}${steps.join("")}V${HIGH}Z` : "";
}

/**
 * Whole times on the axis, at most five, the first at 0.
 * @param {number} span seconds
 * @returns {{at: number, text: string}[]}
 */
export function axisTicks(span) {
  if (!(span > 0)) return [];
  const power = 10 ** Math.floor(Math.log10(span / 4));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => span / one <= 4.5) ?? span;
  return Array.from({ length: Math.floor(span / step + 1e-9) + 1 }, (_, at) => ({ at: at * step, text: clockText(at * step, step) }));
}

/** @param {number} span */
function axisOf(span) {
  const ticks = axisTicks(span).map(({ at, text }) => node("span", { style: `inset-inline-start: ${share(at, span)}`, "data-last": at > 0.94 * span, text }));
  return node("div", { class: "pp-lane-axis", "aria-hidden": "true" }, ...ticks);
}
