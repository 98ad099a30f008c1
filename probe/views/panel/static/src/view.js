// One view of a run: wires the store, the controls and the charts of the chosen tab, and draws what is in sight at
// most four times a second.

import { Card, PACE } from "./cards.js";
import { Controls } from "./controls.js";
import { Details } from "./details.js";
import { Disagree } from "./disagree.js";
import { freshId, keyHints, node, say } from "./dom.js";
import { Funnel } from "./funnel.js";
import { Head } from "./head.js";
import { Lanes } from "./lanes.js";
import { Outlook } from "./outlook.js";
import { Samples } from "./samples.js";
import { Strip } from "./strip.js";
import { Tabs } from "./tabs.js";
import { watchTheme } from "./theme.js";
import { Verdict } from "./verdict.js";
import { WhatIf } from "./what_if.js";

/** @import { View } from "./definition_types.js" */
/** @import { Model, Selection } from "./types.js" */
/** @import { Store } from "./store.js" */

const RETRY = 5000; //  ms after which a chart that failed is tried again

const TICK = 2000; //  ms after which the words about time are looked at again

const ANSWER = 1500; //  ms after which a kernel or server that hasn't answered counts as busy

/** The keys that work while the panel has the focus, and what they do. @type {[keys: string[], does: string][]} */
const KEYS = [
  [["←", "→"], "step"],
  [["[", "]"], "finding"],
  [["Space"], "pause"],
  [["Tab"], "next figure"],
  [["↑", "↓"], "mark in a figure"],
  [["Enter"], "open what is marked"],
  [["Esc"], "close"],
];

/** One view. */
export class Panel {
  /**
   * @param {Store} store
   * @param {Model} model
   * @param {HTMLElement} target
   */
  constructor(store, model, target) {
    this.store = store.view();
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
    this.head = new Head(this.store, freshId("panel"));
    this.lead = node("div", { class: "pp-lead" }); //  the tiles, above the controls
    this.funnel = new Funnel(this);
    this.lanes = new Lanes(this);
    this.disagree = new Disagree(this);
    this.samples = new Samples(this);
    this.whatIf = new WhatIf(this);
    this.outlook = new Outlook(this);
    this.grid = node("div", { class: "pp-grid" });
    this.verdict = new Verdict(this);
    this.live = node("div", { class: "pp-unseen", "aria-live": "polite", role: "status" });
    this.root = this._build();
    this.root.dataset.theme = this.watch.now;
    target.append(this.root);
    this.seen = new IntersectionObserver((entries) => this._sighted(entries), { rootMargin: "120px" });
    this.store.listen((why) => this._storeChanged(why));
    this.awake = () => this.wake();
    document.addEventListener("visibilitychange", this.awake);
    this.clock = setInterval(() => this._tick(), TICK);
    this.wake();
    this.ask("ping");
  }

  _build() {
    this._fill();
    return node(
      "section",
      {
        class: "probe-panel", "data-key": this.store.config.key, tabindex: "0", role: "region", "aria-labelledby": this.head.root.querySelector("h2")?.id, "data-lm-suppress-shortcuts": "true",
        on: { keydown: (event) => this._key(event), keyup: kept, keypress: kept },
      },
      this.head.root, this.tabs.root, this.verdict.root, this.strip.root, this.tabs.pane, node("footer", { class: "pp-foot" }, ...keyHints(KEYS)), this.live,
    );
  }

  /** What stands below the tabs: the tiles, the controls, the figures. */
  _fill() {
    this.tabs.pane.replaceChildren(this.lead, this.controls.root, this.funnel.root, this.lanes.root, this.disagree.root, this.samples.root, this.whatIf.root, this.outlook.root, this.grid);
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
    this.store.leave();
    this.watch.stop();
    this.seen.disconnect();
    this.funnel.destroy();
    this.lanes.destroy();
    this.samples.destroy();
    this.whatIf.destroy();
    for (const card of this.cards) card.destroy();
    this.root.remove();
  }

  // ---- when to draw

  /** Time goes on while nothing else does. */
  _tick() {
    if (this.store.state.finished || !this.head.stale) return;
    this.shell = true;
    this.wake();
  }

  /** @param {string} why */
  _storeChanged(why) {
    if (why === "hover") return this._hover();
    if (why === "config") this._reconfigure();
    this.shell = true;
    if (why !== "data") this.soon = true;
    for (const card of this.cards) {
      if (why !== "data" && why !== "state") card.invalidate();
      else if (card.answered) this._atOnce(card);
      else card.dirty ||= card.stale();
      card.age(this.store.root.answers);
    }
    return this.wake();
  }

  /** @param {Card} card */
  _atOnce(card) {
    this.soon = true;
    card.invalidate();
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
    this._request();
    if (this.cards.some((card) => card.dirty && card.visible)) this.wake();
  }

  /** Ask for what was missing, and let what is shown wait for it. */
  _request() {
    const { root } = this.store;
    const { pasts } = root;
    if (root.answers) {
      if (root.thins) pasts.wantClock();
      const wanted = pasts.take();
      if (wanted.length) this.model.send({ v: 1, t: "mark", id: root.received, ask: "history", wanted });
      const { step } = this.store.ui;
      if (this.store.lacksStep && step !== null) {
        pasts.steps.add(step);
        this.model.send({ v: 1, t: "mark", id: root.received, ask: "step", step });
      }
    }
    // The old picture stays; a style makes it fainter where it takes longer.
    this.root.toggleAttribute("data-loading", root.answers && (pasts.awaited.size > 0 || this.controls.wanted !== null));
    for (const card of this.cards) card.age(root.answers);
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
    if (this.tabs.draw()) this._open(this.tabs.chosen);
    this.controls.draw();
    this.verdict.draw();
    this.funnel.draw();
    this.lanes.draw();
    this.disagree.draw();
    this.samples.draw();
    this.whatIf.draw();
    this.outlook.draw();
    this.strip.draw();
    this.details.draw();
    const news = this.head.draw();
    if (news) this.announce(news);
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
    const leading = this.cards.filter((card) => card.leads);
    this.lead.replaceChildren(...leading.map((card) => card.root));
    this.grid.replaceChildren(...this.cards.filter((card) => !card.leads).map((card) => card.root));
    const narrow = this.cards.filter((card) => !card.leads && !card.root.classList.contains("pp-wide"));
    if (narrow.length % 2) narrow[narrow.length - 1].root.classList.add("pp-wide"); //  no hole beside it
    for (const card of this.cards) this.seen.observe(card.root);
    if (!view) this.grid.append(node("p", { class: "pp-empty", text: "No views are configured." }));
    this.details.place();
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
    this.lanes.draw();
    this.outlook.draw();
    this.samples.restyle();
    for (const card of this.cards) card.restyle();
  }

  _reconfigure() {
    const old = this.tabs;
    this.tabs = new Tabs(this);
    this._fill();
    old.root.replaceWith(this.tabs.root);
    old.pane.replaceWith(this.tabs.pane);
  }

  // ---- what the person does

  pause() {
    this.store.pause(!this.store.paused);
  }

  /** @param {number} step */
  goTo(step) {
    this.store.choose({ step: step === this.store.followed ? null : step });
  }

  /**
   * Something in a figure was clicked: it is chosen, and opened under the figure; a second click closes it.
   * @param {Selection} selection
   * @param {boolean} [moves] whether its step becomes the one that all figures show
   */
  pick(selection, moves = true) {
    if (!this.details.toggle(selection)) return;
    const { step } = selection;
    if (moves && step !== null && step >= 0) this.goTo(step);
  }

  /** @param {KeyboardEvent} event */
  _key(event) {
    event.stopPropagation(); //  the notebook has its own meaning for most keys
    if (event.defaultPrevented || isShortcut(event) || !(event.target instanceof Element)) return;
    const does = this._meaning(event.key, event.target);
    if (!does) return;
    event.preventDefault();
    does();
  }

  /**
   * What a key does, where it isn't for what has the focus.
   * @param {string} key
   * @param {Element} target
   * @returns {(() => void) | null}
   */
  _meaning(key, target) {
    if (key === "Escape") return () => this._escape();
    if (target.closest("input, select, textarea, [role=tab]")) return null;
    if (key === "[") return () => this.verdict.walk(-1);
    if (key === "]") return () => this.verdict.walk(1);
    if (key === "ArrowLeft") return () => this.controls.move(-1);
    if (key === "ArrowRight") return () => this.controls.move(1);
    if (key === " " && !target.closest("summary, button")) return () => this.pause();
    if ((key === "j" || key === "k") && !this.samples.root.hidden) return () => this.samples.walk(key === "j" ? 1 : -1);
    return key === "Enter" && target === this.root ? () => this._enter() : null;
  }

  /** Open the chosen step, under the first figure. */
  _enter() {
    const first = this.cards.find((card) => !card.leads) ?? this.cards[0];
    const { step } = this.store;
    if (first && step !== null) this.pick({ table: null, row: null, step, label: `Step ${step}`, card: first.id });
  }

  _escape() {
    if (this.controls.close() || this.details.close()) return;
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

/**
 * Whether a key is part of a shortcut. On many keyboards a bracket is typed with Alt, or AltGr, which is Ctrl and Alt.
 * @param {KeyboardEvent} event
 */
function isShortcut({ key, altKey, ctrlKey, metaKey }) {
  if (altKey && (key === "[" || key === "]")) return metaKey;
  return altKey || ctrlKey || metaKey;
}

/**
 * A key of the panel is no key of the notebook.
 * @param {Event} event
 */
function kept(event) {
  event.stopPropagation();
}
