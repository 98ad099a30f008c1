// The runs of the server, asked for again and again while somebody can see them.

import { Signal } from "@lumino/signaling";
import { runs } from "./server.js";
import { isRecent } from "./words.js";

/** @import { Run } from "./types.js" */

const SOON_MS = 1000; //  between two looks while an alarm may come
const SOON_FOR_MS = 15000;

export class Listing {
  constructor() {
    /** @type {Run[]} */
    this.runs = [];
    this.cut = false;
    /** Directories of the settings that aren't there. @type {string[]} */
    this.missing = [];
    this.error = "";
    this.known = false;
    this.refreshMs = 3000;
    /** Until then it is looked more often. */
    this.soonUntil = 0;
    /** How many processes of each run have ended. @type {Map<string, number>} */
    this.ended = new Map();
    /** Something is new. @type {Signal<this, void>} */
    this.changed = new Signal(this);
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    /** The look that is under way. @type {Promise<void> | null} */
    this.asking = null;
    document.addEventListener("visibilitychange", () => this.look());
  }

  /** Look now, and from now on; whoever asks while a look is under way waits for that one. */
  look() {
    if (document.hidden) clearTimeout(this.timer);
    else this.asking ??= this._look();
    return this.asking ?? Promise.resolve();
  }

  async _look() {
    clearTimeout(this.timer);
    try {
      const { runs: found, cut, missing } = await runs();
      this.missing = missing;
      this._take(found, cut);
    } catch (error) {
      this.error = error instanceof Error ? error.message : String(error);
    }
    this.asking = null;
    this.changed.emit();
    this.timer = setTimeout(() => this.look(), Date.now() < this.soonUntil ? Math.min(SOON_MS, this.refreshMs) : this.refreshMs);
  }

  /** The newest that is being written; null where none is. */
  get newest() {
    return this.runs.find((run) => isRecent(run)) ?? null;
  }

  /**
   * @param {Run[]} found
   * @param {boolean} cut
   */
  _take(found, cut) {
    this.runs = found;
    this.cut = cut;
    this.error = "";
    for (const run of found) {
      const ended = run.ended ?? 0;
      // A process has ended: why is being looked for, and must be told soon.
      if (ended > (this.ended.get(run.run) ?? ended)) this.soonUntil = Date.now() + SOON_FOR_MS;
      this.ended.set(run.run, ended);
    }
    this.known = true;
  }
}
