// Two runs beside each other, as `probe compare` tells it.

import { MainAreaWidget } from "@jupyterlab/apputils";
import { Widget } from "@lumino/widgets";
import { node } from "../../../views/panel/static/src/dom.js";
import { compared } from "./server.js";

/** @type {[key: string, title: string, none: string][]} */
const PARTS = [
  ["metrics", "Numbers", "Both runs have the same numbers."],
  ["config", "Configuration", "Both runs have the same configuration."],
  ["findings", "Findings", "Nothing was found in either run."],
];

/**
 * A frame's rows.
 * @param {Record<string, unknown>[]} rows
 */
function table(rows) {
  const columns = Object.keys(rows[0]);
  const head = node("tr", {}, ...columns.map((name) => node("th", { scope: "col", text: name.replaceAll("_", " ") })));
  const lines = rows.map((row) => node("tr", {}, ...columns.map((name) => node("td", { text: spelled(row[name]) }))));
  return node("table", {}, node("thead", {}, head), node("tbody", {}, ...lines));
}

/** @param {unknown} value */
function spelled(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number") return Number.isInteger(value) ? value.toLocaleString("en") : Number(value.toPrecision(4)).toLocaleString("en", { maximumSignificantDigits: 4 });
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

class CompareTab extends Widget {
  /**
   * @param {string} a
   * @param {string} b
   */
  constructor(a, b) {
    super();
    this.runs = /** @type {const} */ ([a, b]);
    this.addClass("probe-compare");
    this.node.append(node("p", { text: "Reading both runs …" }));
    compared(a, b).then((found) => this._show(found), (error) => this._fail(error));
  }

  /** @param {any} found */
  _show(found) {
    const [a, b] = this.runs;
    const parts = PARTS.flatMap(([key, title, none]) => [node("h2", { text: title }), found[key].length ? node("div", { class: "probe-scroll", tabindex: "0" }, table(found[key])) : node("p", { text: none })]);
    this.node.replaceChildren(node("h1", { text: `${a} and ${b}` }), node("p", { text: `a is ${a}, b is ${b}.` }), ...parts);
  }

  /** @param {unknown} error */
  _fail(error) {
    this.node.replaceChildren(node("p", { role: "alert", text: `These runs can't be compared: ${error instanceof Error ? error.message : error}` }));
  }
}

/**
 * @param {string} a
 * @param {string} b
 * @param {import("@jupyterlab/ui-components").LabIcon} icon
 */
export function compareArea(a, b, icon) {
  const area = new MainAreaWidget({ content: new CompareTab(a, b) });
  area.id = `probe-lab-compare-${encodeURIComponent(a)}-${encodeURIComponent(b)}`; //  the layout is restored by it
  area.title.label = "Compare runs";
  area.title.caption = `${a} and ${b}`;
  area.title.icon = icon;
  area.title.closable = true;
  return area;
}
