// The page of `probe open`. It is to the panel what a notebook is: a model, and a place to be drawn in. What a kernel
// would send comes as frames in one long answer; what the panel asks goes back by POST.

import panel from "./panel.js";

const SILENCE = 12000; //  ms without a frame after which the connection counts as lost; beats come every few seconds
const OUT_OF_SIGHT = 10000; //  ms after which a hidden page lets go: a browser has few connections to one server
const PAUSES = [250, 500, 1000, 2000, 4000, 8000]; //  ms before each try

/** Words, whether a command is typed, whether there is a button. @type {Record<string, [string, boolean, boolean]>} */
const SAID = {
  lost: ["The connection to probe is lost. Trying again …", false, true],
  refused: ["This page belongs to a “probe open” that has ended. To show the run again:", true, false],
  ended: ["“probe open” has ended; this is the last that it showed. To show the run again:", true, false],
  broken: ["This page failed; the numbers are safe in the run directory. ", false, false],
  full: ["Too many pages show this run already: close one. Trying again …", false, true],
};

/** @import { Config, Head } from "../../panel/static/src/types.js" */
/** @typedef {[name: string, callback: (...values: any[]) => void]} Listener of a model */
/** @typedef {{kind: string, sizes: number[], buffers: DataView[], config: Config, command: string, head: Head}} Frame */

/** plotly.js, loaded when a chart asks for it first; a failure is tried again with the next chart. */
/** @type {Promise<unknown> | null} */
let library = null;
Object.defineProperty(globalThis, "__probe_plotly", {
  get() {
    library ??= new Promise((done, failed) => {
      const script = document.createElement("script");
      script.src = "plotly.js";
      script.addEventListener("load", () => done(/** @type {{Plotly?: unknown}} */ (globalThis).Plotly));
      script.addEventListener("error", () => {
        library = null;
        script.remove();
        failed(new Error("plotly.js did not come"));
      });
      document.head.append(script);
    });
    return library;
  },
});

/** What anywidget gives to a widget's module. */
class Model {
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

/**
 * A part of the page.
 * @param {string} id
 * @returns {HTMLElement}
 */
function part(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no part ${id}`);
  return found;
}

/** The page itself: connects, shows, connects again. */
class Page {
  constructor() {
    /** @type {Model | null} */
    this.model = null;
    this.command = "";
    this.failed = 0;
    this.hidden = false;
    this.stop = new AbortController();
    /** What ends a pause before its time. @type {(() => void) | null} */
    this.now = null;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.silence = undefined;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.leaving = undefined;
    this.notice = part("notice");
    this.notice.querySelector("button")?.addEventListener("click", () => this.now?.());
    document.addEventListener("visibilitychange", () => this._sight());
    globalThis.addEventListener("online", () => this.now?.());
  }

  async run() {
    for (;;) {
      await this._seen();
      const why = await this._listen();
      if (why === "hidden") continue;
      if (why !== "lost" || this.failed) this._say(why); //  the first time it is quick, and needs no word
      if (why === "ended" || why === "refused") break;
      await this._pause();
    }
    this._still();
  }

  /** Take frames for as long as they come. Gives why they don't any more: lost, hidden, ended, refused or full. */
  async _listen() {
    this.stop = new AbortController();
    this.hidden = false;
    const path = this.model ? "stream?again" : "stream";
    const answer = await fetch(path, { signal: this.stop.signal, cache: "no-store" }).catch(() => null);
    if (answer?.status === 403) return "refused";
    if (answer?.status === 503) return "full";
    const why = answer?.ok && answer.body ? await this._frames(new Pieces(answer.body.getReader())) : "lost";
    clearTimeout(this.silence);
    if (why !== "ended") this.stop.abort();
    return this.hidden && why === "lost" ? "hidden" : why;
  }

  /** @param {Pieces} pieces */
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
  async _hello({ config, command, head, buffers }) {
    this.failed = 0;
    this.command = command;
    this._say(null);
    document.title = `${config.title} · probe`;
    part("title").textContent = config.title ?? "probe";
    if (this.model) return;
    const traits = { config, snapshot_head: head || {}, snapshot: buffers[0] };
    this.model = new Model(traits, (content) => this._post(content));
    const target = part("panel");
    await panel.initialize({ model: this.model });
    target.replaceChildren();
    await panel.render({ model: this.model, el: target });
  }

  /**
   * What the panel asks. Without an answer it isn't the panel that is busy: the notice says what is wrong.
   * @param {{id?: number}} content
   */
  async _post(content) {
    const nothing = { v: 1, t: "a", id: content.id };
    try {
      const body = JSON.stringify(content);
      const answer = await fetch("message", { method: "POST", body, headers: { "Content-Type": "application/json" } });
      return answer.ok ? await answer.json() : nothing;
    } catch {
      return nothing;
    }
  }

  /** What is shown won't change any more, for now: the panel must not say "live". */
  _still() {
    this.model?.emit("msg:custom", { v: 1, t: "s", seq: 0, words: [], words_from: 0, tables: [], state: { live: false } }, []);
  }

  async _pause() {
    const pause = PAUSES[Math.min(this.failed, PAUSES.length - 1)];
    this.failed += 1;
    /** @type {Promise<void>} */
    const asked = new Promise((now) => { this.now = now; });
    await Promise.race([wait(pause), asked]);
  }

  /**
   * @param {string | null} why
   * @param {string} more
   */
  _say(why, more = "") {
    const [text, typed, again] = SAID[why ?? ""] || ["", false, false];
    const [words, command, button] = /** @type {HTMLElement[]} */ ([...this.notice.children]);
    words.textContent = text + more;
    command.textContent = this.command;
    command.hidden = !typed || !this.command;
    button.hidden = !again;
    this.notice.hidden = !text;
    if (why === "lost") this._still();
  }

  /**
   * A fault of the page itself: it must be seen, and nothing goes on.
   * @param {unknown} error
   */
  broke(error) {
    this.stop.abort();
    this._still();
    this._say("broken", error instanceof Error ? error.message : String(error));
    throw error;
  }

  /** Until the page is in sight. */
  async _seen() {
    while (document.hidden) await new Promise((done) => document.addEventListener("visibilitychange", done, { once: true }));
  }

  _sight() {
    clearTimeout(this.leaving);
    if (!document.hidden) return;
    this.leaving = setTimeout(() => {
      this.hidden = true;
      this.stop.abort();
    }, OUT_OF_SIGHT);
  }
}

const page = new Page();
page.run().catch((error) => page.broke(error));
