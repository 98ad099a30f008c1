// A new notebook at a finding.

import { notebookOf, sameAs } from "./notebook_cells.js";
import { findings } from "./server.js";

/** @import { Finding } from "../../../views/panel/static/src/finding_types.js" */

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
  return { ...finding, sql: sameAs(finding, found)?.evidence_sql ?? "" };
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
