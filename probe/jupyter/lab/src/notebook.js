// A new notebook at a finding: the run opened, and the rows that the finding stands on.

import { stepOf } from "../../../views/panel/static/src/beneath.js";
import { findings } from "./server.js";

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
    markdown(finding ? `## ${finding.sentence}\n\n${finding.why || ""}` : "## A run of probe"),
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

/** A run's words stay text: no markup of theirs. @param {string} text */
const markdown = (text) => cell("markdown", text.replace(/([\\`*_[\]<>|])/g, "\\$1"), {});

/** @param {string} text */
const code = (text) => cell("code", text, { execution_count: null, outputs: [] });

/**
 * Make the notebook in the server's directory, and open it.
 * @param {import("@jupyterlab/application").JupyterFrontEnd} app
 * @param {string} run
 * @param {Finding | null} finding what it is about; null where nothing was found, or nobody has looked
 */
export async function openNotebook(app, run, finding) {
  const { contents, kernelspecs } = app.serviceManager;
  const whole = finding && !finding.sql ? await withQuery(run, finding) : finding;
  const made = await contents.newUntitled({ type: "notebook", path: "" });
  await contents.save(made.path, { type: "notebook", format: "json", content: notebookOf(run, whole, kernelOf(kernelspecs.specs)) });
  return app.commands.execute("docmanager:open", { path: made.path });
}

/**
 * A finding with its query, where that is too long to be told with it.
 * @param {string} run
 * @param {Finding} finding
 * @returns {Promise<Finding>}
 */
async function withQuery(run, finding) {
  const found = await findings(run).catch(() => []);
  const same = found.find((/** @type {any} */ one) => one.name === finding.name && one.where?.rank === finding.where.rank && one.where?.phase === finding.where.phase);
  return { ...finding, sql: same?.evidence_sql ?? "" };
}

/**
 * Which kernel runs it, so that nobody is asked: the default one, where that speaks Python.
 * @param {import("@jupyterlab/services").KernelSpec.ISpecModels | null} specs
 */
function kernelOf(specs) {
  const known = Object.values(specs?.kernelspecs ?? {}).filter((one) => one?.language === "python");
  const spec = known.find((one) => one?.name === specs?.default) ?? known[0];
  return spec ? { kernelspec: { name: spec.name, display_name: spec.display_name, language: spec.language } } : {};
}
