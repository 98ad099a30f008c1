// What is to the panel what a notebook is, where there is none: frames come in one long answer, and what the panel asks
// goes back by POST. The page of `probe open` and the tab in JupyterLab connect with it, each in its own way.

/** @import { Config } from "./definition_types.js" */
/** @import { Head } from "./message_types.js" */
/** @typedef {[name: string, callback: (...values: any[]) => void]} Listener of a model */
/** @typedef {{kind: string, sizes: number[], buffers: DataView[], config: Config, command: string, head: Head}} Frame */
/** Why no frames come any more: the last one is there, the connection broke, is refused, or there are too many. */
/** @typedef {"ended" | "lost" | "hidden" | "refused" | "full"} Why */

/**
 * @typedef {object} Host
 * @property {(again: boolean, signal: AbortSignal) => Promise<Response | null>} open asks for the frames
 * @property {(content: {id?: number}) => Promise<any>} post sends what the panel asks; fails where nothing answers
 * @property {(frame: Frame) => Promise<void>} hello draws the panel of `connection.model` when its first frame has come
 * @property {(why: Why | null) => void} say tells a person; null where all is well
 * @property {() => boolean} inSight whether anybody can see the panel
 */

const SILENCE = 12000; //  ms without a frame after which the connection counts as lost; beats come every few seconds
const PAUSES = [250, 500, 1000, 2000, 4000, 8000]; //  ms before each try

/** What a refusal means. @type {Record<number, Why>} */
const WHY = { 400: "refused", 403: "refused", 404: "refused", 429: "full" };

/** What anywidget gives to a widget's module. */
export class Model {
  /**
   * @param {Record<string, unknown>} traits
   * @param {(content: {id?: number}) => Promise<unknown>} post
   */
  constructor(traits, post) {
    this.traits = traits;
    this.post = post;
    /** @type {Listener[]} */
    this.listeners = [];
  }

  /** @param {string} name */
  get(name) {
    return this.traits[name];
  }

  /**
   * @param {string} name
   * @param {unknown} value
   */
  set(name, value) {
    this.traits[name] = value;
    this.emit(`change:${name}`, value);
  }

  save_changes() {}

  /** @param {Listener} listener */
  on(...listener) {
    this.listeners.push(listener);
  }

  /**
   * @param {string} name
   * @param {Listener[1]} [callback] all of that name where it is left out
   */
  off(name, callback) {
    this.listeners = this.listeners.filter(([one, other]) => (name && one !== name) || (callback && other !== callback));
  }

  /** @param {object} content */
  send(content) {
    this.post(content).then((answer) => this.emit("msg:custom", answer, []));
  }

  /**
   * @param {string} name
   * @param {...unknown} values
   */
  emit(name, ...values) {
    for (const [one, callback] of [...this.listeners]) if (one === name) callback(...values);
  }
}

/** Bytes that come in pieces of any length, read in pieces of the wanted one. */
class Pieces {
  /** @param {ReadableStreamDefaultReader<Uint8Array<ArrayBuffer>>} reader */
  constructor(reader) {
    this.reader = reader;
    /** @type {Uint8Array<ArrayBuffer>[]} */
    this.parts = [];
    this.size = 0;
  }

  /**
   * The next `size` bytes; null where the answer ends or breaks before.
   * @param {number} size
   */
  async read(size) {
    while (this.size < size) {
      const { value } = await this.reader.read().catch(() => ({ value: undefined }));
      if (!value) return null;
      this.parts.push(value);
      this.size += value.byteLength;
    }
    const made = new Uint8Array(size);
    let at = 0;
    while (at < size) {
      const first = this.parts[0];
      const fits = first.subarray(0, size - at);
      made.set(fits, at);
      at += fits.byteLength;
      if (fits.byteLength === first.byteLength) this.parts.shift();
      else this.parts[0] = first.subarray(fits.byteLength);
    }
    this.size -= size;
    return made;
  }

  /** The next frame: its head with `buffers`; null at the end. */
  /** @returns {Promise<Frame | null>} */
  async frame() {
    const length = await this.read(4);
    const text = length && (await this.read(new DataView(length.buffer).getUint32(0, true)));
    if (!text) return null;
    const head = JSON.parse(new TextDecoder().decode(text));
    head.buffers = [];
    for (const size of head.sizes) {
      const bytes = await this.read(size);
      if (!bytes) return null;
      head.buffers.push(new DataView(bytes.buffer));
    }
    return head;
  }
}

/** @param {number} time in milliseconds */
const wait = (time) => new Promise((done) => setTimeout(done, time));

/** Connects, takes frames, connects again. */
export class Connection {
  /** @param {Host} host */
  constructor(host) {
    this.host = host;
    /** @type {Model | null} */
    this.model = null;
    this.failed = 0;
    this.hidden = false;
    this.over = false;
    this.stop = new AbortController();
    /** What ends a pause, or the time out of sight, before its time. @type {(() => void) | null} */
    this.now = null;
    /** @type {(() => void) | null} */
    this.seen = null;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.silence = undefined;
  }

  /** Until the run's panel has ended, is refused, or this is closed. */
  async run() {
    while (!this.over) {
      await this._inSight();
      if (this.over) break;
      const why = await this._listen();
      if (this.over) break;
      if (why === "hidden") continue;
      if (why !== "lost" || this.failed) this.host.say(why); //  the first time it is quick, and needs no word
      if (why === "ended" || why === "refused") break;
      await this._pause();
    }
    this.still();
  }

  /** No more frames are wanted: for good. */
  close() {
    this.over = true;
    this.stop.abort();
    this.retry();
    this.look();
  }

  /** Try again now. */
  retry() {
    this.now?.();
  }

  /** It is in sight again. */
  look() {
    this.seen?.();
  }

  /** Let go for as long as it is out of sight: a browser has few connections to one server. */
  letGo() {
    this.hidden = true;
    this.stop.abort();
  }

  /** What is shown won't change any more, for now: the panel must not say "live". */
  still() {
    this.model?.emit("msg:custom", { v: 1, t: "s", seq: 0, words: [], words_from: 0, tables: [], state: { live: false } }, []);
  }

  /** Take frames for as long as they come. @returns {Promise<Why>} */
  async _listen() {
    this.stop = new AbortController();
    this.hidden = false;
    const answer = await this.host.open(this.model !== null, this.stop.signal).catch(() => null);
    const refused = WHY[answer?.status ?? 0];
    if (refused) return refused;
    const why = answer?.ok && answer.body ? await this._frames(new Pieces(answer.body.getReader())) : "lost";
    clearTimeout(this.silence);
    if (why !== "ended") this.stop.abort();
    return this.hidden && why === "lost" ? "hidden" : why;
  }

  /**
   * @param {Pieces} pieces
   * @returns {Promise<Why>}
   */
  async _frames(pieces) {
    for (;;) {
      clearTimeout(this.silence);
      this.silence = setTimeout(() => this.stop.abort(), SILENCE);
      const frame = await pieces.frame();
      if (!frame) return "lost";
      if (frame.kind === "end") return "ended";
      if (frame.kind === "hello") await this._hello(frame);
      if (frame.kind === "message") this.model?.emit("msg:custom", frame.head, frame.buffers);
    }
  }

  /** @param {Frame} frame */
  async _hello(frame) {
    this.failed = 0;
    this.host.say(null);
    const first = !this.model;
    if (first) {
      const { config, head, buffers } = frame;
      this.model = new Model({ config, snapshot_head: head || {}, snapshot: buffers[0] }, (content) => this._post(content));
    }
    await this.host.hello(frame);
  }

  /**
   * What the panel asks. Without an answer it isn't the panel that is busy: the notice says what is wrong.
   * @param {{id?: number}} content
   */
  async _post(content) {
    const nothing = { v: 1, t: "a", id: content.id };
    try {
      return (await this.host.post(content)) ?? nothing;
    } catch {
      return nothing;
    }
  }

  async _pause() {
    const pause = PAUSES[Math.min(this.failed, PAUSES.length - 1)];
    this.failed += 1;
    /** @type {Promise<void>} */
    const asked = new Promise((now) => { this.now = now; });
    await Promise.race([wait(pause), asked]);
  }

  async _inSight() {
    while (!this.host.inSight() && !this.over) {
      /** @type {Promise<void>} */
      const seen = new Promise((done) => { this.seen = done; });
      await seen;
    }
  }
}
