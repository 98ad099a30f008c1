// What the browser knows of a run: one Store for each model, shared by all of its views. Messages are numbered;
// a missing one is noticed and healed by the next keyframe. History is bounded and peaks survive the thinning.

const ARRAYS = { f8: Float64Array, f4: Float32Array, i4: Int32Array, u1: Uint8Array };
const WORD_COLUMNS = new Set([
  "role", "phase", "kind", "name", "source", "field", "cause", "key", "reducer", "chosen_by", "point",
  "added", "removed", "error", "where", "message", "level", "peak_kind",
]);

/** Rows with the same values here replace each other. */
const KEYS = { spans: ["rank", "scope"], padding: ["step", "rank", "source", "field", "cause", "counted"] };

/**
 * How a full table forgets. `whole: "step"` keeps or drops the rows of a step (of one `group`) together, so that
 * sums over what is left stay exact; without it single rows go. Of each bucket those stay that hold an extreme of `score`.
 */
const THINNING = {
  spans: { whole: true, group: [], score: ["peak"] },
  micro: { whole: true, group: [], score: ["tokens"] },
  padding: { whole: true, group: [], score: ["tokens"] },
  reductions: { whole: true, group: ["key"], score: ["value"] },
  scalars: { whole: true, group: ["key"], score: ["value"] },
  memory: { whole: false, group: ["rank"], score: ["allocated", "reserved", "used"] },
  calls: { whole: false, group: [], score: ["duration", "bytes_out"] },
  events: { whole: false, group: [], score: ["count"] },
};

/** Columns that are sums or differences of others. */
const DERIVED = {
  spans: {
    duration: (get, row) => get("end", row) - get("begin", row),
    on_padding: (get, row) => (get("slots", row) > 0 ? (get("end", row) - get("begin", row)) * (1 - get("tokens", row) / get("slots", row)) : NaN),
  },
  micro: {
    padding: (get, row) => get("sequences", row) * get("width", row) - get("tokens", row),
    use: (get, row) => get("tokens", row) / get("cap", row),
  },
};

const LOG = 8192;
const padded = (size) => Math.ceil(size / 8) * 8;

/** The words of the run by their code. */
class Words {
  constructor() {
    this.list = [];
    this.codes = new Map();
  }

  /** Take new words; false where some before them are missing. */
  take(words, from) {
    const whole = from <= this.list.length;
    while (this.list.length < from) this.list.push(null);
    words.forEach((word, index) => {
      this.list[from + index] = word;
      if (!this.codes.has(word)) this.codes.set(word, from + index);
    });
    return whole;
  }

  text(code) {
    return code < 0 ? "" : (this.list[code] ?? "…");
  }
}

/** One table of numbers in columns that grow up to `limit` rows and are then thinned. */
class Table {
  constructor(name, limit) {
    this.name = name;
    this.limit = limit;
    this.types = new Map();
    this.clear();
  }

  clear() {
    this.columns = new Map([...this.types].map(([name, type]) => [name, new ARRAYS[type](64)]));
    this.capacity = 64;
    this.count = 0; //  rows held
    this.next = 0; //  running number of the row that comes next
    this.total = 0; //  rows ever appended here; unlike `next` never jumps
    this.thinned = 0;
    this.replaced = 0;
    this.version = (this.version || 0) + 1;
    this.generation = (this.generation || 0) + 1; //  changes when row numbers do
    this.epoch = (this.epoch || 0) + 1; //  changes when all is taken anew
    this.partial = new Set(); //  steps of which single rows were dropped
    this.byStep = new Map();
    this.byKey = new Map();
    this.log = []; //  steps touched, for those who keep sums by step
    this.logBase = 0;
  }

  /** Take `n` rows, from row `skip` on. `columns` maps names to typed arrays. */
  append(columns, n, skip = 0) {
    for (const [name, values] of columns) this._column(name, values);
    let at = skip;
    while (at < n) {
      if (this.count >= this.limit) this._thin();
      const room = Math.min(n - at, this.limit - this.count);
      this._reserve(this.count + room);
      for (let index = at; index < at + room; index += 1) this._row(columns, index);
      at += room;
    }
    this.version += 1;
  }

  _column(name, values) {
    if (this.columns.has(name)) return;
    const type = Object.keys(ARRAYS).find((one) => values instanceof ARRAYS[one]);
    this.types.set(name, type);
    const made = new ARRAYS[type](this.capacity);
    made.fill(type === "i4" ? -1 : type === "u1" ? 0 : NaN);
    this.columns.set(name, made);
  }

  _reserve(rows) {
    if (rows <= this.capacity) return;
    const capacity = Math.min(Math.max(rows, this.capacity * 2), Math.max(this.limit, rows));
    for (const [name, old] of this.columns) {
      const made = new old.constructor(capacity);
      made.set(old);
      this.columns.set(name, made);
    }
    this.capacity = capacity;
  }

  _row(columns, index) {
    const key = this._key((name) => columns.get(name)?.[index]);
    const known = key === null ? undefined : this.byKey.get(key);
    const row = known ?? this.count;
    for (const [name, values] of this.columns) {
      const given = columns.get(name);
      values[row] = given ? given[index] : values instanceof Int32Array ? -1 : values instanceof Uint8Array ? 0 : NaN;
    }
    this.total += 1;
    if (known === undefined) {
      this.count += 1;
      if (key !== null) this.byKey.set(key, row);
      this._index(row);
    } else this.replaced += 1;
    this._touch(this.step(row));
  }

  _key(value) {
    const names = KEYS[this.name];
    if (!names) return null;
    if (this.name === "spans" && !(value("scope") >= 0)) return null;
    return names.map((name) => value(name)).join(":");
  }

  _index(row) {
    const step = this.step(row);
    const rows = this.byStep.get(step);
    if (rows) rows.push(row);
    else this.byStep.set(step, [row]);
  }

  _touch(step) {
    if (this.log.length && this.log[this.log.length - 1] === step) {
      // The same step again needs a line only for those who have read the last one: lines are cheap, steps are few.
      if (this.logSeen !== this.log.length) return;
    }
    this.log.push(step);
    if (this.log.length > LOG) {
      this.log.splice(0, LOG / 2);
      this.logBase += LOG / 2;
    }
  }

  /** Steps touched since `cursor` (null: all must be read again), and the new cursor. */
  touched(cursor) {
    const end = this.logBase + this.log.length;
    this.logSeen = this.log.length;
    if (cursor === null || cursor < this.logBase) return { steps: null, cursor: end };
    return { steps: new Set(this.log.slice(cursor - this.logBase)), cursor: end };
  }

  step(row) {
    return this.columns.get("step")?.[row] ?? -1;
  }

  /** A number of a row; missing is NaN. */
  get(name, row) {
    const values = this.columns.get(name);
    if (values) {
      const value = values[row];
      return value === -1 && values instanceof Int32Array ? NaN : value;
    }
    const derived = DERIVED[this.name]?.[name];
    return derived ? derived((other, at) => this.get(other, at), row) : NaN;
  }

  has(name) {
    return this.columns.has(name) || Boolean(DERIVED[this.name]?.[name]);
  }

  /** All of a row: words as texts, numbers as numbers. */
  row(row, words) {
    const made = { table: this.name };
    for (const [name, values] of this.columns) {
      made[name] = WORD_COLUMNS.has(name) ? words.text(values[row]) : this.get(name, row);
    }
    for (const name of Object.keys(DERIVED[this.name] || {})) made[name] = this.get(name, row);
    return made;
  }

  // ---- forgetting

  _thin() {
    const rule = THINNING[this.name] || { whole: false, group: [], score: [] };
    const half = this.count >> 1;
    let keep = rule.whole ? this._keepWhole(rule, half) : null;
    if (!keep || this._dropped(keep) < this.count / 10) keep = this._keepRows(rule, half);
    if (this._dropped(keep) < this.count / 10) keep.fill(0, 0, this.count >> 2);
    this._notePartial(keep, rule.whole);
    this.thinned += this._dropped(keep);
    this._compact(keep);
  }

  _dropped(keep) {
    let dropped = 0;
    for (let row = 0; row < this.count; row += 1) dropped += keep[row] ? 0 : 1;
    return dropped;
  }

  /** Whole cells (the rows of one step and group) of the older half: two of each four that follow each other stay. */
  _keepWhole(rule, half) {
    const keep = new Uint8Array(this.count).fill(1);
    const groups = new Map();
    for (let row = 0; row < this.count; row += 1) {
      const group = this._group(rule, row);
      if (!groups.has(group)) groups.set(group, new Map());
      const cells = groups.get(group);
      const step = this.step(row);
      if (!cells.has(step)) cells.set(step, []);
      cells.get(step).push(row);
    }
    for (const cells of groups.values()) {
      const old = [...cells.entries()].filter(([step, rows]) => step >= 0 && rows[rows.length - 1] < half);
      for (let at = 0; at + 4 <= old.length; at += 4) this._dropCells(keep, old.slice(at, at + 4), rule.score[0]);
    }
    return keep;
  }

  _dropCells(keep, cells, score) {
    const tops = cells.map(([, rows]) => this._top(rows, score));
    const largest = tops.indexOf(Math.max(...tops));
    let smallest = tops.indexOf(Math.min(...tops));
    if (smallest === largest) smallest = (largest + 1) % cells.length;
    cells.forEach(([, rows], index) => {
      if (index !== largest && index !== smallest) for (const row of rows) keep[row] = 0;
    });
  }

  _top(rows, score) {
    let top = -Infinity;
    for (const row of rows) {
      const value = this.get(score, row);
      if (value > top) top = value;
    }
    return top;
  }

  /** Rows of the older half: of each bucket the smallest of the first score and the largest of each stay. */
  _keepRows(rule, half) {
    const keep = new Uint8Array(this.count).fill(1);
    const size = 2 * (rule.score.length + 1);
    const groups = new Map();
    for (let row = 0; row < half; row += 1) {
      const group = this._group(rule, row);
      const bucket = groups.get(group) || [];
      bucket.push(row);
      groups.set(group, bucket);
      if (bucket.length === size) {
        this._dropRows(keep, bucket, rule.score);
        groups.set(group, []);
      }
    }
    return keep;
  }

  _dropRows(keep, bucket, scores) {
    const stay = new Set([bucket[0]]);
    for (const score of scores) {
      const values = bucket.map((row) => this.get(score, row));
      const known = values.filter((value) => !Number.isNaN(value));
      if (known.length) stay.add(bucket[values.indexOf(Math.max(...known))]);
      if (known.length && score === scores[0]) stay.add(bucket[values.indexOf(Math.min(...known))]);
    }
    for (const row of bucket) if (!stay.has(row)) keep[row] = 0;
  }

  _group(rule, row) {
    if (!rule.group.length) return "";
    return rule.group.map((name) => this.columns.get(name)?.[row]).join(":");
  }

  _notePartial(keep, whole) {
    const left = new Set();
    const lost = new Set();
    for (let row = 0; row < this.count; row += 1) {
      const cell = whole ? `${this._group(THINNING[this.name], row)}|${this.step(row)}` : this.step(row);
      (keep[row] ? left : lost).add(cell);
    }
    for (const cell of lost) if (left.has(cell)) this.partial.add(whole ? Number(cell.split("|").pop()) : cell);
  }

  _compact(keep) {
    let kept = 0;
    const arrays = [...this.columns.values()];
    for (let row = 0; row < this.count; row += 1) {
      if (!keep[row]) continue;
      if (kept !== row) for (const values of arrays) values[kept] = values[row];
      kept += 1;
    }
    this.count = kept;
    this.generation += 1;
    this.byStep.clear();
    this.byKey.clear();
    for (let row = 0; row < kept; row += 1) {
      const key = this._key((name) => this.columns.get(name)?.[row]);
      if (key !== null) this.byKey.set(key, row);
      this._index(row);
    }
    for (const step of this.partial) if (!this.byStep.has(step)) this.partial.delete(step);
  }
}

/** When each step began and ended, in seconds since the run's start; and the steps in order. */
class Clock {
  constructor() {
    this.clear();
  }

  clear() {
    this.spans = new Map();
    this.steps = [];
    this.end = 0;
    this.begin = NaN;
  }

  /** A row of `step` covers begin … end (NaN: not known). */
  note(step, begin, end) {
    const last = Number.isNaN(end) ? begin : end;
    if (last > this.end) this.end = last;
    if (!(begin >= this.begin)) this.begin = Number.isNaN(begin) ? this.begin : begin;
    if (step < 0) return;
    const span = this.spans.get(step);
    if (!span) {
      this.spans.set(step, [begin, last]);
      this._insert(step);
      return;
    }
    if (!(span[0] <= begin) && !Number.isNaN(begin)) span[0] = begin;
    if (!(span[1] >= last) && !Number.isNaN(last)) span[1] = last;
  }

  _insert(step) {
    let at = this.steps.length;
    while (at > 0 && this.steps[at - 1] > step) at -= 1;
    this.steps.splice(at, 0, step);
  }

  get newest() {
    return this.steps.length ? this.steps[this.steps.length - 1] : null;
  }

  /** The index in `steps` of `step`, or of the one before it. */
  indexOf(step) {
    let low = 0;
    let high = this.steps.length - 1;
    while (low <= high) {
      const middle = (low + high) >> 1;
      if (this.steps[middle] <= step) low = middle + 1;
      else high = middle - 1;
    }
    return Math.max(high, 0);
  }

  /** The step that runs at a time: the last one begun before it. */
  stepAt(time) {
    let low = 0;
    let high = this.steps.length - 1;
    while (low <= high) {
      const middle = (low + high) >> 1;
      if (this.spans.get(this.steps[middle])[0] <= time) low = middle + 1;
      else high = middle - 1;
    }
    return high < 0 ? this.steps[0] ?? null : this.steps[high];
  }

  /** Begin and end of a step, NaN where not known. */
  span(step) {
    return this.spans.get(step) || [NaN, NaN];
  }
}

const WAITING = 1500; //  messages kept while paused; the next keyframe heals what is more than that

/** Everything that the views of one model share: data, state of the run, and what the person has chosen. */
class Store {
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

/** [[name, type], …] of a table in a message. */
function headerOf(head) {
  return head.cols.split(" ").map((one) => one.split(":"));
}

/** The columns of a table in a message. */
function decode(head, view) {
  const columns = new Map();
  let at = 0;
  for (const [name, type] of headerOf(head)) {
    const Kind = ARRAYS[type];
    if (!Kind) throw new Error(`unknown column type ${type}`);
    const begin = view.byteOffset + at;
    const size = head.n * Kind.BYTES_PER_ELEMENT;
    const aligned = begin % Kind.BYTES_PER_ELEMENT === 0;
    const buffer = aligned ? view.buffer : view.buffer.slice(begin, begin + size);
    columns.set(name, new Kind(buffer, aligned ? begin : 0, head.n));
    at += padded(size);
  }
  return columns;
}
