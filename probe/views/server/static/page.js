// The page of `probe open`. It is to the panel what a notebook is: a model, and a place to be drawn in.

import panel, { Connection } from "./panel.js";

const OUT_OF_SIGHT = 10000; //  ms after which a hidden page lets go: a browser has few connections to one server

/** Words, whether a command is typed, whether there is a button. @type {Record<string, [string, boolean, boolean]>} */
const SAID = {
  lost: ["The connection to probe is lost. Trying again …", false, true],
  refused: ["This page belongs to a “probe open” that has ended. To show the run again:", true, false],
  ended: ["“probe open” has ended; this is the last that it showed. To show the run again:", true, false],
  broken: ["This page failed; the numbers are safe in the run directory. ", false, false],
  full: ["Too many pages show this run already: close one. Trying again …", false, true],
};

/** @import { Frame } from "../../panel/static/src/connection.js" */

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

/** The page itself. */
class Page {
  constructor() {
    this.command = "";
    this.drawn = false;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.leaving = undefined;
    this.notice = part("notice");
    this.connection = new Connection({
      open: (again, signal) => fetch(again ? "stream?again" : "stream", { signal, cache: "no-store" }),
      post: (content) => this._post(content),
      hello: (frame) => this._hello(frame),
      say: (why) => this._say(why),
      inSight: () => !document.hidden,
    });
    this.notice.querySelector("button")?.addEventListener("click", () => this.connection.retry());
    document.addEventListener("visibilitychange", () => this._sight());
    globalThis.addEventListener("online", () => this.connection.retry());
  }

  run() {
    return this.connection.run();
  }

  /** @param {Frame} frame */
  async _hello({ config, command }) {
    this.command = command;
    document.title = `${config.title} · probe`;
    part("title").textContent = config.title ?? "probe";
    const { model } = this.connection;
    if (this.drawn || !model) return;
    this.drawn = true;
    const target = part("panel");
    await panel.initialize({ model });
    target.replaceChildren();
    await panel.render({ model, el: target });
  }

  /** @param {{id?: number}} content */
  async _post(content) {
    const body = JSON.stringify(content);
    const answer = await fetch("message", { method: "POST", body, headers: { "Content-Type": "application/json" } });
    return answer.ok ? await answer.json() : null;
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
    if (why === "lost") this.connection.still();
  }

  /**
   * A fault of the page itself: it must be seen, and nothing goes on.
   * @param {unknown} error
   */
  broke(error) {
    this.connection.close();
    this.connection.still();
    this._say("broken", error instanceof Error ? error.message : String(error));
    throw error;
  }

  _sight() {
    clearTimeout(this.leaving);
    if (document.hidden) this.leaving = setTimeout(() => this.connection.letGo(), OUT_OF_SIGHT);
    else this.connection.look();
  }
}

const page = new Page();
page.run().catch((error) => page.broke(error));
