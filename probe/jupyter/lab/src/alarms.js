// Alarms of runs as notifications of JupyterLab: each is told once, and marked where it is found no longer.

import { isRecent, title } from "./words.js";

/** @import { Notification } from "@jupyterlab/apputils" */
/** @import { Alarm, Run } from "./types.js" */

const HEARD_MS = 3600_000; //  so long the other pages of a browser take an alarm as told
const AGAIN_MS = 600_000; //  one that comes and goes, and was dismissed, wakes nobody more often
const MOST = 3; //  of one run at once: the worst; all of them stand in its panel
const SHORTLY_MS = 8000;

/** What is told of an alarm. @typedef {{run: string, id: string, at: number, stands: boolean, text: string}} Told */

export class Alarms {
  /**
   * @param {(run: string) => void} open
   * @param {Pick<typeof Notification, "warning" | "update">} bell
   */
  constructor(open, bell) {
    this.open = open;
    this.bell = bell;
    /** Whether the person wants any. */
    this.wanted = true;
    /** @type {Map<string, Told>} */
    this.told = new Map();
    /** Those that were live, or had been a moment ago, when somebody looked. @type {Set<string>} */
    this.lived = new Set();
  }

  /** What is known of all runs now. @param {Run[]} runs */
  hear(runs) {
    for (const run of runs) {
      if (isRecent(run)) this.lived.add(run.run);
      if (run.error === null && run.verdict && run.verdict.failed === null) this._compare(run, run.verdict);
    }
  }

  /** @param {Run} run @param {NonNullable<Run["verdict"]>} verdict */
  _compare(run, verdict) {
    const found = new Map(verdict.all_alarms.map((alarm) => [keyOf(run, alarm), alarm]));
    // Of a run that had ended before anybody looked the list tells; nobody has to be woken for it.
    let left = this.wanted && this.lived.has(run.run) ? MOST : 0;
    for (const [key, alarm] of found) if (this._hear(key, run, alarm, left > 0)) left -= 1;
    // Where something couldn't be looked for, what isn't found may be there all the same.
    if (!verdict.whole) return;
    for (const [key, one] of this.told) if (one.run === run.run && one.stands && !found.has(key)) this._withdraw(one);
  }

  /**
   * Whether it was told now.
   * @param {string} key
   * @param {Run} run
   * @param {Alarm} alarm
   * @param {boolean} aloud
   */
  _hear(key, run, alarm, aloud) {
    const known = this.told.get(key);
    if (known?.stands) return false;
    const text = `${title(run)}: ${alarm.sentence}`;
    const how = { autoClose: /** @type {const} */ (false), actions: [{ label: "Go there", callback: () => this.open(run.run) }] };
    if (known) {
      Object.assign(known, { stands: true, text });
      if (!known.id) return false; //  another page tells of it, or nobody wanted to hear
      if (this.bell.update({ id: known.id, message: text, type: "warning", ...how })) return true;
      if (!aloud || Date.now() - known.at < AGAIN_MS) return false;
    } else if (!aloud || !heardFirst(key)) {
      this.told.set(key, { run: run.run, id: "", at: 0, stands: true, text });
      return false;
    }
    this.told.set(key, { run: run.run, id: this.bell.warning(text, how), at: Date.now(), stands: true, text });
    return true;
  }

  /** It is found no longer; one that the person has dismissed stays dismissed. @param {Told} one */
  _withdraw(one) {
    one.stands = false;
    const actions = [{ label: "Go there", callback: () => this.open(one.run) }];
    if (one.id) this.bell.update({ id: one.id, message: `Found no longer in ${one.text}`, type: "info", autoClose: SHORTLY_MS, actions });
  }
}

/** What makes an alarm another one: in a job that was started again a rank can die again. @param {Run} run @param {Alarm} alarm */
const keyOf = (run, alarm) => JSON.stringify([run.run, run.started_s, alarm.name, alarm.attempt, alarm.rank, alarm.process]);

/** Of several pages of one browser one tells an alarm. @param {string} key */
function heardFirst(key) {
  const place = `probe-lab:alarm:${key}`;
  try {
    if (Date.now() - Number(localStorage.getItem(place) ?? 0) < HEARD_MS) return false;
    localStorage.setItem(place, String(Date.now()));
  } catch {
    return true; //  a browser that keeps nothing
  }
  return true;
}
