// Below the runs: for each GPU of the server's machine who holds memory there; without one, what kernels have resident.

import { node, say } from "../../../views/panel/static/src/dom.js";
import { activity, deviceName, gaps, heading, held, holderName, holderTip, inShort, lead, pids, place, usage } from "./memory_words.js";
import { arrange, arrowKeys } from "./rows.js";

/** @import { Memory } from "./memory.js" */
/** @import { Device, Holder, Session } from "./types.js" */

const CLOSED = "probe-lab:memory-closed";

/**
 * What a person can do here.
 * @typedef {object} Acts
 * @property {(session: Session) => void} session open a notebook or console
 * @property {(run: string) => void} open open the tab of a run
 * @property {(holder: Holder) => void} shutDown end a kernel, once the person has confirmed it
 * @property {(run: string) => string} titled what a run is called
 */

export class MemorySection {
  /**
   * @param {Memory} memory
   * @param {Acts} acts
   */
  constructor(memory, acts) {
    this.memory = memory;
    this.acts = acts;
    this.title = node("span", { class: "probe-memory-title" });
    this.short = node("span", { class: "probe-memory-short" });
    this.summary = node("summary", {}, this.title, this.short);
    this.note = node("p", { class: "probe-memory-note" });
    this.list = node("div", { class: "probe-devices" });
    this.root = node("details", { class: "probe-memory", hidden: true, open: !wasClosed(), on: { toggle: () => keepClosed(!this.root.open) } }, this.summary, this.note, this.list);
    arrowKeys(this.list, "button.probe-holder-name");
    /** @type {Map<string, DeviceRows>} */
    this.devices = new Map();
    memory.changed.connect(() => this.draw());
  }

  /** Unfold it, and go there. */
  show() {
    this.root.open = true;
    this.summary.focus();
  }

  draw() {
    const { held: told, error } = this.memory;
    const devices = told?.devices.filter((one) => one.number !== null || one.holders.length) ?? [];
    this.root.hidden = !devices.length && !told?.why && !error;
    say(this.title, told ? heading(told) : "Memory");
    say(this.short, told ? inShort(told) : "");
    say(this.note, error ? `Memory can't be read: ${error}.${told ? " The last known state is shown." : ""}` : told ? lead(told) : "");
    const now = Date.now() / 1000;
    arrange(this.list, devices.map((one) => this._device(one, now)));
  }

  /** @param {Device} device @param {number} now */
  _device(device, now) {
    const name = deviceName(device);
    const rows = this.devices.get(name) ?? new DeviceRows(name, this.acts);
    this.devices.set(name, rows);
    rows.write(device, now);
    return rows.root;
  }
}

class DeviceRows {
  /** @param {string} name @param {Acts} acts */
  constructor(name, acts) {
    this.acts = acts;
    this.usage = node("span", { class: "probe-bytes" });
    this.gaps = node("p", { class: "probe-memory-note" });
    this.list = node("ul", { class: "probe-holders", "aria-label": `Memory held on ${name}` });
    this.root = node("section", { class: "probe-device" }, node("div", { class: "probe-device-head" }, node("h3", { text: name }), this.usage), this.list, this.gaps);
    /** @type {Map<string, HolderRow>} */
    this.rows = new Map();
  }

  /** @param {Device} device @param {number} now */
  write(device, now) {
    say(this.usage, usage(device));
    say(this.gaps, gaps(device));
    /** @type {Map<string, HolderRow>} */
    const rows = new Map();
    for (const holder of device.holders) {
      const key = keyOf(holder);
      const row = this.rows.get(key) ?? new HolderRow(this.acts);
      row.write(holder, now);
      rows.set(key, row);
    }
    this.rows = rows;
    arrange(this.list, [...rows.values()].map(({ root }) => root));
  }
}

/** What makes it another one. @param {Holder} holder */
const keyOf = ({ what, kernel, run, path, processes }) => JSON.stringify([what, kernel?.id, run?.run, run?.who, path, kernel || run || path ? null : processes[0].pid]);

/** One who holds memory. */
class HolderRow {
  /** @param {Acts} acts */
  constructor(acts) {
    this.acts = acts;
    /** As it was written last. @type {Holder | null} */
    this.holder = null;
    this.name = node("button", { type: "button", class: "probe-holder-name", on: { click: () => this._open() } });
    this.bytes = node("span", { class: "probe-bytes" });
    this.activity = node("span", { class: "probe-activity" });
    this.pids = node("span", { class: "probe-pids" });
    this.run = node("button", { type: "button", class: "probe-link", on: { click: () => this.holder?.run && acts.open(this.holder.run.run) } });
    this.end = node("button", { type: "button", class: "probe-link", text: "Shut down kernel", on: { click: () => this.holder && acts.shutDown(this.holder) } });
    this.root = node("li", {}, this.name, this.bytes, node("div", { class: "probe-line" }, this.activity, this.pids), node("div", { class: "probe-line" }, this.run, this.end));
  }

  /** @param {Holder} holder @param {number} now */
  write(holder, now) {
    const { what, kernel, run } = holder;
    this.holder = holder;
    const name = holderName(holder, this.acts.titled);
    this.root.dataset.what = what;
    say(this.name, name);
    this.name.disabled = !this._target();
    this.name.title = holderTip(holder);
    say(this.bytes, held(holder.bytes));
    say(this.activity, activity(holder, now));
    this.activity.title = kernel ? holderTip(holder) : "";
    say(this.pids, pids(holder).join(", "));
    this.run.hidden = !(kernel && run);
    say(this.run, run ? `Open run ${this.acts.titled(run.run)}, ${place(run)}` : "");
    this.end.hidden = !kernel;
    this.end.setAttribute("aria-label", `Shut down kernel of ${name}`);
  }

  /** What a click on its name opens; undefined where that is nothing. */
  _target() {
    const { kernel, run, path } = this.holder ?? {};
    const session = kernel?.sessions[0] ?? (path ? { path, name: path, type: "notebook" } : undefined);
    if (session) return () => this.acts.session(session);
    return run && !kernel ? () => this.acts.open(run.run) : undefined;
  }

  _open() {
    this._target()?.();
  }
}

function wasClosed() {
  try {
    return localStorage.getItem(CLOSED) === "1";
  } catch {
    return false; //  a browser that keeps nothing
  }
}

/** @param {boolean} closed */
function keepClosed(closed) {
  try {
    localStorage.setItem(CLOSED, closed ? "1" : "0");
  } catch {
    //  it is unfolded again with the next page
  }
}
