// probe in JupyterLab: a list of runs, their panels as tabs, a line in the status bar, and alarms.

import { ILabShell, ILayoutRestorer } from "@jupyterlab/application";
import { Dialog, ICommandPalette, Notification, showDialog, WidgetTracker } from "@jupyterlab/apputils";
import { PathExt } from "@jupyterlab/coreutils";
import { ABCWidgetFactory, DocumentWidget } from "@jupyterlab/docregistry";
import { ILauncher } from "@jupyterlab/launcher";
import { IRenderMimeRegistry } from "@jupyterlab/rendermime";
import { ISettingRegistry } from "@jupyterlab/settingregistry";
import { IStatusBar } from "@jupyterlab/statusbar";
import { LabIcon } from "@jupyterlab/ui-components";
import { Widget } from "@lumino/widgets";
import { ASKS_FOR_NOTEBOOK } from "../../../views/panel/static/src/beneath.js";
import { Alarms } from "./alarms.js";
import { tabFactory } from "./cell.js";
import { compareArea } from "./compare_tab.js";
import { copyFactory } from "./copy.js";
import { Listing } from "./listing.js";
import { Memory } from "./memory.js";
import { MemorySection } from "./memory_section.js";
import { holderName, inShort as memoryInShort, mostBy } from "./memory_words.js";
import { openNotebook } from "./notebook.js";
import { PanelTab, panelArea } from "./panel_tab.js";
import { told, UNREACHED } from "./server.js";
import { Sidebar } from "./sidebar.js";
import { inShort, mayBeRun, namesOf, title, verdict } from "./words.js";

/** @import { JupyterFrontEnd } from "@jupyterlab/application" */
/** @import { DocumentRegistry } from "@jupyterlab/docregistry" */
/** @import { Holder, Session } from "./types.js" */
/** @import { Finding } from "../../../views/panel/static/src/finding_types.js" */

const ID = "probe-lab:plugin"; //  the package's name and the schema's file, by which the settings are found
const FACTORY = "Run panel";
const NO_RUN = "There is no run below this server's directory yet. A training that records one there is listed by itself.";
const SHORTLY = { autoClose: /** @type {const} */ (8000) }; //  without it JupyterLab says it behind the bell alone

const icon = new LabIcon({
  name: "probe-lab:icon",
  svgstr: '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24"><path class="jp-icon3" fill="#616161" d="M3 21V11h3v10H3zm5 0V4h3v17H8zm5 0v-7h3v7h-3zm5 0V8h3v13h-3z"/></svg>',
});

/**
 * A double click on `run.json` in the file browser.
 * @extends {ABCWidgetFactory<DocumentWidget<PanelTab>>}
 */
class RunFactory extends ABCWidgetFactory {
  /**
   * @override
   * @param {DocumentRegistry.Context} context
   */
  createNewWidget(context) {
    const content = new PanelTab(PathExt.dirname(context.path) || ".");
    void context.ready.then(() => mayBeRun(context.model.toString()) || content.notOurs());
    const made = new DocumentWidget({ content, context });
    made.title.icon = icon;
    // Its label stays the file's name: JupyterLab renames the file of a document whose label is changed.
    made.title.caption = `probe: ${PathExt.dirname(context.path)}`;
    return made;
  }
}

/** All of it, put together. */
class Plugin {
  /** @param {JupyterFrontEnd} app @param {{shell: any, restorer: any, palette: any, launcher: any, status: any, settings: any, rendermime: any}} parts */
  constructor(app, parts) {
    this.app = app;
    this.parts = parts;
    this.listing = new Listing();
    this.alarms = new Alarms((run) => void this.open(run), Notification);
    /** @type {WidgetTracker<ReturnType<typeof panelArea>>} */
    this.tabs = new WidgetTracker({ namespace: "probe-lab" });
    /** @type {WidgetTracker<ReturnType<typeof compareArea>>} */
    this.comparisons = new WidgetTracker({ namespace: "probe-lab-compare" });
    /** Directories of the settings, as the server was told them last; null before. @type {string[] | null} */
    this.roots = null;
    /** Panels that are documents. @type {WidgetTracker<DocumentWidget<PanelTab>>} */
    this.documents = new WidgetTracker({ namespace: "probe-lab-document" });
    this.memory = new Memory();
    /** What a run is called. */
    this.titled = (/** @type {string} */ run) => title(this.listing.runs.find((one) => one.run === run) ?? /** @type {any} */ ({ run }));
    this.section = new MemorySection(this.memory, { session: (session) => void this._session(session), open: (run) => this.open(run), shutDown: (holder) => void this._shutDown(holder), titled: this.titled });
  }

  begin() {
    this._commands();
    this._sidebar();
    this._status();
    this._memoryStatus();
    this._documents();
    this._cells();
    this.listing.changed.connect(() => this.alarms.hear(this.listing.runs));
    this.listing.changed.connect(() => void this._settled());
    this.listing.changed.connect(() => this.section.draw()); //  by then it may be known what a run is called
    this.app.restored.then(() => this._settings()).finally(() => this.listing.look());
  }

  /** @param {string} run */
  open(run) {
    const names = namesOf(run, this.listing.runs);
    if (!this.parts.shell) return this._openDocument(names[0]);
    const found = this.tabs.find((one) => names.includes(one.content.run));
    const area = found ?? panelArea(run, icon);
    if (!found) void this.tabs.add(area);
    if (!area.isAttached) this.app.shell.add(area, "main", { mode: "tab-after" });
    this.app.shell.activateById(area.id);
    return area;
  }

  /** Notebook 7's pages show nothing in a main area but their own: there `run.json` is opened as a document. @param {string} run */
  _openDocument(run) {
    if (run.startsWith("/")) return Notification.info(`${run} isn't below this server's directory, and Notebook opens only files below it. Open the run in JupyterLab.`, SHORTLY);
    return this.app.commands.execute("docmanager:open", { path: PathExt.join(run, "run.json"), factory: FACTORY });
  }

  _commands() {
    const { commands } = this.app;
    const { palette, launcher, restorer } = this.parts;
    const args = { type: "object", properties: { run: { type: "string", description: "path of the run directory" } } };
    commands.addCommand("probe:open", { label: (given) => (given.run ? `Open ${given.run}` : "Open the Newest Run"), caption: "Show the panel of a run", icon, describedBy: { args }, execute: (given) => this._open(given) });
    commands.addCommand("probe:runs", { label: "Show Runs", caption: "Show the list of runs", icon, describedBy: { args: { type: "object", properties: {} } }, execute: () => this.app.shell.activateById("probe-lab-runs") });
    commands.addCommand("probe:notebook", { label: "Notebook with the Rows Behind the Worst Finding", icon, describedBy: { args }, execute: (given) => this._notebook(given) });
    commands.addCommand("probe:compare", { label: "Compare Two Runs", icon, describedBy: { args: { type: "object", properties: { a: { type: "string" }, b: { type: "string" } } } }, isVisible: (given) => Boolean(given.a && given.b), execute: (given) => this._compare(String(given.a), String(given.b)) });
    commands.addCommand("probe:memory", { label: "Show Memory by Kernel and Process", caption: "Show who holds memory of the server's GPUs", icon, isVisible: () => !this.section.root.hidden, describedBy: { args: { type: "object", properties: {} } }, execute: () => this._showMemory() });
    for (const command of ["probe:open", "probe:runs", "probe:notebook", "probe:memory"]) palette?.addItem({ command, category: "probe" });
    launcher?.add({ command: "probe:open", category: "Other", rank: 10 });
    restorer?.restore(this.tabs, { command: "probe:open", args: (/** @type {any} */ area) => ({ run: area.content.run }), name: (/** @type {any} */ area) => area.content.run });
    restorer?.restore(this.comparisons, { command: "probe:compare", args: (/** @type {any} */ { content: { runs: [a, b] } }) => ({ a, b }), name: (/** @type {any} */ { id }) => id });
  }

  /** @param {any} given */
  async _open({ run }) {
    if (run) return this.open(String(run));
    if (!this.listing.known) await this.listing.look();
    const newest = this.listing.newest ?? this.listing.runs[0];
    return newest ? this.open(newest.run) : Notification.info(NO_RUN, SHORTLY);
  }

  /** Of the run that is named, else of the newest: what was found worst. @param {any} given */
  async _notebook({ run }) {
    if (!this.listing.known) await this.listing.look();
    const { runs, newest } = this.listing;
    const found = run ? runs.find((one) => one.run === run) : (newest ?? runs[0]);
    if (!found) return Notification.info(run ? `There is no run ${run}.` : NO_RUN, SHORTLY);
    return this._openNotebook(found.run, found.verdict?.worst ?? null);
  }

  /** @param {string} run @param {Finding | null} finding */
  _openNotebook(run, finding) {
    return openNotebook(this.app, run, finding).catch((error) => Notification.error(`The notebook can't be made: ${error?.message ?? error}`));
  }

  /** @param {string} a @param {string} b */
  _compare(a, b) {
    const found = this.comparisons.find(({ content: { runs } }) => runs[0] === a && runs[1] === b);
    const area = found ?? compareArea(a, b, icon);
    if (!found) void this.comparisons.add(area);
    if (!area.isAttached) this.app.shell.add(area, "main");
    this.app.shell.activateById(area.id);
  }

  _sidebar() {
    const side = new Sidebar(this.listing, { open: (run) => this.open(run), compare: (a, b) => this._compare(a, b), notebook: (run) => void this._openNotebook(run.run, run.verdict?.worst ?? null) }, this.section.root);
    side.title.icon = icon;
    side.title.caption = "Runs (probe)";
    this.app.shell.add(side, "left", { rank: 550 });
    this.parts.restorer?.add(side, side.id);
  }

  _status() {
    if (!this.parts.status) return;
    const item = new Widget({ node: document.createElement("button") });
    item.addClass("probe-status");
    item.node.addEventListener("click", () => {
      const run = this.listing.newest;
      if (run) this.open(run.run);
    });
    this.listing.changed.connect(() => {
      const run = this.listing.newest;
      item.node.hidden = !run;
      item.node.textContent = run ? inShort(run) || title(run) : "";
      item.node.title = run ? `${title(run)}: ${verdict(run)}` : "";
      item.node.dataset.kind = run?.verdict?.worst?.kind ?? "";
    });
    this.parts.status.registerStatusItem("probe-lab:status", { item, align: "left", rank: 900 });
  }

  _memoryStatus() {
    if (!this.parts.status) return;
    const item = new Widget({ node: document.createElement("button") });
    item.addClass("probe-memory-status");
    item.node.hidden = true;
    item.node.addEventListener("click", () => this._showMemory());
    this.memory.changed.connect(() => {
      const { held } = this.memory;
      const said = held ? memoryInShort(held) : "";
      item.node.hidden = !said;
      item.node.textContent = said;
      item.node.title = held ? mostBy(held, this.titled, Date.now() / 1000) : "";
    });
    this.parts.status.registerStatusItem("probe-lab:memory", { item, align: "left", rank: 901 });
  }

  _showMemory() {
    this.app.shell.activateById("probe-lab-runs");
    this.section.show();
  }

  /** @param {Session} session */
  _session({ path, type }) {
    const { commands } = this.app;
    const opened = type === "console" && commands.hasCommand("console:open") ? commands.execute("console:open", { path, activate: true }) : commands.execute("docmanager:open", { path });
    return opened.catch((error) => Notification.error(`${path} can't be opened: ${error?.message ?? error}`));
  }

  /** @param {Holder} holder */
  async _shutDown(holder) {
    const { kernel } = holder;
    if (!kernel) return;
    const body = `${holderName(holder, this.titled)}: the kernel's variables and its child processes are lost. Files stay as they are.`;
    const { button } = await showDialog({ title: "Shut down this kernel?", body, buttons: [Dialog.cancelButton(), Dialog.warnButton({ label: "Shut Down" })] });
    if (!button.accept) return;
    await this.app.serviceManager.kernels.shutdown(kernel.id).catch((error) => Notification.error(`The kernel can't be shut down: ${error?.message ?? error}`));
    await this.memory.look();
  }

  _documents() {
    const { docRegistry } = this.app;
    docRegistry.addFileType({ name: "probe-run", displayName: "Run of probe", pattern: "^run\\.json$", extensions: [], mimeTypes: ["application/json"], contentType: "file", fileFormat: "text", icon });
    const factory = new RunFactory({ name: FACTORY, label: FACTORY, modelName: "text", fileTypes: ["probe-run"], defaultFor: ["probe-run"], readOnly: true });
    factory.widgetCreated.connect((_, made) => void this.documents.add(made));
    docRegistry.addWidgetFactory(factory);
    this.parts.restorer?.restore(this.documents, { command: "docmanager:open", args: (/** @type {any} */ one) => ({ path: one.context.path, factory: FACTORY }), name: (/** @type {any} */ one) => one.context.path });
  }

  /** A cell's panel, and `panel(where="tab")`, name a run by its whole path; a tab knows its run itself. */
  _cells() {
    const known = (/** @type {unknown} */ run) => namesOf(String(run), this.listing.runs)[0];
    const open = (/** @type {unknown} */ run) => void this.open(known(run));
    /** @type {{probeLab?: boolean}} */ (globalThis).probeLab = true;
    document.addEventListener("probe:open-tab", (event) => open(/** @type {CustomEvent} */ (event).detail?.run));
    document.addEventListener(ASKS_FOR_NOTEBOOK, (event) => {
      const { target, detail: { run, finding } } = /** @type {CustomEvent} */ (event);
      const tab = target instanceof Element ? target.closest(".probe-tab") : null;
      void this._openNotebook(tab instanceof HTMLElement && tab.dataset.run ? tab.dataset.run : known(run), finding);
    });
    const { rendermime } = this.parts;
    rendermime?.addFactory(tabFactory(open));
    rendermime?.addFactory(copyFactory({ open, listing: this.listing, rendermime, session: (place) => this._sessionAt(place) }));
  }

  /** The session of the notebook in which a node stands; undefined elsewhere. @param {Node} place */
  _sessionAt(place) {
    const around = [...this.app.shell.widgets("main")].find((one) => one.node.contains(place));
    return /** @type {any} */ (around)?.sessionContext;
  }

  /** Only where there is a place for it: Notebook 7 shows neither the list nor a status bar. @param {boolean} wanted @param {number} seconds */
  _wantMemory(wanted, seconds) {
    this.memory.set(wanted && Boolean(this.parts.shell), Math.max(seconds || 5, 1) * 1000);
  }

  async _settings() {
    const found = await this.parts.settings?.load(ID).catch(() => null);
    if (!found) return this._wantMemory(true, 0);
    const take = async () => {
      this._wantMemory(found.get("memory").composite !== false, Number(found.get("memoryRefresh").composite));
      this.alarms.wanted = found.get("alarms").composite !== false;
      this.listing.refreshMs = Math.max(Number(found.get("refresh").composite) || 3, 1) * 1000;
      const given = found.get("roots").composite;
      // A line that was just added is empty; and JupyterLab tells some changes twice.
      const roots = Array.isArray(given) ? given.map(String).filter((one) => one.trim()) : [];
      if (JSON.stringify(roots) !== JSON.stringify(this.roots ?? [])) await this._tellRoots(roots);
    };
    found.changed.connect(() => void take().then(() => this.listing.look()));
    await take();
  }

  /** @param {string[]} roots */
  _tellRoots(roots) {
    this.roots = roots;
    return told("roots", { roots }).catch((error) => {
      if (error.message !== UNREACHED) this.roots = []; //  it won't take them the next time, either
      Notification.warning(`probe: ${error.message}`);
    });
  }

  /** A server that was started again is told the directories of the settings once more. Tabs of runs that are listed again go on. */
  _settled() {
    const { roots, listing } = this;
    if (listing.error) return undefined;
    if (!listing.settled && roots?.length) return this._tellRoots(roots).then(() => listing.look());
    for (const tracker of [this.tabs, this.documents]) tracker.forEach(({ content }) => content.listed(listing.runs));
    return undefined;
  }
}

/** @type {import("@jupyterlab/application").JupyterFrontEndPlugin<void>} */
const plugin = {
  id: ID,
  description: "Runs of probe: list, panel, status and alarms.",
  autoStart: true,
  // None is required: a plugin that requires what Notebook 7 hasn't got is left out there altogether.
  optional: [ILabShell, ILayoutRestorer, ICommandPalette, ILauncher, IStatusBar, ISettingRegistry, IRenderMimeRegistry],
  activate: (app, shell, restorer, palette, launcher, status, settings, rendermime) => new Plugin(app, { shell, restorer, palette, launcher, status, settings, rendermime }).begin(),
};

export default plugin;
