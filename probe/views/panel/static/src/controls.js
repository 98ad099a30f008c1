// What is shown: the step with the map of the attempt, the part of the run, rank, role and phase, and following.

import { node, say } from "./dom.js";
import { begins } from "./findings.js";
import { RunMap } from "./run_map.js";
import { WINDOWS } from "./ranges.js";
import { shorten } from "./words.js";

/** @import { Choices } from "./types.js" */
/** @import { Clock } from "./clock.js" */
/** @import { Panel } from "./view.js" */

/** @typedef {"window" | "role" | "rank" | "phase"} Chosen */
/** @typedef {{select: HTMLSelectElement, root: HTMLElement, known: string}} Offer a choice, and what was offered last */

/** The controls, which stay in sight. */
export class Controls {
  /** @param {Panel} panel */
  constructor(panel) {
    this.panel = panel;
    this.store = panel.store;
    this.told = node("output", { class: "pp-step" });
    this.back = this._stepButton("One step back", "‹", -1);
    this.on = this._stepButton("One step on", "›", 1);
    this.map = new RunMap((at) => this._scrub(at));
    this.slider = this.map.slider;
    /** The attempt that was asked for, until the kernel shows it. @type {string | null} */
    this.wanted = null;
    this.attempt = this._attempts();
    this.window = this._select("Window", Object.entries(WINDOWS).map(([value, { title }]) => [value, title]), "window");
    this.rank = this._select("Rank", [], "rank");
    this.role = this._select("Role", [], "role");
    this.phase = this._select("Phase", [], "phase");
    this.named = node("summary", { class: "pp-button", text: "Filter" });
    this.filters = node("details", { class: "pp-filters", on: { focusout: (event) => this._left(event) } }, this.named, node("div", {}, this.role.root, this.phase.root));
    this.reset = node("button", { type: "button", class: "pp-button", "data-chosen": "true", text: "Reset zoom", on: { click: () => this.store.choose({ zoom: null }) } });
    this.pause = node("button", { type: "button", class: "pp-button pp-icon", on: { click: () => panel.pause() } });
    this.follow = node("button", { type: "button", class: "pp-button pp-follow", title: "Show each step once all ranks have ended it", on: { click: () => this.store.choose({ step: null }) } });
    const stepper = node("div", { class: "pp-stepper" }, this.back, this.told, this.on);
    const choices = node("div", { class: "pp-choices" }, this.attempt.root, this.window.root, this.rank.root, this.filters, this.reset);
    this.root = node("div", { class: "pp-controls", role: "group", "aria-label": "What is shown" }, stepper, this.map.root, choices, node("div", { class: "pp-go" }, this.pause, this.follow));
  }

  /**
   * @param {string} title
   * @param {string} text
   * @param {number} by
   */
  _stepButton(title, text, by) {
    return node("button", { type: "button", class: "pp-button pp-icon", "aria-label": title, title, text, on: { click: () => this.move(by) } });
  }

  /**
   * @param {string} title
   * @param {[value: string, text: string][]} options
   * @param {Chosen} name
   * @returns {Offer}
   */
  _select(title, options, name) {
    const select = node("select", { "aria-label": title, on: { change: () => this.store.choose({ [name]: select.value }) } });
    const made = { select, root: node("label", { class: "pp-choice" }, node("span", { text: title }), select), known: "" };
    offer(made, options);
    return made;
  }

  /**
   * The choice of the attempt. It is the kernel that shows another one, to all views of this run.
   * @returns {Offer}
   */
  _attempts() {
    const select = node("select", { "aria-label": "Attempt", on: { change: () => this._toAttempt(select.value) } });
    return { select, root: node("label", { class: "pp-choice" }, select), known: "" };
  }

  /** @param {string} value */
  _toAttempt(value) {
    this.wanted = value;
    this.store.tell("state");
    this.panel.model.send({ v: 1, t: "mark", id: this.store.received, ask: "attempt", attempt: value === "" ? null : Number(value) });
  }

  _drawAttempts() {
    const { attempts = [], attempt = null, live } = this.store.state;
    const newest = attempts.at(-1)?.[0];
    /** @type {[value: string, text: string][]} */
    const older = attempts.filter(([number]) => number !== newest).reverse().map(([number, first, last]) => [String(number), `attempt ${number}: steps ${first} to ${last}`]);
    offer(this.attempt, [["", newest === undefined ? "" : `attempt ${newest} (newest)`], ...older]);
    const shown = String(attempt ?? "");
    if (this.wanted === shown) {
      this.wanted = null;
      this.store.choose({ step: null, zoom: null, selection: null }); //  they were of the attempt that has gone
    }
    this.attempt.select.value = this.wanted ?? shown;
    this.attempt.root.hidden = attempts.length < 2 || live === false || this.store.mute() > 0; //  without a kernel there is nobody to ask
    this.attempt.root.toggleAttribute("data-chosen", true);
  }

  /** @param {FocusEvent} event */
  _left({ relatedTarget }) {
    if (relatedTarget instanceof Node && !this.filters.contains(relatedTarget)) this.filters.open = false;
  }

  /** Close what hangs open; true where something did. */
  close() {
    const { open } = this.filters;
    this.filters.open = false;
    if (open) this.named.focus();
    return open;
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
    this.panel.announce(`step ${this.store.step}`, true);
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
    offer(this.role, [["", "all"], ...named(this.store.roles)]);
    offer(this.phase, [["", "all"], ...named(this.store.phases)]);
    offer(this.rank, [["", "all"], ...named(this.store.ranks).sort(([a], [b]) => a.localeCompare(b, undefined, { numeric: true }))]);
    for (const name of /** @type {const} */ (["window", "role", "rank", "phase"])) {
      const made = this[name];
      made.root.hidden = name !== "window" && made.select.options.length < 3 && !ui[name];
      made.root.toggleAttribute("data-chosen", ui[name] !== (name === "window" ? "all" : ""));
      if (made.select.value !== String(ui[name])) made.select.value = String(ui[name]);
    }
    const narrowed = [ui.role, ui.phase].filter(Boolean).map((name) => shorten(name, 24));
    say(this.named, narrowed.length ? `Filter: ${narrowed.join(", ")}` : "Filter");
    this.filters.hidden = this.role.root.hidden && this.phase.root.hidden;
    this.filters.toggleAttribute("data-chosen", narrowed.length > 0);
    this.reset.hidden = !ui.zoom;
    this._drawAttempts();
    this._drawGoing(ui);
    this._drawScrubber(ui, clock);
  }

  /**
   * Whether the panel goes on, and with the newest step.
   * @param {Choices} ui
   */
  _drawGoing(ui) {
    const { paused } = this.store;
    say(this.pause, paused ? "▶" : "❚❚");
    this.pause.setAttribute("aria-label", paused ? "Resume" : "Pause");
    this.pause.title = paused ? "Resume (Space)" : "Pause (Space)";
    this.pause.setAttribute("aria-pressed", String(paused));
    this.pause.hidden = !paused && (this.store.state.finished || this.store.state.live === false);
    say(this.follow, ui.step === null ? "Following" : "Follow");
    this.follow.setAttribute("aria-pressed", String(ui.step === null));
  }

  /**
   * @param {Choices} ui
   * @param {Clock} clock
   */
  _drawScrubber(ui, clock) {
    const last = this._last();
    const at = ui.step === null ? last : Math.min(clock.indexOf(ui.step), last);
    const step = this.store.step;
    const text = step === null ? "no step yet" : `step ${step}`;
    say(this.told, text);
    this.map.draw(clock, last, at, step === null ? text : `${text} of ${this.store.followed}${ui.step === null ? ", following" : ""}`, begins(this.store.state.verdict?.findings ?? []));
    // Not `disabled`: a browser takes the focus from such a button, and the keys then go to the notebook.
    this.back.setAttribute("aria-disabled", String(at <= 0));
    this.on.setAttribute("aria-disabled", String(at >= last));
  }
}

/**
 * @param {Offer} made
 * @param {[value: string, text: string][]} options
 */
function offer(made, options) {
  const known = JSON.stringify(options);
  if (made.known === known) return;
  made.known = known;
  const kept = made.select.value;
  made.select.replaceChildren(...options.map(([value, text]) => node("option", { value, text: shorten(text, 40) })));
  made.select.value = kept;
}
