// What lies beneath a finding and unfolds: what follows from it, the query for its rows, and what ended the run.

import { copyBy, freshId, node, say } from "./dom.js";
import { many } from "./words.js";

/** @import { Config } from "./definition_types.js" */
/** @import { Finding, FoundAdvice, PostMortem, PostMortemPart } from "./finding_types.js" */

const MOST_ROWS = 12; //  of a table that stands unfolded

const SHORT = 30; //  letters of a cell that stays on one line

/** A button and what it unfolds. What has the focus stays where it is. */
export class Fold {
  /**
   * @param {string} title of what unfolds
   * @param {string} [shape] classes of the button
   */
  constructor(title, shape = "pp-plain") {
    this.told = "";
    this.content = node("div", { class: "pp-beneath", id: freshId("beneath"), role: "group", "aria-label": title, hidden: true });
    this.button = node("button", { type: "button", class: shape, text: title, hidden: true, "aria-expanded": "false", "aria-controls": this.content.id, on: { click: () => this.open(this.content.hidden) } });
  }

  /** @param {boolean} open */
  open(open) {
    this.content.hidden = !open;
    this.button.setAttribute("aria-expanded", String(open));
  }

  /**
   * Another content closes what was open; none takes the button away.
   * @param {string} told what it is made from, "" for nothing
   * @param {string} label of the button
   * @param {() => (Node | null)[]} make
   */
  show(told, label, make) {
    this.button.hidden = !told;
    if (!told) this.open(false);
    if (told) say(this.button, label);
    if (told === this.told) return;
    this.told = told;
    this.open(false);
    this.content.replaceChildren(...(told ? make() : []).filter((one) => one !== null));
  }
}

/**
 * What follows from a finding.
 * @param {Fold} fold
 * @param {string[]} sentences
 */
export function showFolded(fold, sentences) {
  const label = `${sentences.length} ${sentences.length === 1 ? "thing follows" : "things follow"} from it`;
  fold.show(sentences.length ? JSON.stringify(sentences) : "", label, () => [node("ul", {}, ...sentences.map((text) => node("li", { text })))]);
}

/**
 * The query for the rows that show a finding.
 * @param {Fold} fold
 * @param {string} sql
 */
export function showRows(fold, sql) {
  fold.show(sql, "Rows behind this", () => {
    const copy = node("button", { type: "button", class: "pp-button", "aria-label": "Copy SQL", text: "Copy SQL", on: { click: () => copyBy(copy, sql) } });
    return [node("p", { class: "pp-quiet", text: "This query gives the rows that show it, in run.sql(…) or probe sql." }), node("pre", { tabindex: "0" }, node("code", { text: sql })), copy];
  });
}

/**
 * A button that copies.
 * @param {string} label
 * @param {string} text
 * @param {string} [name] for whoever doesn't see what it stands beside
 */
function copier(label, text, name = label) {
  const copy = node("button", { type: "button", class: "pp-button", "aria-label": name, text: label, on: { click: () => copyBy(copy, text) } });
  return copy;
}

/**
 * Whether the advice has a change of settings.
 * @param {{advice?: FoundAdvice | null} | undefined} verdict
 */
export function hasAdvice(verdict) {
  return Boolean(verdict?.advice?.changes?.length);
}

/**
 * The settings that are worth a change, each as `probe advise` prints it, and all of them to be copied.
 * @param {Fold} fold
 * @param {{advice?: FoundAdvice | null} | undefined} verdict
 * @returns {boolean} whether there are some
 */
export function showAdvice(fold, verdict) {
  const { changes = [], patch = "" } = verdict?.advice ?? {};
  fold.show(changes.length ? JSON.stringify([changes, patch]) : "", `${many(changes.length, "suggested change")} to the settings`, () => [
    node("p", { class: "pp-quiet", text: "Each was tried on this run's own batches. probe advise RUN --config FILE makes a patch of your own file." }),
    ...changes.map(({ told, line }) => node("div", {}, node("pre", { tabindex: "0" }, node("code", { text: told.join("\n") })), line ? copier("Copy", line, `Copy ${line}`) : null)),
    patch ? node("div", {}, node("pre", { tabindex: "0" }, node("code", { text: patch })), copier("Copy patch", patch)) : null,
  ]);
  return changes.length > 0;
}

/** The event that JupyterLab's extension of probe answers with a notebook. */
export const ASKS_FOR_NOTEBOOK = "probe:open-notebook";

/**
 * What the button says that opens a notebook with the rows behind a finding.
 * @param {Finding | null} finding
 */
export function notebookLabel(finding) {
  const step = stepOf(finding);
  return step === null ? "Open notebook with these rows" : `Open notebook at step ${step}`;
}

/**
 * The step of a finding, else the one with which it began.
 * @param {Finding | null} finding
 */
export const stepOf = (finding) => finding?.where.step ?? finding?.since ?? null;

/**
 * Whoever shows the panel makes the notebook: a tab knows its run, a cell names the directory.
 * @param {HTMLElement} root
 * @param {Config} config
 * @param {Finding | null} finding
 */
export function askForNotebook(root, { run }, finding) {
  root.dispatchEvent(new CustomEvent(ASKS_FOR_NOTEBOOK, { bubbles: true, detail: { run: run?.directory, finding } }));
}

/**
 * What ended the run. What the strip says already isn't said again.
 * @param {Fold} fold
 * @param {PostMortem | null} found
 * @param {string[]} said
 */
export function showPostMortem(fold, found, said) {
  if (!found) return fold.show("", "", () => []);
  const { sentence, why, parts } = found;
  const texts = [sentence, why].filter((text) => text && !said.includes(text));
  return fold.show(JSON.stringify([found, texts]), "Post-mortem", () => [...texts.map((text) => node("p", { text })), ...parts.map(partOf)]);
}

/**
 * @param {PostMortemPart} part
 * @returns {Node}
 */
function partOf({ title, lines, head, rows, left_out: left, text, long }) {
  const said = lines.map((line) => node("p", { text: line }));
  const table = rows.length ? tableOf(title, head, rows) : null;
  const more = left ? node("p", { class: "pp-quiet", text: `${many(left, "row")} more: run.post_mortem() has them.` }) : null;
  const whole = text ? node("pre", { tabindex: "0" }, node("code", { text })) : null;
  return node("section", { "aria-label": title }, node("h4", { text: title }), ...said, rows.length > MOST_ROWS ? folded(many(rows.length, "row"), table) : table, more, long ? folded(title === "Exception" ? "Traceback" : "Stack", whole) : whole);
}

/**
 * @param {string} title
 * @param {string[]} head
 * @param {string[][]} rows
 */
function tableOf(title, head, rows) {
  const titles = node("tr", {}, ...head.map((text) => node("th", { scope: "col", text })));
  const body = rows.map((row) => node("tr", {}, ...row.map((text) => node("td", { class: text.length > SHORT ? false : "pp-short", text }))));
  return node("div", { class: "pp-scroll", tabindex: "0", role: "group", "aria-label": title }, node("table", {}, node("thead", {}, titles), node("tbody", {}, ...body)));
}

/**
 * @param {string} summary
 * @param {Node | null} content
 */
function folded(summary, content) {
  return content && node("details", {}, node("summary", { text: summary }), content);
}
