// The panel of a run as a tab: the same bundle as in a cell, with the server in the place of the kernel.

import { MainAreaWidget } from "@jupyterlab/apputils";
import { Widget } from "@lumino/widgets";
import { node } from "../../../views/panel/static/src/dom.js";
import { message, offerPlotly, panelBundle, refusal } from "./server.js";
import { frames } from "./stream.js";

const OUT_OF_SIGHT = 10000; //  ms after which a hidden tab lets go: nobody has to follow its run for it

/** @type {Record<string, string>} */
const SAID = {
  lost: "The connection to the Jupyter server is lost. Trying again …",
  refused: "The Jupyter server doesn't show this run: ",
  ended: "The server has stopped showing this run. Trying again …",
  foreign: "This run.json isn't from a probe run. To read it, right-click the file and choose Open With → JSON.",
  full: "Too many runs are open: close one. Trying again …",
};

/** @import { Run } from "./types.js" */

const GONE = "it was deleted or moved, or lies in no directory that is shown. Close this tab, or put the run back and try again.";

export class PanelTab extends Widget {
  /** @param {string} run the run's path, as the file browser has it */
  constructor(run) {
    super();
    this.run = run;
    this.addClass("probe-tab");
    this.node.dataset.run = run;
    this.words = node("span");
    this.again = node("button", { type: "button", class: "jp-mod-styled", text: "Try now", on: { click: () => this._again() } });
    this.notice = node("div", { class: "probe-notice", role: "alert", hidden: true }, this.words, this.again);
    this.target = node("div", { class: "probe-panel-place" }, node("p", { class: "probe-waiting", text: "Reading the run …" }));
    this.node.append(this.notice, this.target);
    /** Why the server refused, in its words. */
    this.refusal = "";
    /** Whether it said that there is no such run. */
    this.gone = false;
    /** @type {any} */
    this.connection = null;
    this.drawn = false;
    this.foreign = false;
    /** @type {(() => void) | undefined} */
    this.end = undefined;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.leaving = undefined;
    this._sight = () => this._seen();
    document.addEventListener("visibilitychange", this._sight);
  }

  /**
   * Attached again when a tab is dragged: it begins once.
   * @override
   */
  onAfterAttach() {
    if (!this.connection) this._begin().catch((error) => this._say("broken", String(error?.message ?? error)));
  }

  /** @override */
  onAfterShow() {
    this._seen();
  }

  /** @override */
  onAfterHide() {
    this._seen();
  }

  /** @override */
  dispose() {
    if (this.isDisposed) return;
    document.removeEventListener("visibilitychange", this._sight);
    clearTimeout(this.leaving);
    this.connection?.close();
    this.end?.();
    super.dispose();
  }

  async _begin() {
    offerPlotly();
    this.connection = {};
    const { default: panel, Connection } = await panelBundle().catch((/** @type {unknown} */ error) => {
      this.connection = null;
      throw error;
    });
    if (this.isDisposed || this.foreign) return;
    this.connection = new Connection({
      open: (/** @type {boolean} */ again, /** @type {AbortSignal} */ signal) => this._open(again, signal),
      post: (/** @type {object} */ content) => message(this.run, content),
      hello: () => this._draw(panel),
      say: (/** @type {string | null} */ why) => this._say(why),
      inSight: () => this.isVisible && !document.hidden,
    });
    await this._listen();
  }

  /** Until the tab is closed, or the server refuses. */
  async _listen() {
    while (!this.isDisposed) {
      await this.connection.run();
      if (this.connection.over || this.notice.dataset.why === "refused") break;
      // The server's process has ended in order, after a restart or a change of the settings: it begins again.
      await new Promise((done) => setTimeout(done, 2000));
    }
  }

  /**
   * Ask for the frames, and keep why there are none.
   * @param {boolean} again
   * @param {AbortSignal} signal
   */
  async _open(again, signal) {
    const answer = await frames(this.run, again, signal);
    this.gone = answer?.status === 404;
    if (answer && !answer.ok) this.refusal = this.gone ? GONE : `${await refusal(answer)}.`;
    return answer;
  }

  /** It is another tool's file: nothing is asked for it. */
  notOurs() {
    this.foreign = true;
    this.connection?.close?.();
    this._say("foreign");
  }

  /**
   * A run that is listed is there again, or lies in a directory that the server has been told of since.
   * @param {Run[]} runs
   */
  listed(runs) {
    if (this.notice.dataset.why !== "refused" || !this.gone) return;
    if (runs.some(({ run, directory }) => run === this.run || directory === this.run)) void this._again();
  }

  /** Whoever presses the button doesn't wait for the next try; a run that was refused may be there again. */
  _again() {
    if (this.notice.dataset.why !== "refused") return this.connection?.retry();
    this._say(null);
    return this._listen();
  }

  /** @param {any} panel */
  async _draw(panel) {
    if (this.drawn || this.isDisposed) return;
    this.drawn = true;
    const { model } = this.connection;
    await panel.initialize({ model });
    this.target.replaceChildren();
    this.end = panel.render({ model, el: this.target });
  }

  /**
   * @param {string | null} why
   * @param {string} more
   */
  _say(why, more = "") {
    this.notice.dataset.why = why ?? "";
    this.notice.hidden = why === null;
    this.words.textContent = `${SAID[why ?? ""] ?? ""}${why === "refused" ? this.refusal : more}`;
    this.again.hidden = why !== "lost" && why !== "full" && why !== "refused";
    // What stands there is what was read before; where nothing was, nothing is being read either.
    if (why === "lost" || why === "refused") this.connection?.still?.();
    this.target.hidden = why === "foreign" || (why === "refused" && !this.drawn);
  }

  _seen() {
    clearTimeout(this.leaving);
    if (this.isVisible && !document.hidden) this.connection?.look?.();
    else this.leaving = setTimeout(() => this.connection?.letGo?.(), OUT_OF_SIGHT);
  }
}

/**
 * The tab, for JupyterLab's main area.
 * @param {string} run
 * @param {import("@jupyterlab/ui-components").LabIcon} icon
 */
export function panelArea(run, icon) {
  const area = new MainAreaWidget({ content: new PanelTab(run) });
  area.id = `probe-lab-run-${encodeURIComponent(run)}`; //  the layout is restored by it
  area.title.label = run.split("/").filter(Boolean).pop() || run;
  area.title.caption = `probe: ${run}`;
  area.title.icon = icon;
  area.title.closable = true;
  return area;
}
