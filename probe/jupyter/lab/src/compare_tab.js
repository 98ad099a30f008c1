// Two runs beside each other, as `probe compare` tells it.

import { MainAreaWidget } from "@jupyterlab/apputils";
import { Widget } from "@lumino/widgets";
import { node } from "../../../views/panel/static/src/dom.js";
import { configRow, findingRow, metricRow } from "./compared.js";
import { compared } from "./server.js";

/** @import { Row } from "./compared.js" */

/** @type {[key: string, title: string, none: string, row: (told: Record<string, any>) => Row][]} */
const PARTS = [
  ["metrics", "Numbers", "Neither run has any.", metricRow],
  ["config", "Configuration", "Both runs have the same configuration.", configRow],
  ["findings", "Findings", "Nothing was found in either run.", findingRow],
];

/**
 * A frame's rows.
 * @param {string} name
 * @param {Row[]} rows
 */
function table(name, rows) {
  const columns = Object.keys(rows[0]);
  const head = node("tr", {}, ...columns.map((one) => node("th", { scope: "col", text: one.replaceAll("_", " ") })));
  const lines = rows.map((row) => node("tr", {}, ...columns.map((one) => node("td", { text: row[one] }))));
  return node("table", { class: `probe-${name}` }, node("thead", {}, head), node("tbody", {}, ...lines));
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
    const parts = PARTS.flatMap(([key, title, none, row]) => [node("h2", { text: title }), found[key].length ? node("div", { class: "probe-scroll", tabindex: "0" }, table(key, found[key].map(row))) : node("p", { text: none })]);
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
