// What the browser knows of a run: one Store for each model, shared by all of its views. Messages are numbered;
// a missing one is noticed and healed by the next keyframe. History is bounded and peaks survive the thinning.

import { Clock } from "./clock.js";
import { ARRAYS, decode, headerOf, padded } from "./messages.js";
import { Table, Words } from "./table.js";

const WAITING = 1500; //  messages kept while paused; the next keyframe heals what is more than that

/** Everything that the views of one model share: data, state of the run, and what the person has chosen. */
export class Store {
  constructor(config) {
    this.config = config || {};
    this.words = new Words();
    this.tables = new Map();
    this.clock = new Clock();
    this.ranks = new Set();
    this.roles = new Set();
    this.phases = new Set();
    this.switchedOff = new Map();
    this.state = {};
    this.seq = 0;
    this.broken = false;
    this.losses = { messages: 0, healed: 0 };
    this.received = 0;
    this.version = 0;
    this.waiting = [];
    this.kernel = { asked: null, since: 0, busy: false };
    this.listeners = new Set();
    this.ui = {
      tab: null, paused: false, window: "all", role: "", rank: "", phase: "", step: null, zoom: null,
      selection: null, hidden: {}, tables: {}, unfolded: {}, search: "",
    };
    this.caches = new Map(); //  sums by step, shared by the views
    this.hover = null;
  }

  listen(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Tell the views. `why`: "data", "state", "ui", "hover", "theme". */
  tell(why) {
    for (const listener of [...this.listeners]) listener(why);
  }

  /** Change what the person has chosen. */
  choose(changes) {
    Object.assign(this.ui, changes);
    this.tell("ui");
  }

  table(name) {
    if (!this.tables.has(name)) this.tables.set(name, new Table(name, this.config.limits?.rows || 20000));
    return this.tables.get(name);
  }

  get empty() {
    return ![...this.tables.values()].some((table) => table.count);
  }

  /** The step that is shown: the chosen one, else the newest. */
  get step() {
    return this.ui.step ?? this.clock.newest;
  }

  /** A message from the kernel. */
  receive(head, buffers) {
    if (!head || head.v !== 1) return;
    if (head.t === "a") this._answered();
    else if (!["d", "k", "s"].includes(head.t)) return;
    else if (this.ui.paused && head.t !== "s") this._wait(head, buffers);
    else this._apply(head, buffers);
  }

  /** The state that a page finds when it opens or comes back. */
  restore(head, data) {
    if (!head || !head.tables || !data || !data.byteLength) return;
    const buffers = [];
    let at = 0;
    for (const table of head.tables) {
      const size = headerOf(table).reduce((sum, [, type]) => sum + padded(table.n * ARRAYS[type].BYTES_PER_ELEMENT), 0);
      buffers.push(new DataView(data.buffer, data.byteOffset + at, size));
      at += size;
    }
    const tables = head.tables.map((table, index) => ({ ...table, buffer: index }));
    if (head.seq > this.seq || this.empty) this._load({ ...head, tables }, buffers);
    this.tell("data");
  }

  /** What has changed of the run's state; and, for what is said about silence, when the kernel said so. */
  _hear(state) {
    if (state.newest_at && state.newest_at !== this.state.newest_at) this.heard = { at: performance.now(), past: Math.max((state.updated_at || 0) - state.newest_at, 0) };
    this.state = { ...this.state, ...state };
  }

  /** Seconds since the newest row was written, by the kernel's clock and this page's time since then; 0: not known. */
  silence() {
    return this.heard ? this.heard.past + (performance.now() - this.heard.at) / 1000 : 0;
  }

  pause(paused) {
    if (this.ui.paused === paused) return;
    this.ui.paused = paused;
    if (!paused) for (const [head, buffers] of this.waiting.splice(0)) this._apply(head, buffers, true);
    this.tell("ui");
    if (!paused) this.tell("data");
  }

  _wait(head, buffers) {
    this.waiting.push([head, buffers]);
    if (this.waiting.length > WAITING) this.waiting.shift(); //  seen as a gap later, and healed
    if (head.state) this._hear(head.state);
    this.tell("state");
  }

  _apply(head, buffers, quiet = false) {
    if (head.state) this._hear(head.state);
    this.received += 1;
    if (head.seq > this.seq) this._take(head, buffers);
    if (!quiet) this.tell(head.t === "s" ? "state" : "data");
  }

  _take(head, buffers) {
    const missed = head.seq - this.seq - 1;
    if (missed > 0) {
      this.broken = true;
      this.losses.messages += missed;
    }
    this.seq = head.seq;
    if (head.t === "k" && (this.broken || this.empty)) {
      this._load(head, buffers);
      return;
    }
    if (head.words && !this.words.take(head.words, head.words_from || 0)) this.broken = true;
    if (head.t === "d") for (const table of head.tables || []) this._rows(table, buffers);
  }

  /** Take a keyframe as all there is. */
  _load(head, buffers) {
    this.words = new Words();
    this.words.take(head.words || [], 0);
    this.clock.clear();
    for (const table of this.tables.values()) table.clear();
    for (const table of head.tables || []) this._rows(table, buffers, true);
    if (this.losses.messages && this.broken) this.losses.healed = head.seq;
    if (head.state) this._hear(head.state);
    this.broken = false;
    this.seq = Math.max(this.seq, head.seq || 0);
  }

  _rows(head, buffers, whole = false) {
    const table = this.table(head.name);
    const after = head.next ?? head.from + head.n;
    if (!whole && head.from > table.next) this.broken = true;
    const skip = whole ? 0 : Math.min(Math.max(table.next - head.from, 0), head.n);
    const columns = decode(head, buffers[head.buffer]);
    table.append(columns, head.n, skip);
    table.next = Math.max(table.next, after);
    this._notice(head.name, columns, head.n, skip);
  }

  /** What the controls offer and the clock, from new rows alone. */
  _notice(name, columns, n, skip) {
    const [steps, ranks] = [columns.get("step"), columns.get("rank")];
    const [roles, phases] = [columns.get("role"), columns.get("phase")];
    const begins = columns.get("begin") || columns.get("t");
    const ends = columns.get("end") || begins;
    for (let row = skip; row < n; row += 1) {
      if (ranks && ranks[row] >= 0) this.ranks.add(ranks[row]);
      if (roles && roles[row] >= 0) this.roles.add(roles[row]);
      if (phases && phases[row] >= 0) this.phases.add(phases[row]);
      if (begins || steps) this.clock.note(steps ? steps[row] : -1, begins ? begins[row] : NaN, ends ? ends[row] : NaN);
      if (name === "events" && columns.get("off")?.[row]) {
        this.switchedOff.set(this.words.text(columns.get("where")[row]), this.words.text(columns.get("message")[row]));
      }
    }
  }

  // ---- the kernel, which may be busy

  /** Ask the kernel something; false while an older question has no answer. */
  ask(model, what) {
    if (this.kernel.asked !== null) return false;
    this.kernel = { asked: what, since: performance.now(), busy: false };
    model.send({ v: 1, t: "mark", id: this.received, ask: what });
    this.tell("state");
    return true;
  }

  _answered() {
    this.kernel = { asked: null, since: performance.now(), busy: false };
    this.tell("state");
  }
}
