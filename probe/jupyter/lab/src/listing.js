// The runs of the server, asked for again and again while somebody can see them.

import { Polling } from "./polling.js";
import { runs } from "./server.js";
import { newestOf } from "./words.js";

/** @import { Run } from "./types.js" */

const SOON_MS = 1000; //  between two looks while an alarm may come
const SOON_FOR_MS = 15000;

export class Listing extends Polling {
  constructor() {
    super();
    /** @type {Run[]} */
    this.runs = [];
    this.cut = false;
    /** Directories of the settings that aren't there. @type {string[]} */
    this.missing = [];
    /** Whether the server knows the directories of somebody's settings. */
    this.settled = true;
    /** Until then it is looked more often. */
    this.soonUntil = 0;
    /** How many processes of each run have ended. @type {Map<string, number>} */
    this.ended = new Map();
  }

  /** @override */
  async ask() {
    const { runs: found, cut, missing, settled } = await runs();
    this.missing = missing;
    this.settled = settled;
    this.runs = found;
    this.cut = cut;
    for (const run of found) {
      const ended = run.ended ?? 0;
      // A process has ended: why is being looked for, and must be told soon.
      if (ended > (this.ended.get(run.run) ?? ended)) this.soonUntil = Date.now() + SOON_FOR_MS;
      this.ended.set(run.run, ended);
    }
  }

  /** @override */
  get pauseMs() {
    return Date.now() < this.soonUntil ? Math.min(SOON_MS, this.refreshMs) : this.refreshMs;
  }

  /** The newest that is being written; null where none is. */
  get newest() {
    return newestOf(this.runs);
  }
}
