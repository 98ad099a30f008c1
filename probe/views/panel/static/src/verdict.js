// The strip on top of a view: the worst of what was found, what to change, where it is, and what else there is.

import { Fold, askForNotebook, hasAdvice, notebookLabel, showAdvice, showFolded, showPostMortem, showRows } from "./beneath.js";
import { copyBy, freshId, node, say } from "./dom.js";
import { iconOf } from "./kind_icon.js";
import { WORDS, answersOf, destination, isOpen, keyOf, standing, walkedTo } from "./findings.js";
import { ago, shorten } from "./words.js";

/** @import { View } from "./definition_types.js" */
/** @import { Finding, FindingChange } from "./finding_types.js" */
/** @import { RunState } from "./message_types.js" */
/** @import { AnswerPlace } from "./sample_types.js" */
/** @import { Here, Standing, Way } from "./findings.js" */
/** @import { Panel } from "./view.js" */

/** The verdict of a run. */
export class Verdict {
  /** @param {Panel} panel */
  constructor(panel) {
    this.panel = panel;
    this.store = panel.store;
    this.told = "";
    /** Alarms that a screen reader was told, by their keys. @type {Set<string>} */
    this.spoken = new Set();
    this.open = false;
    /** The finding that was walked to, by its key, and the view that was open then. @type {{key: string, tab: string | undefined} | null} */
    this.walked = null;
    /** @type {Standing | null} */
    this.now = null;
    this.icon = node("span", { class: "pp-kind-icon", "aria-hidden": "true" });
    this.word = node("span", { class: "pp-kind" });
    this.sentence = node("span");
    this.why = node("p", { class: "pp-why" });
    this.advice = node("span", { class: "pp-advice" });
    this.code = node("code");
    this.copy = node("button", { type: "button", text: "Copy", on: { click: () => this._copy() } });
    this.chip = node("span", { class: "pp-chip" }, this.code, this.copy);
    this.fix = node("p", { class: "pp-fix" }, this.advice, this.chip);
    this.gains = node("ul", { class: "pp-gains", "aria-label": "What the change gave in a replay" });
    this.list = node("ul", { class: "pp-more", id: freshId("more"), "aria-label": "What else was found", hidden: true });
    // Both have a name before anything is written on them: whoever looks for buttons finds these, hidden or not.
    this.fold = node("button", { type: "button", class: "pp-button", text: "More", "aria-expanded": "false", "aria-controls": this.list.id, on: { click: () => this._unfold() } });
    this.see = node("button", { type: "button", class: "pp-button", text: "See the answers", hidden: true, on: { click: () => this._see() } });
    this.go = node("button", { type: "button", class: "pp-button pp-filled", text: "Go there", on: { click: () => this._goTo(this.now?.finding) } });
    this.follows = new Fold("What follows from it");
    this.rows = new Fold("Rows behind this");
    this.advised = new Fold("Changes to the settings");
    this.mortem = new Fold("Post-mortem", "pp-button");
    this.acts = node("div", { class: "pp-acts" }, this.fold, this.mortem.button, this.see, this.go);
    this.notebook = node("button", { type: "button", class: "pp-plain", text: "Open notebook", on: { click: () => askForNotebook(this.root, this.store.config, this.now?.finding ?? null) } });
    this.beneath = node("p", { class: "pp-ways" }, this.advised.button, this.follows.button, this.rows.button, this.notebook);
    const body = node("div", { class: "pp-said" }, node("h3", {}, this.word, " ", this.sentence), this.why, this.fix, this.gains, this.beneath, this.advised.content, this.follows.content, this.rows.content);
    this.strip = node("div", { class: "pp-found-first", hidden: true }, this.icon, body, this.acts);
    /** @type {Line[]} */
    this.lines = [];
    this.root = node("section", { class: "pp-verdict", "aria-label": "What was found" }, this.strip, this.mortem.content, this.list);
  }

  get findings() {
    return this.store.state.verdict?.findings ?? [];
  }

  get topics() {
    return this.store.config.topics ?? {};
  }

  draw() {
    this.now = this._standing();
    const places = this.now && [this._answersAt(this.now.finding), ...[this.now.finding, ...this.now.more].map((one) => this._at(one))];
    const told = JSON.stringify([this.now, this.open, places, this.store.state.verdict?.post_mortem?.sentence, this.store.state.verdict?.advice]);
    if (told === this.told) return;
    this.told = told;
    const held = this.root.contains(document.activeElement);
    this._write(this.now);
    // What had the focus may be gone: it stays in the panel, whose keys would otherwise be the notebook's.
    const focused = document.activeElement;
    if (held && !(focused && this.root.contains(focused) && focused.getClientRects().length)) this.panel.root.focus({ preventScroll: true });
    this._speak(this.now);
  }

  /**
   * A new alarm is told to a screen reader, its sentence as it was then: numbers in it may go on.
   * @param {Standing | null} now
   */
  _speak(now) {
    if (!now?.finding || now.kind !== "alarm") return;
    const key = keyOf(now.finding);
    if (!this.spoken.has(key) && this.store.state.live !== false) this.panel.announce(`Alarm: ${now.sentence}`);
    this.spoken.add(key);
  }

  _standing() {
    const { state, complete, config, clock } = this.store;
    const { verdict } = state;
    const { chosen } = this.panel.tabs;
    const over = isOver(state);
    return standing({
      findings: this.findings,
      judged: Boolean(verdict?.findings && verdict.whole),
      looking: verdict?.looking === true,
      // Whoever doesn't say which step is complete doesn't judge either.
      begun: complete === undefined ? !verdict || clock.steps.length > 0 : complete !== null,
      over,
      advised: hasAdvice(verdict),
      silent: verdict && state.newest_at && !over ? ago(this.store.silence()) : "",
      topics: this.topics,
      view: chosen === config.views?.[0] ? undefined : chosen?.id,
      walked: this._walkedHere(chosen),
    });
  }

  /**
   * The one that was walked to, as long as its view is open.
   * @param {View | undefined} view
   */
  _walkedHere(view) {
    return this.walked && this.walked.tab === view?.id ? this.walked.key : null;
  }

  /** @param {Standing | null} now */
  _write(now) {
    this.strip.hidden = !now;
    this._writeBeneath(now?.finding ?? null);
    this.list.hidden = !this.open || !now?.more.length;
    if (!now) {
      delete this.root.dataset.kind;
      return;
    }
    if (this.root.dataset.kind !== now.kind) {
      this.root.dataset.kind = now.kind;
      this.icon.replaceChildren(iconOf(now.kind));
    }
    say(this.word, now.word);
    say(this.sentence, now.sentence);
    this.why.hidden = !now.why;
    say(this.why, now.why);
    this._writeChange(now.finding?.change ?? null);
    this.fold.hidden = !now.more.length;
    const checked = now.kind === "fine";
    say(this.fold, checked ? (this.open ? "Hide" : "What was checked") : this.open ? "Fewer" : `${now.more.length} more`);
    this.fold.setAttribute("aria-expanded", String(this.open));
    writeGo(this.see, this._answersAt(now.finding));
    writeGo(this.go, this._at(now.finding));
    this._writeLines(now.more);
  }

  /** @param {Finding | null} finding */
  _writeBeneath(finding) {
    const { folded = [], sql = "", failure = false, sentence = "", why = "" } = finding ?? {};
    showFolded(this.follows, folded);
    showRows(this.rows, sql);
    const advised = showAdvice(this.advised, this.store.state.verdict);
    say(this.notebook, notebookLabel(finding));
    this.notebook.hidden = !sql || !("probeLab" in globalThis);
    showPostMortem(this.mortem, failure ? (this.store.state.verdict?.post_mortem ?? null) : null, [sentence, why]);
    this.beneath.hidden = !folded.length && !sql && !advised;
  }

  /** @param {FindingChange | null} change */
  _writeChange(change) {
    this.fix.hidden = !change;
    this.chip.hidden = !change?.line;
    showGains(this.gains, change);
    if (!change) return;
    say(this.advice, change.advice);
    const { line, setting, now, value } = change;
    if (this.code.textContent === (line ?? "") && this.code.dataset.now === (now ?? "")) return;
    this.code.dataset.now = now ?? "";
    // Where other settings change with it, the line has them all.
    if (now === null || now === value || line !== `${setting}=${value}`) this.code.replaceChildren(line ?? "");
    else this.code.replaceChildren(`${setting}: `, node("del", { text: now }), " → ", node("ins", { text: value ?? "" }));
    this.copy.setAttribute("aria-label", `Copy ${line}`);
    say(this.copy, "Copy");
  }

  /** @param {Finding[]} more */
  _writeLines(more) {
    while (this.lines.length < more.length) this.lines.push(new Line((finding) => this._goTo(finding)));
    for (const gone of this.lines.splice(more.length)) gone.root.remove();
    this.lines.forEach((line, at) => {
      line.write(more[at], this._at(more[at]));
      if (this.list.children[at] !== line.root) this.list.append(line.root);
    });
  }

  /** @returns {Here} */
  get here() {
    const { store } = this;
    const ranks = [...store.ranks].map((code) => store.words.text(code));
    return { has: (step) => store.clock.spans.has(step), ranks, views: store.config.views ?? [], topics: this.topics, sampled: Boolean(store.state.verdict?.ledger), kept: store.answers ? null : (store.root.kept ?? null) };
  }

  /**
   * Where a finding leads, and whether the panel is there already.
   * @param {Finding | null | undefined} finding
   */
  _at(finding) {
    const found = finding && isOpen(finding) ? destination(finding, this.here) : null;
    if (!found) return null;
    const { step, rank, tab, samples = null } = found;
    const here = tab === null || this.panel.tabs.chosen?.id === tab;
    if (here && step === null && rank === null && !samples) return null; //  a button that leads to where one is says nothing
    return { ...found, there: this._shows(found) };
  }

  /**
   * Where all answers are that a finding is of, beside the one that it leads to.
   * @param {Finding | null} finding
   */
  _answersAt(finding) {
    const found = finding && isOpen(finding) ? answersOf(finding, this.here) : null;
    return found && { ...found, there: this._shows(found) };
  }

  /**
   * Whether a view, a step, a rank and the samples are the chosen ones, where they are given.
   * @param {Way} way
   */
  _shows({ step, rank, tab, samples, answer }) {
    const { store, panel } = this;
    if (tab !== null && panel.tabs.chosen?.id !== tab) return false;
    if (samples && !(panel.samples.shows(samples) && sameAnswer(store.ui.answer, answer ?? null))) return false;
    return (step === null || store.step === step) && (rank === null || store.ui.rank === rank);
  }

  /** @param {Finding | null | undefined} finding */
  _goTo(finding) {
    this._follow(this._at(finding));
  }

  _see() {
    this._follow(this._answersAt(this.now?.finding ?? null));
  }

  /** @param {(Way & {there: boolean}) | null} to */
  _follow(to) {
    if (!to || to.there) return;
    const { followed } = this.store;
    const step = to.step === null ? {} : { step: to.step === followed ? null : to.step, zoom: null };
    this.store.choose({ ...step, ...(to.rank === null ? {} : { rank: to.rank }), ...(to.tab === null ? {} : { tab: to.tab }), ...(to.samples ? { samples: to.samples, answer: to.answer ?? null } : {}) });
    this.panel.announce(`${to.label.replace(/^Go to|^See/, "At")}.`, true);
  }

  /**
   * Go to the finding after or before the one that stands here, and let it stand here.
   * @param {1 | -1} by
   */
  walk(by) {
    const to = walkedTo(this.findings, this.walked?.key ?? null, by);
    if (!to) return this.panel.announce("No findings.", true);
    this._goTo(to.finding);
    this.spoken.add(keyOf(to.finding));
    this.walked = { key: keyOf(to.finding), tab: this.panel.tabs.chosen?.id };
    this.store.tell("ui");
    return this.panel.announce(`Finding ${to.at + 1} of ${to.many}: ${to.finding.sentence}`, true);
  }

  _unfold() {
    this.open = !this.open;
    this.store.tell("ui");
  }

  _copy() {
    const line = this.now?.finding?.change?.line;
    if (line) copyBy(this.copy, line);
  }
}

/**
 * Whether two ways lead to the same answer, or to none.
 * @param {AnswerPlace | null} one
 * @param {AnswerPlace | null} other
 */
const sameAnswer = (one, other) => JSON.stringify(one) === JSON.stringify(other);

/**
 * What a replay of a change gave: the lines that stand further in than its settings, which the chip has.
 * @param {HTMLElement} list
 * @param {FindingChange | null} change
 */
function showGains(list, change) {
  const gains = (change?.told ?? []).filter((line) => line.startsWith("  ")).map((line) => line.trim());
  list.hidden = !gains.length;
  if (list.textContent !== gains.join("")) list.replaceChildren(...gains.map((text) => node("li", { text })));
}

/**
 * Whether no row will come any more.
 * @param {RunState} state
 */
function isOver({ finished, live, writers = "" }) {
  return finished === true || live === false || ["gone", "ended"].includes(writers);
}

/** One of those that unfold. */
class Line {
  /** @param {(finding: Finding) => void} goTo */
  constructor(goTo) {
    /** @type {Finding | null} */
    this.finding = null;
    this.icon = node("span", { class: "pp-kind-icon", "aria-hidden": "true" });
    this.word = node("span", { class: "pp-unseen" });
    this.sentence = node("span");
    this.advice = node("span", { class: "pp-quiet", hidden: true });
    this.go = node("button", { type: "button", class: "pp-button", text: "Go", on: { click: () => this.finding && goTo(this.finding) } });
    this.root = node("li", {}, this.icon, node("span", {}, this.word, this.sentence, this.advice), this.go);
  }

  /**
   * @param {Finding} finding
   * @param {{label: string, there: boolean} | null} at
   */
  write(finding, at) {
    if (this.root.dataset.kind !== finding.kind) {
      this.root.dataset.kind = finding.kind;
      this.icon.replaceChildren(iconOf(finding.kind));
    }
    this.finding = finding;
    say(this.word, finding.kind === "fine" ? "" : `${WORDS[finding.kind]}: `);
    say(this.sentence, finding.sentence);
    this._writeAdvice(finding);
    writeGo(this.go, at, "Go");
  }

  /**
   * Of what couldn't be judged: how to record what is missing. Of the others the strip says it, where they lead.
   * @param {Finding} finding
   */
  _writeAdvice({ kind, change }) {
    this.advice.hidden = kind !== "withheld" || !change;
    say(this.advice, this.advice.hidden || !change ? "" : ` ${[change.advice, change.line].filter(Boolean).join(" ")}`);
  }
}

/**
 * @param {HTMLButtonElement} button
 * @param {{label: string, there: boolean} | null} at
 * @param {string} [text] what it says instead of the whole label
 */
function writeGo(button, at, text) {
  button.hidden = !at;
  if (!at) return;
  say(button, text ?? shorten(at.label, 40));
  if (text) button.setAttribute("aria-label", at.label);
  button.setAttribute("aria-disabled", String(at.there)); //  not `disabled`, which would take the focus away
}
