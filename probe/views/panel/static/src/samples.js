// The samples of a step, in a view of their own: groups with their answers side by side, and the tokens of one answer. A
// line that isn't in sight isn't here: who reads the run is asked for pieces of the list, and for one answer at a time.

import { chooser } from "./chooser.js";
import { freshId, node, say } from "./dom.js";
import { keeps, keptAnswer } from "./kept_samples.js";
import { SampleAnswer } from "./sample_answer.js";
import { LINE, SampleRow } from "./sample_row.js";
import { HEAD } from "./sample_words.js";
import { groupFrom, linesInSight, movedTo, piecesOf, scrolledTo } from "./windows.js";
import { answerer, count, many } from "./words.js";

/** @import { AnswerKey, AnswerPlace, Narrowing, SampleLine, SampleRows, SampleTokens } from "./sample_types.js" */
/** @import { Panel } from "./view.js" */

/** The view that it stands in. */
export const VIEW = "samples";

const PIECE = 60; //  lines that are asked for at once
const SEARCH = 250; //  ms after the last letter until it is searched
const BUSY = 1500; //  ms after which who is asked counts as busy
const AGAIN = 15000; //  ms after which a server that hasn't answered is asked again

/** @type {[name: string, title: string][]} */
const SORTS = [["difference", "largest difference"], ["advantage", "largest advantage"], ["tokens", "most tokens"], ["reward", "lowest reward"], ["batch", "place in the batch"]];
/** @type {[name: string, title: string][]} */
const ONLY = [["all", "all"], ["truncated", "truncated"], ["dropped", "dropped"], ["failed", "failed"], ["nan", "with NaN"], ["no_advantage", "without advantage"], ["blocks", "with their tokens"], ["changed", "trained on other tokens"]];

/** The keys of the list, and what they do; J and K work wherever the panel has the focus. @type {[keys: string[], does: string][]} */
const KEYS = [[["↑", "↓"], "answer"], [["J", "K"], "group"], [["Enter"], "tokens, or a group alone"], [["Esc"], "back"]];

/** Nothing narrowed. @type {Narrowing} */
const WHOLE = { sort: "difference", only: "all", search: "", group: null, micro_batch: null, phase: "", process: "" };

/** The view. */
export class Samples {
  /** @param {Panel} panel */
  constructor(panel) {
    this.panel = panel;
    this.store = panel.store;
    this.key = "";
    this.generation = 0;
    this.readStep = /** @type {number | null} */ (null);
    this.readAttempt = /** @type {number | null | undefined} */ (undefined);
    /** @type {Map<number, SampleLine[]>} */
    this.pieces = new Map();
    /** Pieces that were asked for. @type {Set<number>} */
    this.wanted = new Set();
    this.total = 0;
    this.active = 0;
    /** What has been answered. @type {SampleRows | null} */
    this.rows = null;
    /** The answer that is open, by its key. */
    this.open = "";
    /** The one that something led to last. @type {AnswerPlace | null} */
    this.led = null;
    /** Whether the keyboard goes to its tokens. */
    this.entering = false;
    /** Lines of the page, each used again for another one of the list. @type {SampleRow[]} */
    this.pool = [];
    this.frame = 0;
    /** @type {Record<"search" | "busy", ReturnType<typeof setTimeout> | undefined>} */
    this.timers = { search: undefined, busy: undefined };
    const heading = freshId("samples");
    this.title = node("h3", { id: heading });
    this.sentence = node("p", { class: "pp-sentence" });
    this.sort = chooser("Sort by", SORTS, (value) => this.narrow({ sort: value }));
    this.only = chooser("Answers", ONLY, (value) => this.narrow({ only: value }));
    this.search = node("input", { type: "search", placeholder: "Name, group or text", "aria-label": "Search the answers", maxlength: "200", on: { input: () => this._searched(), keydown: (event) => this._searchKey(event) } });
    this.all = node("button", { type: "button", class: "pp-button", text: "Show all ×", on: { click: () => this.widen() } });
    this.tools = node("div", { class: "pp-sample-tools" }, this.sort.root, this.only.root, this.search, this.all);
    this.note = node("p", { class: "pp-read", role: "status" });
    this.elsewhere = node("button", { type: "button", class: "pp-button", hidden: true, text: "Go to another step", on: { click: () => this._elsewhere() } });
    this.body = node("div", { role: "rowgroup" });
    const head = node("div", { role: "rowgroup" }, node("div", { role: "row", class: "pp-sample-line pp-sample-head", "aria-rowindex": "1" }, ...HEAD.map((text) => node("span", { role: "columnheader", text }))));
    this.grid = node("div", {
      class: "pp-samples-list", role: "grid", tabindex: "0", "aria-labelledby": heading, "aria-rowcount": "1",
      on: { scroll: () => this._soon(), keydown: (event) => this._key(event), click: (event) => this._clicked(event) },
    }, head, this.body);
    const keys = KEYS.map(([names, does]) => `${names.join(" ")} ${does}`).join(" · ");
    this.keys = node("p", { class: "pp-keys", text: keys }); // one node: the view has few
    this.one = new SampleAnswer(() => this.grid.focus());
    this.root = node("section", { class: "pp-samples", "aria-labelledby": heading, hidden: true }, node("header", {}, this.title, this.sentence), this.tools, this.note, this.elsewhere, this.grid, this.keys, this.one.root);
    this.sized = new ResizeObserver(() => this._soon());
    this.sized.observe(this.grid);
  }

  destroy() {
    this.sized.disconnect();
    this.one.map.destroy();
    cancelAnimationFrame(this.frame);
    for (const timer of Object.values(this.timers)) clearTimeout(timer);
  }

  /** @returns {Narrowing} */
  get narrowing() {
    return { ...WHOLE, ...this.store.ui.samples };
  }

  /**
   * Whether the list is narrowed so.
   * @param {Partial<Narrowing>} wanted
   */
  shows(wanted) {
    return JSON.stringify({ ...WHOLE, ...wanted }) === JSON.stringify(this.narrowing);
  }

  /** @param {Partial<Narrowing>} change */
  narrow(change) {
    this.store.choose({ samples: { ...this.narrowing, ...change }, answer: null });
  }

  /**
   * Whether an answer can be opened here.
   * @param {AnswerPlace} answer
   */
  reaches(answer) {
    const { store } = this;
    if (!store.config.views?.some(({ id }) => id === VIEW) || !store.clock.spans.has(answer.step)) return false;
    return store.answers || Boolean(store.root.kept && keeps(store.root.kept, answer));
  }

  /**
   * Open an answer at one of its tokens, among all of its step.
   * @param {AnswerPlace} answer
   */
  lead(answer) {
    const { store, panel } = this;
    this.entering = true;
    panel.root.focus({ preventScroll: true }); //  what was clicked is about to be hidden, and the focus stays in the panel
    store.choose({ tab: VIEW, step: answer.step === store.followed ? null : answer.step, zoom: null, samples: {}, answer });
    panel.announce(`At token ${answer.token} of step ${answer.step}.`, true);
  }

  /** To the nearest step with samples: which group and micro-batch were meant is of the step that is left. */
  _elsewhere() {
    if (typeof this.rows?.near !== "number") return;
    this.narrow({ group: null, micro_batch: null, phase: "", process: "" });
    this.panel.goTo(this.rows.near);
  }

  /** All answers again; the order stays. */
  widen() {
    this.narrow({ ...WHOLE, sort: this.narrowing.sort });
    this.grid.focus({ preventScroll: true });
  }

  restyle() {
    this.one.map.restyle();
  }

  // ---- what is shown

  draw() {
    const here = this.panel.tabs.chosen?.id === VIEW;
    const opened = here && this.root.hidden;
    this.root.hidden = !here;
    if (!here) return;
    const { narrowing, store } = this;
    const kept = store.answers ? null : (store.root.kept ?? null);
    const step = kept ? kept.rows.step : store.step;
    this._tools(narrowing, kept !== null);
    say(this.title, step === null ? "Samples" : `Samples of step ${step}`);
    if (step === null) {
      say(this.note, "No step has ended yet.");
      return;
    }
    const key = JSON.stringify([store.state.attempt, step, narrowing, kept !== null]);
    const { answer } = store.ui;
    if (key !== this.key || opened || (answer && answer !== this.led)) this._begin(key, step);
  }

  /**
   * @param {Narrowing} narrowing
   * @param {boolean} fixed whether nobody can be asked
   */
  _tools(narrowing, fixed) {
    for (const one of [this.sort.root, this.only.root, this.search]) one.hidden = fixed;
    this.sort.select.value = narrowing.sort;
    this.only.select.value = narrowing.only;
    if (document.activeElement !== this.search) this.search.value = narrowing.search;
    const { group, micro_batch: batch, phase } = narrowing;
    const told = [group === null ? "" : `group ${group}`, batch === null ? "" : `micro-batch ${batch}${phase ? ` of ${phase}` : ""}`].filter(Boolean).join(", ");
    this.all.hidden = !told && narrowing.only === "all" && !narrowing.search;
    this.tools.hidden = fixed && this.all.hidden;
    say(this.all, told ? `Only ${told} ×` : "Show all ×");
    if (told) this.all.setAttribute("aria-label", `Only ${told}. Show all`);
    else this.all.removeAttribute("aria-label");
  }

  /**
   * Another list: it is asked for, and the old one stays until it is here.
   * @param {string} key
   * @param {number} step
   */
  _begin(key, step) {
    this.key = key;
    this.led = this.store.ui.answer;
    this.generation += 1;
    this.wanted.clear();
    const { attempt } = this.store.state;
    const anew = this.readStep !== step || this.readAttempt !== attempt || !this.rows?.kept;
    this.readStep = step;
    this.readAttempt = attempt;
    this._want(0, anew);
  }

  /**
   * @param {number} piece
   * @param {boolean} [anew] whether the step is to be read again
   */
  _want(piece, anew = false) {
    if (this.wanted.has(piece) || this.readStep === null) return;
    this.wanted.add(piece);
    const { generation } = this;
    const { narrowing: wish, here } = this;
    this._ask({ of: "rows", step: this.readStep, from: piece * PIECE, count: PIECE, anew, ...(piece === 0 && here ? { key: here.key } : {}), ...wish }, (answer) => {
      if (generation === this.generation) this._listed(piece, answer);
    }, () => {
      if (generation === this.generation) this.wanted.delete(piece);
    });
  }

  /**
   * Ask whoever reads the run; where nobody can be asked, what the copy keeps answers.
   * @param {Record<string, unknown>} question
   * @param {(answer: any) => void} answered
   * @param {() => void} forgotten nobody has answered for long
   */
  _ask(question, answered, forgotten = () => {}) {
    const { store } = this;
    if (!store.answers && store.root.kept) {
      answered(keptAnswer(store.root.kept, question));
      return;
    }
    this.root.toggleAttribute("data-loading", true);
    clearTimeout(this.timers.busy);
    this.timers.busy = setTimeout(() => {
      const { name, when } = answerer(store.config);
      say(this.note, `The ${name} is busy: it answers ${when}.`);
      this.note.hidden = false;
    }, BUSY);
    const late = store.config.asks === "server" ? setTimeout(forgotten, AGAIN) : undefined;
    store.inquire(this.panel.model, question, (answer) => {
      clearTimeout(this.timers.busy);
      clearTimeout(late);
      this.root.toggleAttribute("data-loading", false);
      if (answer.refused) say(this.note, answer.refused);
      this.note.hidden = !answer.refused && !this.rows?.note;
      if (!answer.refused) answered(answer);
    });
  }

  /**
   * @param {number} piece
   * @param {SampleRows} answer
   */
  _listed(piece, answer) {
    const first = this.rows === null || piece === 0;
    if (first) {
      this.pieces.clear();
      this.rows = answer;
      this.total = answer.total;
      this.grid.scrollTop = 0;
      this.grid.setAttribute("aria-rowcount", String(answer.total + 1));
      this.body.style.blockSize = `${answer.total * LINE}px`;
      this.active = answer.place ?? firstOf(answer.lines, this.narrowing);
      this._tell(answer);
    }
    this.pieces.set(piece, answer.lines);
    this._draw();
    if (!first) return;
    this._to(this.active);
    const line = this.lineAt(this.active);
    if (this.here) this._open(this.here.key, this.here.token);
    else if (line?.kind === "answer" && line.key) this._open(line.key);
    else if (!answer.total) this.one.root.hidden = true;
  }

  /** @param {SampleRows} answer */
  _tell({ answers, kept, sampled, note, near, step }) {
    const some = sampled !== null && sampled > kept ? `${count(kept)} of ${many(sampled, "sampled answer")} ${kept === 1 ? "has" : "have"} a row` : many(kept, "answer");
    say(this.sentence, kept ? `${some}${answers < kept ? `; ${count(answers)} shown` : ""}.` : "");
    const none = kept ? "No answer matches the filters." : `No samples were recorded in step ${step}.`;
    say(this.note, note || (answers ? (this.sort.root.hidden ? "Saved copy: some answers of the last step, the worst first, without texts." : "") : none));
    this.note.hidden = !this.note.textContent;
    this.elsewhere.hidden = near === null || near === undefined;
    if (!this.elsewhere.hidden) say(this.elsewhere, `Go to step ${near}`);
    this.grid.hidden = this.keys.hidden = !answers;
    this.panel.announce(this.note.textContent || `${many(answers, "answer")}.`);
  }

  /**
   * The line of the list at a place; undefined where it isn't here yet.
   * @param {number} at
   */
  lineAt(at) {
    return this.pieces.get(Math.floor(at / PIECE))?.[at % PIECE];
  }

  _soon() {
    if (!this.frame) this.frame = requestAnimationFrame(() => this._draw());
  }

  /** Draw the lines that are in sight. */
  _draw() {
    this.frame = 0;
    const { grid, total } = this;
    if (this.root.hidden || grid.hidden) return;
    const { first, last } = linesInSight({ top: grid.scrollTop, height: grid.clientHeight, line: LINE, count: total });
    for (const piece of piecesOf(first, last, PIECE)) if (!this.pieces.has(piece)) this._want(piece);
    const size = Math.ceil(grid.clientHeight / LINE) + 3;
    while (this.pool.length < size) {
      const made = new SampleRow();
      this.pool.push(made);
      this.body.append(made.root);
    }
    for (const gone of this.pool.splice(size)) gone.root.remove();
    const shown = new Set();
    for (let at = first; at < last; at += 1) {
      const line = this.pool[at % size];
      shown.add(line);
      line.write(at, this.lineAt(at), at === this.active, this.open);
      if (at === this.active) grid.setAttribute("aria-activedescendant", line.root.id);
    }
    for (const line of this.pool) if (!shown.has(line)) line.root.hidden = true;
    if (this.active < first || this.active >= last) grid.removeAttribute("aria-activedescendant");
  }

  // ---- one answer

  /** The answer that something led to, where it is of the step that is read. */
  get here() {
    return this.led && this.led.step === this.readStep ? this.led : null;
  }

  /**
   * @param {AnswerKey} named
   * @param {number | null} [token] the one that is looked at first; null: the one that differs most
   */
  _open(named, token = null) {
    const key = JSON.stringify(named);
    if (key === this.open && !this.one.root.hidden && token === null) return;
    this.open = key;
    this._soon();
    this._ask({ of: "tokens", step: this.readStep, key: named }, (/** @type {SampleTokens} */ answer) => {
      if (this.open !== key) return;
      this.one.show(answer, token);
      if (this.entering) this.one.focus();
      this.entering = false;
    });
  }

  // ---- what the person does

  _searched() {
    clearTimeout(this.timers.search);
    this.timers.search = setTimeout(() => this.narrow({ search: this.search.value }), SEARCH);
  }

  /** @param {KeyboardEvent} event */
  _searchKey(event) {
    if (event.key !== "Enter" && event.key !== "ArrowDown") return;
    event.preventDefault();
    clearTimeout(this.timers.search);
    if (event.key === "Enter") this.narrow({ search: this.search.value });
    this.grid.focus();
  }

  /** @param {MouseEvent} event */
  _clicked({ target }) {
    const at = target instanceof Element ? Number(target.closest("[data-at]")?.getAttribute("data-at") ?? NaN) : NaN;
    if (Number.isNaN(at)) return;
    this._to(at);
    this._enter(false);
  }

  /** @param {KeyboardEvent} event */
  _key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const { grid } = this;
    const to = movedTo(event.key, this.active, { count: this.total, page: Math.max(Math.floor(grid.clientHeight / LINE) - 2, 1) });
    if (to !== null) this._to(to);
    else if (event.key === "Enter") this._enter(true);
    else if (event.key !== "Escape" || this.all.hidden) return;
    else this.widen();
    event.preventDefault();
  }

  /**
   * To the next or the previous group, with the keyboard.
   * @param {1 | -1} by
   */
  walk(by) {
    if (this.grid.hidden) return;
    this.grid.focus({ preventScroll: true });
    this._to(groupFrom(by, this.active, { count: this.total, of: (at) => this.lineAt(at)?.of }));
  }

  /** @param {number} at */
  _to(at) {
    const { grid } = this;
    this.active = at;
    const to = scrolledTo(at, { top: grid.scrollTop, height: grid.clientHeight, line: LINE, above: LINE });
    if (to !== grid.scrollTop) grid.scrollTop = to;
    this._draw();
  }

  /**
   * A group is shown alone, and all again; an answer is opened.
   * @param {boolean} further whether the keyboard goes to its tokens
   */
  _enter(further) {
    const line = this.lineAt(this.active);
    if (!line) return;
    if (line.kind === "group") {
      this.narrow({ group: this.narrowing.group === null ? line.group : null });
      return;
    }
    const { store } = this;
    const staying = store.answers && store.ui.step === null && this.readStep !== null ? { step: this.readStep } : {}; //  what is read stays
    this.led = null;
    store.choose({ ...staying, answer: null });
    if (line.key) this._open(line.key);
    if (further) this.one.focus();
  }
}

/**
 * The line that is opened first: an answer. Among those trained on other tokens, one whose numbers of each token are kept;
 * in the order of the batch, the first of which it is known from where on, as a finding names that token.
 * @param {SampleLine[]} lines
 * @param {Pick<Narrowing, "only" | "sort">} narrowing
 */
export function firstOf(lines, { only, sort }) {
  /** @param {SampleLine} line */
  const known = ({ changed_at: at }) => typeof at === "number";
  /** @type {((line: SampleLine) => boolean)[]} */
  const looked = sort === "batch" ? [] : [(line) => known(line) && line.block === true, ({ block }) => block === true];
  const found = [...(only === "changed" ? [...looked, known] : []), (/** @type {SampleLine} */ { kind }) => kind === "answer"].map((wish) => lines.findIndex(wish));
  return Math.max(found.find((at) => at >= 0) ?? 0, 0);
}
