// One view of a run: wires the store, the controls and the charts of the chosen tab, and draws what is in sight at
// most four times a second.

import { Card, PACE } from "./cards.js";
import { Controls } from "./controls.js";
import { Details } from "./details.js";
import { freshId, node, say } from "./dom.js";
import { Strip } from "./strip.js";
import { Tabs } from "./tabs.js";
import { watchTheme } from "./theme.js";
import { ago, answerer, digits, seconds, timeOfDay } from "./words.js";

/** @import { Model, View } from "./types.js" */
/** @import { Store } from "./store.js" */

const RETRY = 5000; //  ms after which a chart that failed is tried again

const TICK = 2000; //  ms after which the words about time are looked at again

const ANSWER = 1500; //  ms after which a kernel or server that hasn't answered counts as busy

/**
 * Project / experiment, or what the panel was called instead.
 * @param {string | undefined} title
 * @param {{project?: string, experiment?: string}} run
 * @returns {(string | Node)[]}
 */
function titleOf(title, { project, experiment }) {
  if (title && title !== `${project} / ${experiment}`) return [title];
  return experiment ? [project || "run", node("span", { class: "pp-slash", text: " / " }), experiment] : [project || "run"];
}

/** One view. */
export class Panel {
  /**
   * @param {Store} store
   * @param {Model} model
   * @param {HTMLElement} target
   */
  constructor(store, model, target) {
    this.store = store;
    this.model = model;
    this.target = target;
    /** @type {Card[]} */
    this.cards = [];
    this.gone = false;
    this.all = true; //  everything is to be drawn, else …
    this.shell = false; //  … what stands around the charts, or the charts that say so themselves
    this.soon = false; //  without waiting for the pace
    this.last = 0; //  when it was drawn
    this.spoke = 0; //  when a screen reader was told something
    this.frame = 0; //  a request for one, as the next
    this.hovering = 0;
    /** @type {Record<"draw" | "answer" | "speech", ReturnType<typeof setTimeout> | undefined>} */
    this.timers = { draw: undefined, answer: undefined, speech: undefined };
    this.watch = watchTheme(() => this._restyle());
    this.controls = new Controls(this);
    this.strip = new Strip(this);
    this.tabs = new Tabs(this);
    this.details = new Details(this);
    this.status = node("span", { class: "pp-status" });
    this.facts = node("span", { class: "pp-quiet pp-facts-line" });
    this.live = node("div", { class: "pp-unseen", "aria-live": "polite", role: "status" });
    this.about = node("p", { class: "pp-view-about pp-quiet" });
    const { name, when } = answerer(store.config);
    this.kernel = node("span", { class: "pp-status", hidden: true, title: `It answers ${when}. All that you see here goes on.`, text: `${name} is busy` });
    this.root = this._build();
    this.root.dataset.theme = this.watch.now;
    target.append(this.root);
    this.seen = new IntersectionObserver((entries) => this._sighted(entries), { rootMargin: "120px" });
    this.unlisten = store.listen((why) => this._storeChanged(why));
    this.awake = () => this.wake();
    document.addEventListener("visibilitychange", this.awake);
    this.clock = setInterval(() => this._tick(), TICK);
    this.wake();
    this.ask("ping");
  }

  _build() {
    const { run = {} } = this.store.config;
    const heading = freshId("panel");
    const title = node("h2", { id: heading }, ...titleOf(this.store.config.title, run));
    const help = node("p", { class: "pp-help pp-quiet", text: "Space pauses · arrow keys move tabs, the step and the point in a chart · drag in a chart zooms all · Enter or a click shows what made a point · Escape closes" });
    return node(
      "section",
      { class: "probe-panel", "data-key": this.store.config.key, tabindex: "0", role: "region", "aria-labelledby": heading, "data-lm-suppress-shortcuts": "true", on: { keydown: (event) => this._key(event) } },
      node("header", { class: "pp-head" }, title, this.status, this.kernel, this.facts),
      this.strip.root, this.tabs.root, this.controls.root, this.about,
      node("div", { class: "pp-main" }, this.tabs.pane, this.details.root), help, this.live,
    );
  }

  get theme() {
    return this.watch.now;
  }

  destroy() {
    this.gone = true;
    cancelAnimationFrame(this.frame);
    for (const timer of Object.values(this.timers)) clearTimeout(timer);
    clearInterval(this.clock);
    document.removeEventListener("visibilitychange", this.awake);
    this.unlisten();
    this.watch.stop();
    this.seen.disconnect();
    for (const card of this.cards) card.destroy();
    this.root.remove();
  }

  // ---- when to draw

  /** Time goes on while nothing else does. */
  _tick() {
    if (this.store.state.finished || this._status()[0] === this.status.textContent) return;
    this.shell = true;
    this.wake();
  }

  /** @param {string} why */
  _storeChanged(why) {
    if (why === "hover") return this._hover();
    if (why === "data" && this.store.ui.paused) return undefined;
    if (why === "config") this._reconfigure();
    for (const card of this.cards) {
      if (why === "data") card.dirty ||= card.stale();
      else if (why !== "state") card.invalidate();
    }
    this.shell = true;
    if (why === "ui" || why === "config" || why === "state") this.soon = true;
    return this.wake();
  }

  /** Draw in the next frame, or as soon as the pace allows. */
  wake() {
    if (this.gone || this.frame || document.hidden) return;
    const wait = this.soon ? 0 : this._wait();
    if (wait === null) return;
    clearTimeout(this.timers.draw);
    this.timers.draw = setTimeout(() => {
      this.frame = requestAnimationFrame(() => this._draw());
    }, wait);
  }

  /** How long until a card may be drawn; null where none has to be. */
  _wait() {
    const now = performance.now();
    const dues = this.cards.filter((card) => card.dirty && card.visible).map((card) => card.due);
    if (!dues.length && !this.all && !this.shell) return null;
    const due = dues.length && !this.shell ? Math.min(...dues) : 0;
    return Math.max(due - now, this.last + PACE - now, 0);
  }

  _draw() {
    this.frame = 0;
    if (this.gone) return;
    this.soon = false;
    this.all = false;
    this.shell = false;
    this.last = performance.now();
    this._shell();
    for (const card of this.cards) {
      const now = performance.now();
      if (card.dirty && card.visible && card.due <= now) this._safely(card, now);
    }
    if (this.cards.some((card) => card.dirty && card.visible)) this.wake();
  }

  /**
   * A chart that fails says so in its place; the others go on.
   * @param {Card} card
   * @param {number} now
   */
  _safely(card, now) {
    try {
      card.draw(now);
    } catch (error) {
      card.dirty = false;
      card.due = now + RETRY;
      card.fail(error instanceof Error ? error.message : String(error));
    }
  }

  _shell() {
    const { store } = this;
    if (this.tabs.draw()) this._open(this.tabs.chosen);
    this.controls.draw();
    this.strip.draw();
    this.details.draw();
    const [text, tone] = this._status();
    if (this.status.textContent && this.status.textContent !== text) this.announce(text);
    say(this.status, text);
    this.status.dataset.tone = tone;
    say(this.facts, this._facts());
    this.kernel.hidden = !store.kernel.busy || store.state.live === false;
    this.root.classList.toggle("pp-paused", store.ui.paused);
  }

  _status() {
    const { state, ui, empty } = this.store;
    if (state.finished) return ["finished", "done"];
    if (state.live === false) return ["closed", "done"];
    const mute = this.store.mute();
    if (mute) return [`no sign of the ${answerer(this.store.config).name} since ${timeOfDay(Date.now() / 1000 - mute, mute)} (${ago(mute)})`, "gone"];
    if (ui.paused) return ["paused", "paused"];
    if (empty) return ["waiting for rows", "waiting"];
    if (!state.newest_at) return ["live", "live"];
    const silent = this.store.silence();
    const since = `${timeOfDay(state.newest_at, silent)} (${ago(silent)})`;
    return state.writers === "gone" ? [`its process is gone, last row at ${since}`, "gone"] : [`no rows since ${since}`, "quiet"];
  }

  _facts() {
    const { config, clock, state } = this.store;
    const parts = [];
    const ranks = config.run?.world_size ?? 0;
    if (ranks > 1) parts.push(`${ranks} ranks`);
    if (this.store.followed !== null) parts.push(`step ${this.store.followed}`);
    if (clock.end > 0) parts.push(seconds(clock.end));
    const cost = state.cost?.kernel_ms ?? 0;
    if (cost > 0) parts.push(`panel costs ${digits(cost)} ms an update`);
    return parts.join(" · ");
  }

  /**
   * Show the cards of a view. Choices live in the store, so a view that is left can be thrown away.
   * @param {View | undefined} view
   */
  _open(view) {
    for (const card of this.cards) card.destroy();
    this.seen.disconnect();
    const { panels = {} } = this.store.config;
    this.cards = (view?.panels || []).filter((id) => panels[id]).map((id) => new Card(this, id, panels[id]));
    this.tabs.pane.replaceChildren(...this.cards.map((card) => card.root));
    const narrow = this.cards.filter((card) => !card.root.classList.contains("pp-wide"));
    if (narrow.length % 2) narrow[narrow.length - 1].root.classList.add("pp-wide"); //  no hole beside it
    for (const card of this.cards) this.seen.observe(card.root);
    say(this.about, view?.about || "");
    this.about.hidden = !view?.about;
    if (!view) this.tabs.pane.append(node("p", { class: "pp-empty", text: "No views are configured." }));
  }

  /** @param {IntersectionObserverEntry[]} entries */
  _sighted(entries) {
    for (const entry of entries) {
      const card = this.cards.find((one) => one.root === entry.target);
      if (card) card.visible = entry.isIntersecting;
    }
    this.wake();
  }

  _hover() {
    if (this.hovering) return;
    this.hovering = requestAnimationFrame(() => {
      this.hovering = 0;
      for (const card of this.cards) if (card.visible) card.mark?.hover(this.store.hover);
    });
  }

  _restyle() {
    this.root.dataset.theme = this.watch.now;
    for (const card of this.cards) card.restyle();
  }

  _reconfigure() {
    const old = this.tabs;
    this.tabs = new Tabs(this);
    old.root.replaceWith(this.tabs.root);
    old.pane.replaceWith(this.tabs.pane);
  }

  // ---- what the person does

  pause() {
    this.store.pause(!this.store.ui.paused);
  }

  /** @param {number} step */
  goTo(step) {
    this.store.choose({ step: step === this.store.followed ? null : step });
    this.details.drawn = null;
    this.details.draw();
  }

  /** @param {KeyboardEvent} event */
  _key(event) {
    event.stopPropagation(); //  the notebook has its own meaning for most keys
    const busy = event.target instanceof Element && event.target.closest("input, select, textarea, summary, button, [role=tab]");
    if (event.key === "Escape") this._escape();
    else if (event.key === " " && !busy) this.pause();
    else if (event.target === this.root && event.key === "ArrowLeft") this.controls.move(-1);
    else if (event.target === this.root && event.key === "ArrowRight") this.controls.move(1);
    else return;
    event.preventDefault();
  }

  _escape() {
    if (this.details.close()) return;
    const { ui } = this.store;
    if (ui.zoom) this.store.choose({ zoom: null });
    else if (ui.step !== null) this.store.choose({ step: null });
  }

  /**
   * Ask the kernel or server, and say that it is busy where it doesn't answer.
   * @param {string} what
   */
  ask(what) {
    if (!this.store.ask(this.model, what)) return;
    clearTimeout(this.timers.answer);
    this.timers.answer = setTimeout(() => {
      if (this.store.kernel.asked === null) return;
      this.store.kernel.busy = true;
      this.store.tell("state");
    }, ANSWER);
  }

  /**
   * Tell a screen reader. Never more often than every four seconds but for what the person has asked for.
   * @param {string} text
   * @param {boolean} [asked]
   */
  announce(text, asked = false) {
    clearTimeout(this.timers.speech);
    const wait = asked ? 0 : Math.max(this.spoke + 4000 - performance.now(), 0);
    this.timers.speech = setTimeout(() => {
      this.spoke = performance.now();
      say(this.live, text);
    }, wait);
  }
}
