// Something of the server that is asked for again and again while somebody can see it.

import { Signal } from "@lumino/signaling";

export class Polling {
  constructor() {
    this.error = "";
    this.known = false;
    this.refreshMs = 3000;
    /** Whether the person wants it. */
    this.wanted = true;
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
    if (document.hidden || !this.wanted) clearTimeout(this.timer);
    else this.asking ??= this._look();
    return this.asking ?? Promise.resolve();
  }

  async _look() {
    clearTimeout(this.timer);
    try {
      await this.ask();
      this.error = "";
      this.known = true;
    } catch (error) {
      this.error = error instanceof Error ? error.message : String(error);
    }
    this.asking = null;
    this.changed.emit();
    this.timer = setTimeout(() => this.look(), this.pauseMs);
  }

  /** Ask, and keep what is answered. @returns {Promise<void>} */
  ask() {
    return Promise.resolve();
  }

  /** Until the next look. */
  get pauseMs() {
    return this.refreshMs;
  }
}
