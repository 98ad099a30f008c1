// What holds memory on the server's machine, asked for again and again while somebody can see it.

import { Polling } from "./polling.js";
import { memory } from "./server.js";

/** @import { Held } from "./types.js" */

export class Memory extends Polling {
  constructor() {
    super();
    this.refreshMs = 5000;
    this.wanted = false; //  until the settings are read, and there is a place where it is shown
    /** @type {Held | null} */
    this.held = null;
  }

  /** @override */
  async ask() {
    this.held = await memory();
  }

  /** @param {boolean} wanted @param {number} refreshMs */
  set(wanted, refreshMs) {
    this.wanted = wanted;
    this.refreshMs = refreshMs;
    if (wanted) return void this.look();
    clearTimeout(this.timer);
    this.held = null;
    this.error = "";
    this.changed.emit();
  }
}
