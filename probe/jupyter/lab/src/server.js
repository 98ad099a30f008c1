// What is asked of the Jupyter server: its address, its login and its XSRF token come from JupyterLab's own settings, so
// that it works behind every proxy that JupyterLab works behind.

import { PageConfig, URLExt } from "@jupyterlab/coreutils";
import { ServerConnection } from "@jupyterlab/services";

/** @import { Held, Run } from "./types.js" */

/** A poll must not keep a server alive that nobody uses. */
export const UNSEEN = "no_track_activity=1";

/**
 * @param {string} path below the extension's address, with its query
 * @param {RequestInit} [init]
 */
export function ask(path, init = {}) {
  const settings = ServerConnection.makeSettings();
  return ServerConnection.makeRequest(URLExt.join(settings.baseUrl, "probe/api") + `/${path}`, init, settings);
}

export const UNREACHED = "the Jupyter server can't be reached";

/** A login that isn't there any more. */
const LOGGED_OUT = "you have to log in again: load the page again";

/**
 * An answer's JSON.
 * @param {string} path
 * @param {unknown} [body] what is posted; nothing is asked for
 */
export async function told(path, body) {
  return (await answered(path, body)).json();
}

/**
 * An answer that is one.
 * @param {string} path
 * @param {unknown} [body]
 */
async function answered(path, body) {
  const headers = { "Content-Type": "application/json" };
  const asked = ask(path, body === undefined ? {} : { method: "POST", body: JSON.stringify(body), headers });
  const answer = await asked.catch(() => null);
  if (!answer) throw new Error(UNREACHED);
  if (!answer.ok) throw new Error(await refusal(answer));
  return answer;
}

/**
 * Why an answer is none, as the server says it.
 * @param {Response} answer
 * @returns {Promise<string>}
 */
export async function refusal(answer) {
  if (answer.status === 403) return LOGGED_OUT;
  const found = await answer.json().catch(() => null);
  return found?.message || `the Jupyter server answered ${answer.status}`;
}

/**
 * The list, and whether the server knows the directories of the settings: one that was started again doesn't.
 * @returns {Promise<{runs: Run[], cut: boolean, missing: string[], settled: boolean}>}
 */
export async function runs() {
  const answer = await answered(`runs?${UNSEEN}`);
  return { ...(await answer.json()), settled: answer.headers.get("X-Probe-Settled") !== "no" };
}

/** @type {() => Promise<Held>} */
export const memory = () => told(`memory?${UNSEEN}`);

/**
 * @param {string} run
 * @param {object} content
 */
export const message = (run, content) => told(`message?run=${encodeURIComponent(run)}&${UNSEEN}`, content);

/** @param {string} run */
export const findings = (run) => told(`findings?run=${encodeURIComponent(run)}`);

/**
 * @param {string} a
 * @param {string} b
 */
export const compared = (a, b) => told(`compare?run=${encodeURIComponent(a)}&with=${encodeURIComponent(b)}`);

/** Where the files of this extension lie: code and no data, so they need no login. @param {string} name */
const own = (name) => URLExt.join(PageConfig.getOption("fullLabextensionsUrl"), "probe-lab", name);

/** @type {Promise<any> | undefined} */
let bundle;

/** The panel: the bundle that a cell loads, too. */
export function panelBundle() {
  if (!bundle) {
    const style = document.createElement("link");
    style.rel = "stylesheet";
    style.href = own("panel.css");
    document.head.append(style);
    bundle = import(/* webpackIgnore: true */ own("panel.js"));
    bundle.catch(() => { bundle = undefined; });
  }
  return bundle;
}

/** plotly.js, loaded when a chart asks for it first; a failure is tried again with the next chart. */
export function offerPlotly() {
  const page = /** @type {{__probe_plotly?: Promise<unknown>, Plotly?: unknown}} */ (globalThis);
  if (Object.getOwnPropertyDescriptor(page, "__probe_plotly")) return; //  a notebook has brought it
  /** @type {Promise<unknown> | null} */
  let library = null;
  Object.defineProperty(page, "__probe_plotly", {
    configurable: true,
    get() {
      library ??= loaded().catch((error) => {
        library = null;
        throw error;
      });
      return library;
    },
    set(value) {
      library = value;
    },
  });
}

async function loaded() {
  const answer = await ask("plotly.js");
  if (!answer.ok) throw new Error("plotly.js did not come");
  // By a script element: it sends no XSRF token itself, so its text is fetched first.
  const url = URL.createObjectURL(new Blob([await answer.text()], { type: "text/javascript" }));
  try {
    await new Promise((done, failed) => {
      const script = document.createElement("script");
      script.src = url;
      script.addEventListener("load", done);
      script.addEventListener("error", () => failed(new Error("plotly.js can't be run")));
      document.head.append(script);
    });
  } finally {
    URL.revokeObjectURL(url);
  }
  return /** @type {{Plotly?: unknown}} */ (globalThis).Plotly;
}
