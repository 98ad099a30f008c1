// What whoever reads the run is asked about the step that is chosen or followed, for a figure that shows one.

import { answerer } from "./words.js";

/** @import { Panel } from "./view.js" */

const BUSY = 1500; //  ms after which who is asked counts as busy
const PACE = 3000; //  ms between two questions about steps that are followed
const AGAIN = 30_000; //  ms after which a question that nobody has answered is asked again

/**
 * The questions of one figure.
 * @template T
 */
export class StepAsking {
  /**
   * @param {Panel} panel
   * @param {string} about what is asked; see `probe/views/panel/browsing.py`
   * @param {object} figure
   * @param {(told: T) => boolean} figure.some whether an answer has anything to show
   * @param {(step: number, reason: string) => T} figure.refused what stands for an answer that is refused
   * @param {(text: string) => void} figure.say
   * @param {() => void} figure.draw
   */
  constructor(panel, about, figure) {
    this.panel = panel;
    this.store = panel.store;
    this.about = about;
    this.figure = figure;
    /** What was asked for, by attempt and step. @type {{of: string, told: T} | null} */
    this.fetched = null;
    this.wanted = ""; //  what has been asked, and not answered
    this.asked = -Infinity;
    /** @type {Record<"busy" | "again", ReturnType<typeof setTimeout> | undefined>} */
    this.timers = { busy: undefined, again: undefined };
  }

  destroy() {
    for (const timer of Object.values(this.timers)) clearTimeout(timer);
  }

  /** Nothing has to be asked: what was said of a question is no more to be read. */
  rest() {
    if (this.wanted === "") this.figure.say("");
  }

  /**
   * What is known of a step; null until it is, where it is asked for if there is anybody to ask.
   * @param {number} step
   * @returns {T | null}
   */
  of(step) {
    this.rest();
    const of = JSON.stringify([this.store.state.attempt ?? null, step]);
    if (this.fetched?.of === of) return this.fetched.told;
    if (this.store.answers) this._ask(of, step);
    return null;
  }

  /**
   * Ask for a step; not for each of many that end within a moment, while they are followed.
   * @param {string} of
   * @param {number} step
   */
  _ask(of, step) {
    const follows = this.store.ui.step === null;
    const since = performance.now() - this.asked;
    if (this.wanted !== "" && (follows || this.wanted === of) && since < AGAIN) return;
    clearTimeout(this.timers.again);
    if (follows && since < PACE) {
      this.timers.again = setTimeout(() => this.figure.draw(), PACE - since);
      return;
    }
    this.wanted = of;
    this.asked = performance.now();
    clearTimeout(this.timers.busy);
    this.timers.busy = setTimeout(() => {
      const { name, when } = answerer(this.store.config);
      this.figure.say(`The ${name} is busy: it answers ${when}.`);
    }, BUSY);
    this.store.inquire(this.panel.model, { of: this.about, step }, (answer) => this._take(of, step, follows, answer));
  }

  /**
   * @param {string} of
   * @param {number} step
   * @param {boolean} follows
   * @param {any} answer
   */
  _take(of, step, follows, answer) {
    if (this.wanted !== of) return;
    clearTimeout(this.timers.busy);
    this.wanted = "";
    this.figure.say("");
    const told = answer.refused ? this.figure.refused(step, String(answer.refused)) : answer;
    // Of a step that has only just ended its rows may still be on their way: it is asked for again.
    if (!follows || this.figure.some(told) || answer.refused) this.fetched = { of, told };
    this.figure.draw();
  }
}
