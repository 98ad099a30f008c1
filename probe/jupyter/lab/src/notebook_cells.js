// What stands in a notebook at a finding: the run opened, and the rows that the finding stands on.

import { stepOf } from "../../../views/panel/static/src/beneath.js";

/** @import { Finding } from "../../../views/panel/static/src/finding_types.js" */

/** @param {string} text as Python writes it */
const quoted = (text) => JSON.stringify(text);

/** @param {string} text SQL, inside three quotes */
const block = (text) => `"""\n${text.trim().replaceAll("\\", "\\\\").replaceAll('"""', '\\"\\"\\"')}\n"""`;

/**
 * The notebook's content.
 * @param {string} path of the run, from where the notebook lies
 * @param {Finding | null} finding null where there is none
 * @param {object} metadata of the notebook
 */
export function notebookOf(path, finding, metadata = {}) {
  const step = stepOf(finding);
  const cells = [
    markdown(...(finding ? [`## ${plain(finding.sentence)}`, plain(finding.why || "")] : ["## A run of probe"])),
    code(`import probe\n\nrun = probe.open(${quoted(path)})\nrun.panel()`),
  ];
  if (finding?.sql) cells.push(markdown("The rows behind this:"), code(`run.sql(${block(finding.sql)})`));
  if (step !== null) cells.push(markdown(`What was recorded in step ${step}:`), code(`run.sql("select * from memory where step = ${Number(step)}")`));
  return { cells, metadata, nbformat: 4, nbformat_minor: 5 };
}

let last = 0;

/** @param {string} cell_type @param {string} source @param {object} more */
function cell(cell_type, source, more) {
  last += 1;
  return { cell_type, id: `probe-${Date.now().toString(36)}-${last}`, metadata: {}, source, ...more };
}

/** @param {string} text */
const inOneLine = (text) => text.trim().replace(/\s+/g, " ");

/** What begins a formula. JupyterLab looks for it once more in what is drawn, so that an escape alone isn't enough. */
const FORMULA = /[$\\]/;

/** A run's words stay text: no markup and no formula of theirs. @param {string} text */
function plain(text) {
  const line = inOneLine(text);
  const escaped = line.replace(/([`*_[\]<>|~&#])|([$\\])/g, (one, mark) => (mark ? `\\${one}` : `&#${one.charCodeAt(0)};`));
  const begun = escaped.replace(/^([+=-])/, "\\$1").replace(/^(\d+)([.)])/, "$1\\$2");
  return FORMULA.test(line) ? `<span class="mathjax_ignore">${begun}</span>` : begun;
}

/** @param {string[]} paragraphs */
const markdown = (...paragraphs) => cell("markdown", paragraphs.filter(Boolean).join("\n\n"), {});

/** @param {string} text */
const code = (text) => cell("code", text, { execution_count: null, outputs: [] });

/**
 * The same finding among those of a whole answer: another one's rows would be wrong. A long sentence was told in part.
 * @param {Finding} finding
 * @param {any[]} found
 */
export function sameAs(finding, found) {
  const said = finding.sentence;
  const says = (/** @type {string} */ text) => text === said || (said.endsWith("…") && text.startsWith(said.slice(0, -1)));
  const places = Object.entries(finding.where);
  return found.find((one) => one.name === finding.name && places.every(([name, value]) => one.where?.[name] === value) && says(inOneLine(one.sentence)));
}
