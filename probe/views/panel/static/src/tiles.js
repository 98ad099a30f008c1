// The mark "tiles": a number, its sparkline and what it means.

import { largest } from "./cells.js";
import { drawn, node, say } from "./dom.js";
import { thinned } from "./extremes.js";
import { Grouped } from "./grouped.js";
import { median } from "./medians.js";
import { WINDOWS, shownRange } from "./ranges.js";
import { StepLines, largestByStep, totalOf } from "./step_lines.js";
import { summed } from "./sums.js";
import { saidOf, whoSeries, whoStandsOut } from "./who.js";
import { attemptOf, spell, unitWord } from "./words.js";

/** @import { TileSpec } from "./definition_types.js" */
/** @import { FullCard, NumbersTable } from "./types.js" */
/** @import { Store } from "./store.js" */

/** Height of a sparkline in its own units, of which it is 160 wide. */
const HIGH = 32;

/** A limit is drawn where the line comes to this share of it; far above it would press the line flat. */
const NEAR = 0.5;

/** All tiles of a panel. */
export class TilesMark {
  /** @param {FullCard} card */
  constructor(card) {
    this.card = card;
    this.store = card.store;
    this.remark = "";
    this.tiles = (card.spec.tiles || []).filter((tile) => !tile.own).map((tile) => new Tile(card, tile));
    this.list = node("div", { class: "pp-tiles", role: "list" }, ...this.tiles.map((one) => one.root));
    this.caption = node("p", { class: "pp-caption" });
    card.body.append(this.list, this.caption);
  }

  destroy() {}

  restyle() {
    this.card.invalidate();
  }

  hover() {}

  draw() {
    for (const tile of this.tiles) tile.draw();
    say(this.caption, this._told());
    return true;
  }

  /** Over what the numbers are, and what their lines are: only of what is drawn. */
  _told() {
    const { ui, state } = this.store;
    const most = Math.max(...this.tiles.map((one) => one.many));
    const memory = this.tiles.some((one) => one.spec.unit === "bytes" && one.drawn) ? "; memory is the largest of the run" : "";
    const middle = most > 1 ? `Each number is the median of the last ${most} steps${memory}.` : most ? `Each number is of one step${memory}.` : "";
    const dots = [...new Set(this.tiles.filter((one) => one.drawn).map((one) => one.dotted))];
    if (!dots.length) return "";
    const line = `The line is ${windowOf(this.store) ?? attemptOf(state)[0] ?? "the run"}${dots.length === 1 ? `, and its dot is step ${dots[0]}` : ""}`;
    const limit = this.tiles.some((one) => one.limited) ? "; dotted red is the capacity" : "";
    return `${ui.step === null ? middle : `Each number is of step ${ui.step}.`} ${line}${limit}.`.trim();
  }

  summary() {
    return this.tiles.map((one) => one.spoken).join(" ");
  }

  /** @returns {NumbersTable} */
  table() {
    return { head: ["what", "value", "", "means"], rows: this.tiles.map((one) => [one.spec.title, one.text, one.note.textContent ?? "", one.means.textContent ?? ""]) };
  }
}

class Tile {
  /**
   * @param {FullCard} card
   * @param {TileSpec} spec
   */
  constructor(card, spec) {
    this.card = card;
    this.store = card.store;
    /** @type {TileSpec} */
    this.spec = { ...spec, x: "step" };
    this.lines = summed(card.store, StepLines, this.spec);
    /** By what ranks are compared. */
    this.compared = whoSeries(this.spec);
    this.text = "";
    /** The step that is shown. @type {number | null} */
    this.step = null;
    this.many = 0; //  of how many steps the number is the median; 0 where it is none
    this.drawn = false; //  whether there is a line
    this.limited = false; //  and a limit
    /** The step of the dot. @type {number | null} */
    this.dotted = null;
    this.value = node("span", { class: "pp-value" });
    this.unit = node("span", { class: "pp-unit" });
    this.note = node("p", { class: "pp-note" });
    this.means = node("p", { class: "pp-means pp-found" });
    this.path = drawn("path", { class: "pp-spark-line" });
    this.limit = drawn("path", { class: "pp-spark-limit" });
    this.dot = drawn("circle", { class: "pp-spark-dot", r: "3" });
    const spark = drawn("svg", { class: "pp-spark", viewBox: `0 0 160 ${HIGH}`, preserveAspectRatio: "none", "aria-hidden": "true" }, this.limit, this.path);
    const dots = drawn("svg", { class: "pp-spark pp-spark-over", "aria-hidden": "true" }, this.dot);
    this.root = node(
      "div", { class: "pp-tile", role: "listitem", tabindex: "0", on: { click: () => this.pick(), keydown: (event) => this._key(event) } },
      node("h3", { text: spec.title }), node("div", { class: "pp-number" }, this.value, this.unit),
      node("div", { class: "pp-sparks" }, spark, dots), this.means, this.note,
    );
    this.spoken = "";
  }

  draw() {
    const { store, spec } = this;
    this.lines = summed(store, StepLines, spec);
    const values = this._values();
    const [value, step, many] = this._value(values);
    const capacity = spec.capacity ? this._capacity() : NaN;
    this.step = step;
    this.many = Number.isNaN(value) || spec.total || spec.unit === "bytes" || spec.pooled ? 0 : many;
    this.text = spell(value, spec.unit);
    this._number(this.text);
    say(this.unit, Number.isNaN(value) ? "" : unitWord(spec.unit));
    this._judge(value, spec.capacity ? value / capacity : value);
    say(this.note, this._noted(value, capacity, step, values, many));
    this._spark(values, store.ui.step ?? lastStep(this.lines.steps, values.slice(0, this._until(values))), capacity);
    const spoken = `${spec.title}: ${this.text} ${unitWord(spec.unit)}. ${this.note.textContent} ${this.means.textContent}`;
    if (spoken !== this.spoken) this.root.setAttribute("aria-label", spoken);
    this.spoken = spoken;
  }

  /**
   * The number large, and small the unit behind it.
   * @param {string} text
   */
  _number(text) {
    if (this.value.textContent === text) return;
    const at = text.lastIndexOf(" ");
    const parts = at < 0 || text.match(/ .* /) ? [text] : [text.slice(0, at), node("small", { text: text.slice(at) })];
    this.value.replaceChildren(...parts);
    this.value.toggleAttribute("data-missing", text === "–");
  }

  /** One value a step: the largest of its series, which is one for most tiles; or the sum so far. */
  _values() {
    const [only, ...more] = this.lines.series.values();
    const values = only && !more.length && !this.lines.more.size ? only.values : largestByStep(this.lines).values;
    let sum = 0;
    return this.spec.total ? values.map((value) => (sum += value || 0)) : values;
  }

  /**
   * What is shown, as `over_window` in probe/dashboards/courses.py: of the chosen step, or where none is chosen the
   * median of the last steps (pooled: their ratio of sums), of bytes the largest of the run.
   * @param {number[]} values
   * @returns {[value: number, step: number | null, many: number]} the step that is picked by a click, and of how many
   *   steps the number is the median
   */
  _value(values) {
    const { lines, store, spec } = this;
    if (spec.total) return [this._total(), store.ui.step, 1];
    if (store.ui.step !== null) return [values[lines.at.get(store.ui.step) ?? -1] ?? NaN, store.ui.step, 1];
    const ended = values.slice(0, this._until(values));
    if (spec.unit === "bytes") {
      const most = largest(ended);
      return [most, lines.steps[ended.indexOf(most)] ?? null, 1];
    }
    const inside = lastOf(ended, spec.window ?? 1);
    const value = spec.pooled ? lines.pooled(inside.map((at) => lines.steps[at])) : median(inside.map((at) => ended[at]));
    return [value, lastStep(lines.steps, ended), inside.length];
  }

  /**
   * How many of the steps count: those that are complete, and the chosen one.
   * @param {number[]} values
   */
  _until(values) {
    const { steps } = this.lines;
    const chosen = this.store.ui.step ?? -1;
    let end = values.length;
    while (end > 0 && steps[end - 1] > chosen && this.store.isPartial(steps[end - 1])) end -= 1;
    return end;
  }

  /** Over the run, or up to the step of the scrubber; what has no step counts too. */
  _total() {
    return this.store.empty ? NaN : totalOf(this.lines, this.store.ui.step ?? Infinity);
  }

  _capacity() {
    const { capacity } = this.spec;
    if (!capacity) return NaN;
    const over = summed(this.store, Grouped, { reduce: "max", by: [], ...capacity });
    return largest([...over.collect(null).values()].map((cell) => over.value(cell)));
  }

  /**
   * @param {number} shown
   * @param {number} value what the limits are for: of something with a capacity the share of it
   */
  _judge(shown, value) {
    const { spec, store } = this;
    const { warn, alarm } = { ...spec, ...store.config.thresholds?.[spec.id] };
    /** @param {number | undefined | null} limit */
    const worse = (limit) => limit !== undefined && limit !== null && (spec.better === "higher" ? value <= limit : value >= limit);
    let status = warn === undefined && alarm === undefined ? "none" : worse(alarm) ? "alarm" : worse(warn) ? "warn" : "good";
    if (Number.isNaN(value)) status = "none";
    this.root.dataset.status = status;
    this._explain(shown, status);
  }

  /**
   * Which rank it is, or what the number means.
   * @param {number} shown
   * @param {string} status
   */
  _explain(shown, status) {
    const { spec } = this;
    const praised = status === "good" && spec.id === "peak_memory" && isAlarmOf(this.store, "memory");
    const [means, who] = [praised ? "There is an alarm about memory." : meaning(spec, shown, status), Number.isNaN(shown) ? null : this._who()];
    const said = saidOf(who, this.compared?.unit);
    const judged = status === "warn" || status === "alarm";
    say(this.means, judged ? [who?.standsOut ? said : "", means].filter(Boolean).join(" ") : said || means);
    this.means.toggleAttribute("data-stands-out", Boolean(who?.standsOut));
  }

  /** The rank that stands out in the steps that the number is of. */
  _who() {
    if (!this.compared) return null;
    const { store } = this;
    const { step } = store.ui;
    return whoStandsOut(this.spec, summed(store, StepLines, this.compared), (one) => (step === null ? !store.isPartial(one) : one === step));
  }

  /**
   * @param {number} value
   * @param {number} capacity
   * @param {number | null} step
   * @param {number[]} values
   * @param {number} many
   */
  _noted(value, capacity, step, values, many) {
    if (Number.isNaN(value)) return this._why();
    const { unit, total, pooled } = this.spec;
    const parts = [];
    if (unit === "bytes" && this.store.state.memory) parts.push(`This is ${this.store.state.memory}.`);
    if (capacity > 0) parts.push(`The peak takes ${held(spell(value / capacity, "percent"))} of ${held(spell(capacity, unit))}.`);
    if (total) parts.push(step === null ? "In the run so far." : `Up to step ${step}.`);
    else if (many > 1 && pooled) parts.push(`The last ${many} steps together.`);
    else if (many > 1) parts.push(`${extentText(lastOf(values.slice(0, this._until(values)), many).map((at) => values[at]), unit)} in ${many} steps.`);
    else if (step !== null) parts.push(`${unit === "bytes" && this.store.ui.step === null ? "The largest of the run, in" : "This is"} step ${step}.`);
    return parts.join(" ");
  }

  /** Why there is no value. */
  _why() {
    const { store, lines, spec } = this;
    const { rank, role, phase, step } = store.ui;
    const rows = step === null ? lines.steps.length > 0 : lines.at.has(step);
    const chosen = [role, rank, phase].filter(Boolean).join(", ");
    if (!rows && (step !== null || chosen)) return `${["Not measured", step === null ? "" : `in step ${step}`, chosen && `for ${chosen}`].filter(Boolean).join(" ")}.`;
    return whyMissing(spec, rows);
  }

  /**
   * @param {number[]} values
   * @param {number | null} step
   * @param {number} capacity NaN without
   */
  _spark(values, step, capacity) {
    const { lines } = this;
    const [from, to] = shownRange(this.store, "step");
    /** @type {number[]} */
    const inside = [];
    const until = this.spec.total ? values.length : this._until(values);
    lines.steps.forEach((one, at) => {
      if (at < until && one >= from && one <= to && Number.isFinite(values[at])) inside.push(at);
    });
    this.drawn = inside.length > 0;
    this.limited = false;
    const kept = thinned(inside, [inside.map((at) => values[at])], 160)?.map((at) => inside[at]) ?? inside;
    if (!kept.length) {
      for (const part of [this.path, this.limit]) part.setAttribute("d", "");
      this.dot.setAttribute("visibility", "hidden");
      return;
    }
    const ys = kept.map((at) => values[at]);
    const limited = Math.max(...ys) >= NEAR * capacity;
    this.limited = limited;
    const place = sparkPlace(kept.map((at) => lines.steps[at]), limited ? [...ys, capacity] : ys);
    const points = kept.map((at) => place(lines.steps[at], values[at]));
    const line = points.map(([x, y], at) => `${at ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
    this.path.setAttribute("d", points.length > 1 ? line : "");
    this.limit.setAttribute("d", limited ? `M0 ${place(0, capacity)[1].toFixed(1)}H160` : "");
    const at = lines.at.get(step ?? -1) ?? kept[kept.length - 1];
    const shown = Number.isFinite(values[at]);
    this.dotted = shown ? lines.steps[at] : null;
    this.dot.setAttribute("visibility", shown ? "visible" : "hidden");
    if (!shown) return;
    const [x, y] = place(lines.steps[at], values[at]);
    this.dot.setAttribute("cx", `${Math.min(Math.max((x / 160) * 100, 1.5), 98.5)}%`);
    this.dot.setAttribute("cy", `${(y / HIGH) * 100}%`);
  }

  /** The step's row that made the number. */
  pick() {
    const step = this.step ?? this.store.step;
    const at = this.lines.at.get(step ?? -1) ?? -1;
    const [first, ...others] = this.lines.series.values();
    const most = others.reduce((best, one) => (one.values[at] > best.values[at] || Number.isNaN(best.values[at]) ? one : best), first);
    const row = most && step !== null ? this.lines.rowOf(most.key, step) : -1;
    const table = this.store.table(this.spec.table);
    this.card.pick({ table: this.spec.table, row: row < 0 ? null : table.row(row, this.store.words), step, label: this.spec.title });
  }

  /** @param {KeyboardEvent} event */
  _key(event) {
    if (event.key !== "Enter") return;
    event.preventDefault();
    this.pick();
  }
}

/**
 * A number and its unit, which stay in one line.
 * @param {string} text
 */
const held = (text) => text.replaceAll(" ", "\u00a0");

/**
 * From the smallest to the largest of some values, the unit said once where it is the same.
 * @param {number[]} values
 * @param {string | undefined} unit
 */
export function extentText(values, unit) {
  const [low, high] = [Math.min(...values), Math.max(...values)].map((value) => spell(value, unit));
  if (low === high) return held(high);
  const at = low.lastIndexOf(" ");
  const same = at > 0 && high.endsWith(low.slice(at));
  return `${held(same ? low.slice(0, at) : low)} to ${held(high)}`;
}

/**
 * The part of the run that was chosen, in words; null where that is all of it.
 * @param {Store} store
 */
function windowOf(store) {
  const { zoom, window } = store.ui;
  if (zoom) return `steps ${shownRange(store, "step").join(" to ")}`;
  return window === "all" ? null : `the ${WINDOWS[window]?.title ?? "run"}`;
}

/**
 * Where the last values that are known stand, at most `most` of them.
 * @param {number[]} values
 * @param {number} most
 */
export function lastOf(values, most) {
  const found = [];
  for (let at = values.length - 1; at >= 0 && found.length < most; at -= 1) if (!Number.isNaN(values[at])) found.push(at);
  return found;
}

/**
 * The last step that has a value.
 * @param {number[]} steps
 * @param {number[]} values
 */
function lastStep(steps, values) {
  for (let at = values.length - 1; at >= 0; at -= 1) if (!Number.isNaN(values[at])) return steps[at];
  return null;
}

/**
 * What a value means, as `meaning` in probe/dashboards/standing.py says it: nothing without a value, and of one with
 * limits that can't be compared with them no verdict.
 * @param {TileSpec} spec
 * @param {number} value
 * @param {string} status
 * @returns {string}
 */
export function meaning(spec, value, status) {
  const { means = {}, warn, alarm, capacity } = spec;
  if (Number.isNaN(value)) return "";
  const limited = (warn ?? alarm ?? null) !== null;
  if (status === "none" && limited) return capacity ? "No capacity is known to compare it with." : "";
  return (typeof means === "string" ? means : means[status === "none" ? "good" : status]) ?? "";
}

/**
 * Why there is no value, as `why_missing` in probe/dashboards/standing.py says it.
 * @param {TileSpec} spec
 * @param {boolean} rows whether there are rows of it, which have no value
 * @returns {string}
 */
export function whyMissing(spec, rows) {
  const { missing = {} } = spec;
  return (rows ? missing.value : undefined) || missing.rows || "Not measured.";
}

/**
 * @param {number[]} xs
 * @param {number[]} ys
 * @returns {(x: number, y: number) => [x: number, y: number]}
 */
function sparkPlace(xs, ys) {
  const [left, right] = [xs[0], xs[xs.length - 1]];
  const [low, high] = [Math.min(...ys), Math.max(...ys)];
  return (x, y) => [right > left ? ((x - left) / (right - left)) * 160 : 80, high > low ? HIGH - 3 - ((y - low) / (high - low)) * (HIGH - 6) : HIGH / 2];
}

/**
 * Whether an alarm was found that a view shows more of: then nothing there is praised.
 * @param {Store} store
 * @param {string} topic of the view
 */
function isAlarmOf(store, topic) {
  return (store.state.verdict?.findings ?? []).some((one) => one.kind === "alarm" && one.topic === topic);
}
