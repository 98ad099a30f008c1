// What the browser knows of a run: one Store for each model, shared by all of its views. Messages are numbered;
// a missing one is noticed and healed by the next keyframe. History is bounded and peaks survive the thinning.

import { Clock } from "./clock.js";
import { decode, sizeOf } from "./messages.js";
import { Pasts } from "./past.js";
import { TableSchema } from "./schema.js";
import { LiveTable } from "./table.js";
import { RunWords } from "./words_of_run.js";

/** @import { Config, Numbers, Spec, TableData } from "./definition_types.js" */
/** @import { Head, RunState, TableHead } from "./message_types.js" */
/** @import { KeptSamples } from "./sample_types.js" */
/** @import { Choices, Model, Place } from "./types.js" */

/** Messages kept while paused; the next keyframe heals what is more than that. */
const WAITING = 1500;

/** Questions to whoever reads the run that wait for an answer; older ones are forgotten. */
const INQUIRIES = 64;

/** Rows that a table holds where the configuration doesn't say. */
const ROWS = 20000;

/** Everything that the views of one model share: data and state of the run; and of each of them what was chosen there. */
export class Store {
  /** @param {Config} config */
  constructor(config) {
    this.config = config;
    this.words = new RunWords();
    /** @type {Map<string, TableSchema>} */
    this.schemas = new Map();
    /** @type {Map<string, LiveTable>} */
    this.tables = new Map();
    this.clock = new Clock();
    /** @type {Set<number>} */
    this.ranks = new Set();
    /** Codes of words, as the two below. @type {Set<number>} */
    this.roles = new Set();
    /** @type {Set<number>} */
    this.phases = new Set();
    /** @type {Map<string, string>} */
    this.switchedOff = new Map();
    /** @type {RunState} */
    this.state = {};
    this.seq = 0;
    this.broken = false;
    this.losses = { messages: 0, healed: 0 };
    this.received = 0;
    /** @type {[Head, DataView[]][]} */
    this.waiting = [];
    /** @type {{asked: string | null, since: number, busy: boolean}} */
    this.kernel = { asked: null, since: 0, busy: false };
    /** @type {Set<(why: string) => void>} */
    this.listeners = new Set();
    this.paused = false; //  what comes waits
    this.pasts = new Pasts();
    /** The store itself, where this is what one of its views sees. @type {Store} */
    this.root = this;
    /** What its views see of it. @type {Set<Store>} */
    this.views = new Set();
    /** What was chosen last, in whichever view. @type {Choices} */
    this.ui = {
      tab: null, window: "all", role: "", rank: "", phase: "", step: null, zoom: null,
      selection: null, hidden: {}, tables: {}, unfolded: {}, search: "", samples: {}, answer: null, what_if: {},
    };
    /** What a page without a kernel has of the samples. @type {KeptSamples | null} */
    this.kept = null;
    /** Questions to whoever reads the run that have no answer yet. @type {Map<string, (answer: any) => void>} */
    this.inquiries = new Map();
    /** Sums by step, shared by the views. @type {Map<string, any>} */
    this.caches = new Map();
    /** @type {Place | null} */
    this.hover = null;
    /** @type {{at: number, past: number} | null} */
    this.heard = null;
    /** When the last message came, of whatever kind. */
    this.contact = performance.now();
    /**
     * The last step that is complete, as the kernel said with the rows that are shown; null before the first, undefined
     * where it hasn't said. @type {number | null | undefined}
     */
    this.complete = undefined;
    this._declare(config.schema);
  }

  /** @param {Config} config */
  configure(config) {
    this.config = config;
    this._declare(config.schema);
    this.tell("config");
  }

  /**
   * Take in what the kernel says of tables, of new ones too.
   * @param {Record<string, TableData> | undefined} schema
   */
  _declare(schema) {
    for (const [name, data] of Object.entries(schema ?? {})) {
      if (this.schemas.get(name)?.says(data)) continue;
      const made = new TableSchema(data);
      this.schemas.set(name, made);
      this.tables.get(name)?.declare(made);
    }
  }

  /**
   * @param {(why: string) => void} listener
   * @returns {() => void} what ends the listening
   */
  listen(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /**
   * The run as one more view sees it: choices, pointer and sums are the view's own, all else is the store's. It begins
   * with what was chosen last, so that a view that is made again is as it was.
   * @returns {Store}
   */
  view() {
    /** @type {Store} */
    const made = Object.create(this);
    made.ui = structuredClone(this.ui);
    made.hover = null;
    made.caches = new Map();
    made.listeners = new Set();
    made.views = new Set();
    this.views.add(made);
    return made;
  }

  /** A view is gone. */
  leave() {
    this.root.views.delete(this);
  }

  /**
   * Tell the views.
   * @param {string} why "data", "state", "ui", "config", "hover" or "theme"
   */
  tell(why) {
    for (const listener of [...this.listeners]) listener(why);
    for (const view of [...this.views]) view.tell(why);
  }

  /**
   * Change what the person has chosen.
   * @param {Partial<Choices>} changes
   */
  choose(changes) {
    Object.assign(this.ui, changes);
    this.root.ui = this.ui;
    this.tell("ui");
  }

  /**
   * @param {string} name
   * @returns {LiveTable}
   */
  table(name) {
    const known = this.tables.get(name);
    if (known) return known;
    const made = new LiveTable(name, this.config.limits?.rows || ROWS, this.schemas.get(name));
    this.tables.set(name, made);
    return made;
  }

  /** Whether rows were left out or forgotten, so that a series over steps has to be asked for. */
  get thins() {
    return (this.state.thinned ?? 0) > 0 || [...this.tables.values()].some((table) => table.thinned > 0);
  }

  /** Whether there is somebody to ask. */
  get answers() {
    return this.state.live !== false && !this.mute();
  }

  /**
   * A series over all steps, where rows of its tables are gone; null where all are here, or it isn't known yet.
   * @param {Spec} spec
   */
  pastOf(spec) {
    const { rank, role, phase } = this.ui;
    if (role || phase || spec.free || !this.thins) return null;
    return this.root.pasts.of(spec, rank);
  }

  /** Whether the rows of the step that is shown had to go. */
  get lacksStep() {
    const { step } = this.ui;
    return step !== null && this.thins && this.clock.spans.has(step) && !this.table("spans").byStep.has(step) && !this.root.pasts.steps.has(step);
  }

  get empty() {
    return ![...this.tables.values()].some((table) => table.count);
  }

  /** The step that is shown: the chosen one, else the last complete one. */
  get step() {
    return this.ui.step ?? this.followed;
  }

  /** The step that is followed: the last one that is complete, else the newest. */
  get followed() {
    return this.complete ?? this.clock.newest;
  }

  /**
   * Whether ranks that are waited for have yet to end a step.
   * @param {number} step
   */
  isPartial(step) {
    return !this.state.finished && this.complete !== undefined && step > (this.complete ?? -1);
  }

  /**
   * A message from the kernel.
   * @param {Head} head
   * @param {DataView[]} buffers
   */
  receive(head, buffers) {
    if (!head || head.v !== 1) return;
    this.contact = performance.now();
    if (head.t === "a") this._answered();
    else if (head.t === "b") this._told(head);
    else if (head.t === "h") this._recall(head, buffers);
    else if (!["d", "k", "s"].includes(head.t)) return;
    else if (this.paused && head.t !== "s") this._wait(head, buffers);
    else this._apply(head, buffers);
  }

  /**
   * The state that a page finds when it opens or comes back.
   * @param {Head | null} head
   * @param {DataView | null} data
   */
  restore(head, data) {
    this.kept = head?.samples ?? null;
    if (!head?.tables || !data?.byteLength) return;
    const buffers = [];
    let at = 0;
    for (const table of head.tables) {
      const size = sizeOf(table);
      buffers.push(new DataView(data.buffer, data.byteOffset + at, size));
      at += size;
    }
    const tables = head.tables.map((table, index) => ({ ...table, buffer: index }));
    if (head.seq > this.seq || this.empty) this._load({ ...head, tables }, buffers);
    this.tell("data");
  }

  /**
   * What has changed of the run's state; and, for what is said about silence, when the kernel said so.
   * @param {RunState} state
   */
  _hear(state) {
    if (state.newest_at && state.newest_at !== this.state.newest_at) this.heard = { at: performance.now(), past: Math.max((state.updated_at || 0) - state.newest_at, 0) };
    this.state = { ...this.state, ...state };
    if (!this.paused) this.complete = this.state.complete_step;
  }

  /** Seconds since the newest row was written, by the kernel's clock and this page's time since then; 0: not known. */
  silence() {
    return this.heard ? this.heard.past + (performance.now() - this.heard.at) / 1000 : 0;
  }

  /**
   * Seconds since whoever feeds this page was last heard of, where that is longer than it ever takes; 0: it is there, or
   * has never said how long it takes.
   */
  mute() {
    const past = (performance.now() - this.contact) / 1000;
    return past > (this.state.silence_s ?? Infinity) ? past : 0;
  }

  /** @param {boolean} paused */
  pause(paused) {
    const { root } = this;
    if (root.paused === paused) return;
    root.paused = paused;
    if (!paused) for (const [head, buffers] of root.waiting.splice(0)) root._apply(head, buffers, true);
    root.tell("ui");
    if (!paused) root.tell("data");
  }

  /**
   * What was asked for: series over all steps, or all rows of a step.
   * @param {Head} head
   * @param {DataView[]} buffers
   */
  _recall(head, buffers) {
    this.words.learn(head.words ?? [], 0);
    this.pasts.learn(head.histories ?? [], buffers, this.clock);
    for (const one of head.tables ?? []) {
      const table = this.table(one.name);
      const columns = decode(one, buffers[one.buffer]);
      const step = columns.get("step")?.[0] ?? -1;
      // What some rows of are here has them twice then, unless a key tells that they are the same.
      if (table.schema.key.length || !table.byStep.has(step)) table.append(columns, one.n);
      this.pasts.version += 1;
    }
    this.tell("data");
  }

  /**
   * @param {Head} head
   * @param {DataView[]} buffers
   */
  _wait(head, buffers) {
    this.waiting.push([head, buffers]);
    if (this.waiting.length > WAITING) this.waiting.shift(); //  seen as a gap later, and healed
    if (head.state) this._hear(head.state);
    this.tell("state");
  }

  /**
   * @param {Head} head
   * @param {DataView[]} buffers
   * @param {boolean} quiet the views are told later
   */
  _apply(head, buffers, quiet = false) {
    const before = this.complete;
    if (head.state) this._hear(head.state);
    this.received += 1;
    if (head.seq > this.seq) this._applyNext(head, buffers);
    if (!quiet) this.tell(head.t === "s" && this.complete === before ? "state" : "data");
  }

  /**
   * @param {Head} head
   * @param {DataView[]} buffers
   */
  _applyNext(head, buffers) {
    const missed = head.seq - this.seq - 1;
    if (missed > 0) {
      this.broken = true;
      this.losses.messages += missed;
    }
    this.seq = head.seq;
    if (head.t === "k" && (head.anew || this.broken || this.empty)) {
      this._load(head, buffers);
      return;
    }
    this._declare(head.schema);
    if (head.words && !this.words.learn(head.words, head.words_from || 0)) this.broken = true;
    if (head.t === "d") for (const table of head.tables || []) this._addRows(table, buffers);
  }

  /**
   * Read a keyframe or snapshot as all there is.
   * @param {Head} head
   * @param {DataView[]} buffers
   */
  _load(head, buffers) {
    this._declare(head.schema);
    this.words = new RunWords();
    this.words.learn(head.words || [], 0);
    this.clock.clear();
    for (const held of [this.ranks, this.roles, this.phases]) held.clear();
    for (const table of this.tables.values()) table.clear();
    this.pasts.clear();
    for (const table of head.tables || []) this._addRows(table, buffers, true);
    if (this.losses.messages && this.broken) this.losses.healed = head.seq;
    if (head.state) this._hear(head.state);
    for (const { ui } of this.views) if (ui.step !== null && !this.clock.spans.has(ui.step)) ui.step = null; //  of another attempt
    this.broken = false;
    this.seq = Math.max(this.seq, head.seq || 0);
  }

  /**
   * @param {TableHead} head
   * @param {DataView[]} buffers
   * @param {boolean} whole all rows are there; else those that are known already are left out
   */
  _addRows(head, buffers, whole = false) {
    const table = this.table(head.name);
    const after = head.next ?? head.from + head.n;
    if (!whole && head.from > table.next) this.broken = true;
    const skip = whole ? 0 : Math.min(Math.max(table.next - head.from, 0), head.n);
    const columns = decode(head, buffers[head.buffer]);
    table.append(columns, head.n, skip);
    table.next = Math.max(table.next, after);
    this._offer(table, columns, head.n, skip);
    if (columns.has("off")) this._noticeSwitchedOff(columns, head.n, skip);
  }

  /**
   * What the controls offer, and the clock, from new rows alone.
   * @param {LiveTable} table
   * @param {Map<string, Numbers>} columns
   * @param {number} n
   * @param {number} skip
   */
  _offer(table, columns, n, skip) {
    for (const [name, known] of /** @type {[string, Set<number>][]} */ ([["who", this.ranks], ["role", this.roles], ["phase", this.phases]])) {
      const values = columns.get(name);
      for (let row = skip; values && row < n; row += 1) if (values[row] >= 0) known.add(values[row]);
    }
    const { time } = table.schema;
    const steps = columns.get("step");
    const begins = columns.get(time[0]);
    const ends = columns.get(time[time.length - 1]);
    if (!begins && !steps) return;
    for (let row = skip; row < n; row += 1) this.clock.note(steps ? steps[row] : -1, begins ? begins[row] : NaN, ends ? ends[row] : NaN);
  }

  /**
   * Listeners that were switched off: a person must know before they trust the numbers.
   * @param {Map<string, Numbers>} columns
   * @param {number} n
   * @param {number} skip
   */
  _noticeSwitchedOff(columns, n, skip) {
    for (let row = skip; row < n; row += 1) {
      if (!columns.get("off")?.[row]) continue;
      this.switchedOff.set(this.words.text(columns.get("where")?.[row]), this.words.text(columns.get("message")?.[row]));
    }
  }

  // ---- the kernel, which may be busy

  /**
   * Ask the kernel something.
   * @param {Model} model
   * @param {string} what "ping" or "keyframe"
   * @returns {boolean} false while an older question has no answer
   */
  ask(model, what) {
    const { root } = this;
    if (root.kernel.asked !== null) return false;
    root.kernel = { asked: what, since: performance.now(), busy: false };
    model.send({ v: 1, t: "mark", id: root.received, ask: what });
    root.tell("state");
    return true;
  }

  /**
   * Ask about samples or a what-if; without an answer nothing happens.
   * @param {Model} model
   * @param {object} question
   * @param {(answer: any) => void} answered
   */
  inquire(model, question, answered) {
    const { inquiries } = this.root;
    const q = `${Date.now().toString(36)}-${Math.random().toString(36).slice(2)}`; //  another page's questions have others
    inquiries.set(q, answered);
    for (const [old] of inquiries) if (inquiries.size > INQUIRIES) inquiries.delete(old);
    model.send({ v: 1, t: "mark", id: this.root.received, ask: "samples", q, ...question });
  }

  /** @param {Head} head */
  _told({ q = "", answer }) {
    const answered = this.inquiries.get(q);
    this.inquiries.delete(q);
    answered?.(answer);
  }

  _answered() {
    this.kernel = { asked: null, since: performance.now(), busy: false };
    this.tell("state");
  }
}
