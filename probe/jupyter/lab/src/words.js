// What is said of a run.

import { ago, bytes, many } from "../../../views/panel/static/src/words.js";

/** @import { Run } from "./types.js" */

/** A run's own name. @param {Run} run */
export const title = ({ project, experiment, run }) => (project ? `${project} / ${experiment}` : experiment || run);

/**
 * What a run may be called, as the list calls it first: a cell names its whole path, perhaps before it is listed.
 * @param {string} run
 * @param {Run[]} runs
 */
export function namesOf(run, runs) {
  const found = runs.find((one) => one.run === run || one.directory === run);
  return found ? [found.run, found.directory] : [run];
}

const RECENT_S = 600;

/** A number and its unit, which stay in one line. */
const UNIT = /(?<=\d) (?=%|(?:[KMGT]?i?B|[mµn]?s|min|h)\b)/g;

/**
 * Whether it is live, or was a moment ago. One that has been silent for long isn't: perhaps its machine was switched off.
 * @param {Run} run
 * @param {number} [now] seconds since the epoch
 */
export function isRecent({ state, since_s: since }, now = Date.now() / 1000) {
  return state === "live" || (state === "silent" && since !== null && now - since < RECENT_S);
}

/**
 * The newest that is live; where none is, the newest that was a moment ago.
 * @param {Run[]} runs the newest first
 */
export const newestOf = (runs) => runs.find(({ state }) => state === "live") ?? runs.find((run) => isRecent(run)) ?? null;

/** How old it is. @param {Run} run @param {number} now seconds since the epoch */
export const age = ({ started_s: started }, now) => (started === null ? "" : `began ${ago(Math.max(now - started, 0))} ago`);

/**
 * Whether it is live, and since when it isn't.
 * @param {Run} run
 * @param {number} now seconds since the epoch
 */
export function standing({ state, since_s: since, error }, now) {
  if (error !== null) return "Can't be read";
  const time = since === null ? "" : ago(Math.max(now - since, 0));
  if (state === "live") return "Live";
  if (state === "silent") return time ? `Silent for ${time}` : "Silent";
  if (state === "failed") return time ? `Failed ${time} ago` : "Failed";
  if (state === "killed") return time ? `Killed ${time} ago` : "Killed";
  if (state === "finished") return time ? `Finished ${time} ago` : "Finished";
  return "No rows yet";
}

/**
 * Whether the text of a `run.json` can be a run's, as far as a page can tell; other tools have files of that name.
 * @param {string} text
 */
export function mayBeRun(text) {
  try {
    const told = JSON.parse(text);
    return typeof told?.schema_version === "number" && "project" in told;
  } catch {
    return true; //  a run's that is damaged: the server says what helps
  }
}

/** What is known of it, as an icon: without rows, or where nobody can look, that is nothing. @param {Run} run */
export function kindOf({ error, state, verdict: found }) {
  if (error !== null) return "alarm";
  const kind = found?.worst?.kind;
  if (kind === "alarm" || kind === "tuning") return kind;
  return found && kind !== "withheld" && found.failed === null && found.whole && state !== "unknown" ? "fine" : "unknown";
}

/** A file that isn't what probe writes may be another tool's: nobody is told to change that. */
const NOT_OURS = /^run\.json (isn't what probe writes|wasn't written by probe)/;

/** Why it can't be read, and what helps. @param {string} error */
function unreadable(error) {
  const why = error.replace(/^run '[^']*': /, "");
  return NOT_OURS.test(why) ? `${why}. If this is a run of probe, put the file back from a copy.` : `${why}.`;
}

const NOT_ALL = "Nothing was found, but not everything could be looked for.";

/** The verdict comes first; what is in order, or couldn't be judged, stands behind it. @type {Record<string, (sentence: string) => string>} */
const SAYS = {
  fine: (sentence) => `Nothing is wrong. ${sentence}`,
  withheld: (sentence) => `Nothing was found, but not everything could be judged. ${sentence}`,
};

/** @param {NonNullable<Run["verdict"]>} found */
function judgement({ worst, whole }) {
  if (!worst) return whole ? "Nothing was found." : NOT_ALL;
  const said = worst.sentence.replace(UNIT, "\u00a0");
  if (worst.kind === "fine" && !whole) return `${NOT_ALL} ${said}`;
  return SAYS[worst.kind]?.(said) ?? said;
}

/** @param {Run} run */
export function verdict({ verdict: found, error, state }) {
  if (error !== null) return unreadable(error);
  if (!found) return "Not looked at yet";
  if (found.failed !== null) return `The findings of this run can't be worked out: ${found.failed}. Open the run: its numbers may still be there.`;
  if (state === "unknown") return "Nothing is recorded here yet. The numbers appear by themselves once a training records here.";
  const said = judgement(found);
  return found.damaged ? `${said} ${many(found.damaged, "damaged file")} left out: open the run to see what helps.` : said;
}

/** "71 of 79 GiB", the fullest device. @param {Run} run */
function memory({ verdict: found }) {
  if (!found || found.peak_bytes === null) return "";
  return ofTotal(found.peak_bytes, found.device_bytes);
}

/** @param {number} part @param {number | null} all null where that isn't known */
export function ofTotal(part, all) {
  if (all === null) return bytes(part);
  const [used, unit] = bytes(part).split(" ");
  const [whole, other] = bytes(all).split(" ");
  return unit === other ? `${used} of ${whole} ${unit}` : `${used} ${unit} of ${whole} ${other}`;
}

/** A line breaks nowhere in it. @param {string} text */
export const kept = (text) => text.replaceAll(" ", "\u00a0");

/** Step, memory and alarms, as far as they are known: a line breaks between them. @param {Run} run */
export function facts(run) {
  const alarms = run.verdict?.alarms ? many(run.verdict.alarms, "alarm") : "";
  const parts = [run.step === null ? "" : `step ${run.step}`, memory(run), alarms];
  return parts.filter(Boolean).map(kept);
}

/** "step 412 · 71 of 79 GiB · 1 alarm" @param {Run} run */
export const inShort = (run) => facts(run).join(" · ");

const WAITED_FOR = ["busy", "starting", "restarting", "autorestarting", "unknown"]; //  after a reload it is unknown until the kernel answers

/**
 * Why a cell has no live panel.
 * @param {boolean} trusted whether JupyterLab trusts the output
 * @param {boolean} widgets whether JupyterLab has Jupyter widgets
 * @param {string | null | undefined} status the kernel's; null without a kernel, undefined outside a notebook
 */
export function whyNoPanel(trusted, widgets, status) {
  if (!widgets) return "JupyterLab has no widgets here, which the live panel needs: install ipywidgets and anywidget where it runs.";
  if (!trusted) return "JupyterLab shows no live panel in an output that it doesn't trust: run the command Trust Notebook.";
  if (status === undefined) return "The live panel isn't shown here.";
  if (status === null || status === "dead" || status === "terminating") return "The live panel needs a kernel, and none is running.";
  if (WAITED_FOR.includes(status)) return "The live panel waits for the kernel, which is busy or hasn't answered this page yet.";
  return "The kernel has no live panel for this cell any more: open a tab, or run the code below the picture.";
}
