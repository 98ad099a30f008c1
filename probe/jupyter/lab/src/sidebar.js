// The list of runs at the side: whether each is live, and the worst that was found in it.

import { Widget } from "@lumino/widgets";
import { notebookLabel } from "../../../views/panel/static/src/beneath.js";
import { node, say } from "../../../views/panel/static/src/dom.js";
import { iconOf } from "../../../views/panel/static/src/kind_icon.js";
import { ORDERS } from "./order.js";
import { arrange, arrowKeys } from "./rows.js";
import { age, facts, kindOf, standing, title, verdict } from "./words.js";

/** @import { Listing } from "./listing.js" */
/** @import { Run } from "./types.js" */

export class Sidebar extends Widget {
  /**
   * @param {Listing} listing
   * @param {{open: (run: string) => void, compare: (a: string, b: string) => void, notebook: (run: Run) => void}} acts
   * @param {HTMLElement} below what stands below the runs
   */
  constructor(listing, acts, below) {
    super();
    this.listing = listing;
    this.acts = acts;
    this.id = "probe-lab-runs";
    this.addClass("probe-side");
    /** @type {Set<string>} */
    this.chosen = new Set();
    /** @type {Map<string, Row>} */
    this.rows = new Map();
    this.filter = node("input", { type: "search", class: "jp-mod-styled", placeholder: "Filter runs", "aria-label": "Filter runs", on: { input: () => this.draw() } });
    this.order = node("select", { class: "jp-mod-styled", "aria-label": "Order", on: { change: () => this.draw() } }, node("option", { value: "newest", text: "Newest first" }), node("option", { value: "worst", text: "Worst first" }), node("option", { value: "name", text: "By name" }));
    this.compare = node("button", { type: "button", class: "jp-mod-styled", text: "Compare", on: { click: () => this._compare() } });
    this.list = node("ul", { class: "probe-runs", "aria-label": "Runs" });
    this.note = node("p", { class: "probe-note", role: "status" });
    this.node.append(node("h2", { text: "Runs" }), node("div", { class: "probe-tools" }, this.filter, this.order, this.compare), this.note, this.list, below);
    arrowKeys(this.list, "button.probe-run-name");
    listing.changed.connect(this.draw, this);
    this.draw();
  }

  /** @override */
  onAfterShow() {
    this.listing.look();
  }

  draw() {
    const { runs, error, cut, known, missing } = this.listing;
    const asked = this.filter.value.trim().toLowerCase();
    const shown = runs.filter((run) => `${title(run)} ${run.run} ${run.state} ${verdict(run)}`.toLowerCase().includes(asked)).sort(ORDERS[this.order.value]);
    const names = new Set(runs.map(({ run }) => run));
    for (const name of this.chosen) if (!names.has(name)) this.chosen.delete(name);
    for (const name of this.rows.keys()) if (!shown.some(({ run }) => run === name)) this.rows.delete(name);
    const now = Date.now() / 1000;
    arrange(this.list, shown.map((run) => {
      const row = this.rows.get(run.run) ?? this._row(run);
      row.write(run, now, this.chosen.has(run.run));
      return row.root;
    }));
    this.compare.disabled = this.chosen.size !== 2;
    this.compare.title = this.chosen.size === 2 ? "" : "Choose two runs by their boxes";
    say(this.note, noted({ error, known, cut, missing, all: runs.length, shown: shown.length }));
  }

  /** @param {Run} run */
  _row(run) {
    const row = new Row({ open: () => this.acts.open(run.run), notebook: (now) => this.acts.notebook(now), choose: (on) => this._choose(run.run, on) });
    this.rows.set(run.run, row);
    return row;
  }

  /**
   * @param {string} run
   * @param {boolean} on
   */
  _choose(run, on) {
    if (on) this.chosen.add(run);
    else this.chosen.delete(run);
    this.draw();
  }

  _compare() {
    const [a, b] = this.chosen;
    if (a && b) this.acts.compare(a, b);
  }
}

/** @param {{error: string, known: boolean, cut: boolean, missing: string[], all: number, shown: number}} of */
function noted({ error, known, cut, missing, all, shown }) {
  if (error) return `The list of runs can't be loaded: ${error}. probe tries again by itself${all ? "; the list shows the last known state" : ""}.`;
  if (!known) return "Looking for runs …";
  const gone = missing.map((one) => `There is no directory ${one} on the server: make it, or correct it in Settings → probe.`);
  return [...gone, stated(cut, all, shown)].filter(Boolean).join(" ");
}

/** @param {boolean} cut @param {number} all @param {number} shown */
function stated(cut, all, shown) {
  if (!all) return "There is no run below this server's directory yet. A training that records one there appears by itself; name other directories in Settings → probe.";
  if (!shown) return "No run fits the filter: empty it to see all.";
  return cut ? "There are more directories than are looked through: name the ones with runs in Settings → probe." : "";
}

/** One run. */
class Row {
  /** @param {{open: () => void, notebook: (run: Run) => void, choose: (on: boolean) => void}} acts */
  constructor(acts) {
    this.kind = "";
    /** As it was written last. @type {Run | null} */
    this.run = null;
    this.box = node("input", { type: "checkbox", on: { change: () => acts.choose(this.box.checked) } });
    this.icon = node("span", { class: "probe-kind", "aria-hidden": "true" });
    this.name = node("button", { type: "button", class: "probe-run-name", on: { click: acts.open } });
    this.state = node("span", { class: "probe-state" });
    this.age = node("span", { class: "probe-age" });
    /** Step, memory and alarms. */
    this.facts = [0, 1, 2].map(() => node("span", { class: "probe-fact" }));
    this.verdict = node("p", { class: "probe-verdict" });
    this.notebook = node("button", { type: "button", class: "probe-link", text: "Open notebook", on: { click: () => this.run && acts.notebook(this.run) } });
    const line = node("div", { class: "probe-line" }, this.state, this.age, ...this.facts);
    this.root = node("li", {}, this.box, this.icon, node("div", { class: "probe-about" }, this.name, line, this.verdict, this.notebook));
  }

  /**
   * @param {Run} run
   * @param {number} now
   * @param {boolean} chosen
   */
  write(run, now, chosen) {
    this.run = run;
    const kind = kindOf(run);
    if (kind !== this.kind) {
      this.kind = kind;
      this.root.dataset.kind = kind;
      this.icon.replaceChildren(iconOf(/** @type {any} */ (kind)));
    }
    this.box.checked = chosen;
    this.box.setAttribute("aria-label", `Choose ${title(run)} to compare`);
    say(this.name, title(run));
    this.name.title = run.run;
    this.root.dataset.state = run.error === null ? run.state : "unknown";
    say(this.state, standing(run, now));
    // Of one that has ended it is said when it did.
    say(this.age, ["live", "silent", "unknown"].includes(run.state) ? age(run, now) : "");
    this.state.title = age(run, now);
    const known = facts(run);
    this.facts.forEach((one, at) => say(one, known[at] ?? ""));
    say(this.verdict, verdict(run));
    this.verdict.title = run.verdict?.worst?.why ?? "";
    this.notebook.hidden = !run.verdict?.worst;
    say(this.notebook, notebookLabel(run.verdict?.worst ?? null));
  }
}
