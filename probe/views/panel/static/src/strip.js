// The strip that says what went wrong.

import { node } from "./dom.js";
import { answerer, many, shorten, timeOfDay } from "./words.js";

/** @import { RunState } from "./message_types.js" */
/** @import { Panel } from "./view.js" */

/** One line for each thing that a person must know before they trust the numbers. */
export class Strip {
  /** @param {Panel} panel */
  constructor(panel) {
    this.panel = panel;
    this.store = panel.store;
    this.root = node("ul", { class: "pp-strip", "aria-label": "Notices", hidden: true });
    this.told = "";
  }

  /** @returns {[tone: string, text: string, ask?: string][]} */
  notices() {
    const { state, losses, switchedOff, waiting, paused } = this.store;
    const { name, when } = answerer(this.store.config);
    /** @type {[tone: string, text: string, ask?: string][]} */
    const made = [];
    for (const error of (state.errors || []).slice(0, 5)) made.push(["alarm", `${error.where || "probe"}: ${error.message}`]);
    for (const [where, message] of [...switchedOff].slice(-5)) made.push(["alarm", `Listener switched off: ${where}${message ? ` (${message})` : ""}`]);
    const { dropped = 0 } = state;
    if (dropped > 0) made.push(["warn", `${many(dropped, "row")} dropped: sums that contain them are too low.`]);
    made.push(...missingNotices(state));
    if (state.repeated) made.push(["quiet", state.repeated]);
    if (this.store.broken) made.push(["warn", lossText(losses.messages), "keyframe"]);
    if (this.store.kernel.busy && this.store.kernel.asked !== "ping") made.push(["quiet", `The ${name} is busy: it answers ${when}. Everything else here goes on.`]);
    if (paused && waiting.length) made.push(["quiet", `Paused; ${many(waiting.length, "update")} waiting.`]);
    return made;
  }

  draw() {
    const notices = this.notices();
    const told = JSON.stringify(notices) + this.store.kernel.asked;
    if (told === this.told) return;
    this.told = told;
    this.root.hidden = !notices.length;
    this.root.replaceChildren(...notices.map(([tone, text, ask]) => this._notice(tone, text, ask)));
    const alarms = notices.filter(([tone]) => tone === "alarm").map(([, text]) => text);
    if (alarms.length) this.panel.announce(alarms[0]);
  }

  /**
   * @param {string} tone
   * @param {string} text
   * @param {string | undefined} ask
   */
  _notice(tone, text, ask) {
    const line = node("li", { "data-tone": tone }, node("span", { class: "pp-sign", "aria-hidden": "true", text: { alarm: "✕", warn: "!", quiet: "i" }[tone] }), node("span", { text: shorten(text, 400) }));
    if (ask) {
      const asked = this.store.kernel.asked === ask;
      line.append(node("button", { type: "button", class: "pp-link", disabled: asked, text: asked ? "asked" : `Ask the ${answerer(this.store.config).name} now`, on: { click: () => this.panel.ask(ask) } }));
    }
    return line;
  }
}

/**
 * Who isn't waited for.
 * @param {RunState} state
 * @returns {[tone: string, text: string][]}
 */
function missingNotices({ missing = [] }) {
  return missing.map((one) => ["warn", missingText(one)]);
}

/** @param {{name: string, since: number, why: string}} missing a process that took part in steps */
function missingText({ name, since, why }) {
  const at = timeOfDay(since, Date.now() / 1000 - since);
  if (why === "ended") return `${name} has ended at ${at}: later steps don't wait for it.`;
  if (why === "gone") return `The process of ${name} is gone, its last row came at ${at}: its steps aren't waited for.`;
  return `${name} is silent since ${at}: its steps aren't waited for.`;
}

/** @param {number} messages so many that were lost */
function lossText(messages) {
  const what = messages ? `${many(messages, "message")} lost on the way here` : "Something that came could not be read";
  return `${what}; the next keyframe brings what was in ${messages > 1 ? "them" : "it"}.`;
}
