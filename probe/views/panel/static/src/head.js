// The head: which run it is, whether it lives, and a few facts. Nothing about the panel itself.

import { node, say } from "./dom.js";
import { ago, answerer, attemptOf, seconds, timeOfDay } from "./words.js";

/** @import { RunState } from "./message_types.js" */
/** @import { Store } from "./store.js" */
/** @import { Config } from "./definition_types.js" */

/** @typedef {[text: string, tone: string, more: string]} Pill what it says, how it looks, and what it says when pointed at */

/** The head of a panel. */
export class Head {
  /**
   * @param {Store} store
   * @param {string} id of its title
   */
  constructor(store, id) {
    this.store = store;
    this.pill = node("span", { class: "pp-status" });
    this.facts = node("span", { class: "pp-quiet pp-facts-line" });
    const { name, when } = answerer(store.config);
    this.kernel = node("span", { class: "pp-status", "data-tone": "quiet", hidden: true, title: `It answers ${when}. Everything else here keeps updating.`, text: `${name} is busy` });
    const { run = {}, title } = store.config;
    this.root = node("header", { class: "pp-head" }, node("h2", { id }, ...titleOf(title, run)), this.pill, this.kernel, this.facts, tabButton(store.config));
  }

  /** @returns {string | null} what the pill says, where that is something else than before */
  draw() {
    const { store } = this;
    const [text, tone, more] = pillOf(store);
    const news = this.pill.textContent && this.pill.textContent !== text ? text : null;
    say(this.pill, text);
    this.pill.dataset.tone = tone;
    this.pill.title = more;
    say(this.facts, factsOf(store));
    this.kernel.hidden = !store.kernel.busy || store.state.live === false;
    return news;
  }

  /** Whether time has made other words of the pill's. */
  get stale() {
    return pillOf(this.store)[0] !== this.pill.textContent;
  }
}

/**
 * A button that shows the run beside the notebook, where JupyterLab has probe's extension; it listens for the event.
 * @param {Config} config
 */
function tabButton({ asks, run }) {
  const directory = run?.directory;
  if (asks === "server" || !directory || !("probeLab" in globalThis)) return null;
  const open = () => document.dispatchEvent(new CustomEvent("probe:open-tab", { detail: { run: directory } }));
  return node("button", { type: "button", class: "pp-button", text: "Open in a tab", on: { click: open } });
}

/**
 * Project / experiment, or what the panel was called instead.
 * @param {string | undefined} title
 * @param {{project?: string, experiment?: string}} run
 * @returns {(string | Node)[]}
 */
function titleOf(title, { project, experiment }) {
  if (title && title !== `${project} / ${experiment}`) return [title];
  return experiment ? [node("span", { class: "pp-of", text: `${project || "run"} / ` }), experiment] : [project || "run"];
}

/**
 * What has ended a run in which nobody writes any more; "" where nothing is known to have.
 * @param {RunState} state
 */
function failureOf({ finished, writers = "", verdict }) {
  const over = finished || writers === "gone" || writers === "ended";
  return (over && verdict?.findings?.find((one) => one.failure)?.sentence) || "";
}

/**
 * How the run is.
 * @param {Store} store
 * @returns {Pill}
 */
function pillOf(store) {
  const { state, paused, empty } = store;
  const { ended } = state;
  if (ended && ended.word !== "finished") return [ended.short, "gone", ended.sentence];
  const failure = failureOf(state);
  if (failure) return ["failed", "gone", failure];
  if (state.finished) return ["finished", "done", "Every process that wrote has ended."];
  if (state.live === false) return ["closed", "done", "This panel no longer follows the run."];
  const mute = store.mute();
  if (mute) return [`no sign of the ${answerer(store.config).name} since ${timeOfDay(Date.now() / 1000 - mute, mute)} (${ago(mute)})`, "gone", "The panel shows what had arrived by then."];
  if (paused) return ["paused", "paused", "New rows wait until you resume."];
  if (empty) return ["starting", "waiting", "Nothing has been recorded yet."];
  if (!state.newest_at) return ["live", "live", "Rows are arriving."];
  const silent = store.silence();
  const since = timeOfDay(state.newest_at, silent);
  return state.writers === "gone" ? [`its process is gone, last row at ${since} (${ago(silent)})`, "gone", "It can't write any more rows."] : [`silent for ${ago(silent)}`, "quiet", `The last row came at ${since}.`];
}

/**
 * A few facts, right in the head.
 * @param {Store} store
 */
function factsOf({ config, clock, state, followed }) {
  const parts = [];
  const ranks = config.run?.world_size ?? 0;
  if (followed !== null) parts.push(`step ${followed}`);
  parts.push(...attemptOf(state));
  if (ranks > 1) parts.push(`${ranks} ranks`);
  if (clock.end > 0) parts.push(seconds(clock.end));
  return parts.join(" · ");
}
