// Pause, window, role, rank, phase, and the scrubber.

import { node, say } from "./dom.js";
import { WINDOWS } from "./ranges.js";
import { shorten } from "./words.js";

/** @import { Choices } from "./types.js" */
/** @import { Clock } from "./clock.js" */
/** @import { Panel } from "./view.js" */

/** @typedef {{select: HTMLSelectElement, root: HTMLElement, known: string}} Offer a choice, and what was offered last */

/** Pause, window, role, rank, phase, and the scrubber. */
export class Controls {
  /** @param {Panel} panel */
  constructor(panel) {
    this.panel = panel;
    this.store = panel.store;
    this.pause = node("button", { type: "button", class: "pp-button", on: { click: () => panel.pause() } });
    this.window = this._select("Window", Object.entries(WINDOWS).map(([value, { title }]) => [value, title]), "window");
    this.role = this._select("Role", [], "role");
    this.rank = this._select("Rank", [], "rank");
    this.phase = this._select("Phase", [], "phase");
    this.reset = node("button", { type: "button", class: "pp-button", text: "Reset zoom", on: { click: () => this.store.choose({ zoom: null }) } });
    const choices = node("div", { class: "pp-choices" }, this.pause, ...[this.window, this.role, this.rank, this.phase].map((one) => one.root), this.reset);
    this.slider = node("input", { type: "range", min: "0", max: "0", step: "1", "aria-label": "Step", on: { input: () => this._scrub(Number(this.slider.value)) } });
    this.told = node("output", { class: "pp-step" });
    this.back = node("button", { type: "button", class: "pp-plain", "aria-label": "One step back", text: "◀", on: { click: () => this.move(-1) } });
    this.on = node("button", { type: "button", class: "pp-plain", "aria-label": "One step on", text: "▶", on: { click: () => this.move(1) } });
    this.follow = node("button", { type: "button", class: "pp-button", text: "Follow", title: "Show each step once all ranks have ended it", on: { click: () => this.store.choose({ step: null }) } });
    const scrubber = node("div", { class: "pp-scrubber" }, this.told, this.back, this.slider, this.on, this.follow);
    this.root = node("div", { class: "pp-controls", role: "toolbar", "aria-label": "What is shown" }, choices, scrubber);
  }

  /**
   * @param {string} title
   * @param {[value: string, text: string][]} options
   * @param {"window" | "role" | "rank" | "phase"} name
   * @returns {Offer}
   */
  _select(title, options, name) {
    const select = node("select", { "aria-label": title, on: { change: () => this.store.choose({ [name]: select.value }) } });
    const made = { select, root: node("label", { class: "pp-choice" }, node("span", { text: title }), select), known: "" };
    this._offer(made, options);
    return made;
  }

  /**
   * @param {Offer} made
   * @param {[value: string, text: string][]} options
   */
  _offer(made, options) {
    const known = JSON.stringify(options);
    if (made.known === known) return;
    made.known = known;
    const kept = made.select.value;
    made.select.replaceChildren(...options.map(([value, text]) => node("option", { value, text: shorten(text, 40) })));
    made.select.value = kept;
  }

  /**
   * Move by steps; at the newest the panel follows.
   * @param {number} by
   */
  move(by) {
    const { clock } = this.store;
    if (!clock.steps.length) return;
    const now = clock.indexOf(this.store.step ?? 0);
    this._scrub(Math.min(Math.max(now + by, 0), this._last()));
  }

  /** The index of the step that is followed: the scrubber's end. What is newer is complete soon. */
  _last() {
    const { clock, followed } = this.store;
    return clock.steps.length ? clock.indexOf(followed ?? 0) : 0;
  }

  /** @param {number} index */
  _scrub(index) {
    const { steps } = this.store.clock;
    this.store.choose({ step: index >= this._last() ? null : steps[index] });
  }

  draw() {
    const { ui, clock, words } = this.store;
    /** @type {(codes: Set<number>) => [value: string, text: string][]} */
    const named = (codes) => [...codes].map((code) => words.text(code)).sort().map((text) => [text, text]);
    this._offer(this.role, [["", "all roles"], ...named(this.store.roles)]);
    this._offer(this.phase, [["", "all phases"], ...named(this.store.phases)]);
    this._offer(this.rank, [["", "all ranks"], ...named(this.store.ranks).sort(([a], [b]) => a.localeCompare(b, undefined, { numeric: true }))]);
    for (const name of /** @type {const} */ (["window", "role", "rank", "phase"])) {
      const made = this[name];
      made.root.hidden = name !== "window" && made.select.options.length < 3 && !ui[name];
      if (made.select.value !== String(ui[name])) made.select.value = String(ui[name]);
    }
    say(this.pause, ui.paused ? "Resume" : "Pause");
    this.pause.setAttribute("aria-pressed", String(ui.paused));
    this.reset.hidden = !ui.zoom;
    this._drawScrubber(ui, clock);
  }

  /**
   * @param {Choices} ui
   * @param {Clock} clock
   */
  _drawScrubber(ui, clock) {
    const last = this._last();
    const at = ui.step === null ? last : Math.min(clock.indexOf(ui.step), last);
    if (this.slider.max !== String(last)) this.slider.max = String(last);
    if (this.slider.value !== String(at)) this.slider.value = String(at);
    this.slider.disabled = last < 1;
    const step = this.store.step;
    const text = step === null ? "no step yet" : `step ${step}`;
    say(this.told, text);
    this.slider.setAttribute("aria-valuetext", step === null ? text : `${text} of ${this.store.followed}${ui.step === null ? ", following" : ""}`);
    this.back.disabled = at <= 0;
    this.on.disabled = at >= last;
    this.follow.setAttribute("aria-pressed", String(ui.step === null));
  }
}
