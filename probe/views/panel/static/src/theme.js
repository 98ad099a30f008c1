// Light and dark: what the host says, else what the person's system says. And how a series looks: by its name alone, as
// probe/figures/colours.py has it, of the same file.

import colours from "../../../../figures/colours.json" with { type: "json" };
import { listOf } from "./matching.js";

/** @import { Spec } from "./definition_types.js" */
/** @import { Theme } from "./types.js" */

/**
 * What is coloured apart from the marks.
 * @typedef {object} Look
 * @property {string} ink
 * @property {string} quiet
 * @property {string} grid
 * @property {string} axis
 * @property {string} back
 * @property {string} band
 * @property {string} accent
 * @property {string} alarm of marks
 * @property {string} alarmText
 * @property {string} waiting of hatches
 * @property {string} waitingGround
 * @property {string} hatch over a bar's own colour
 * @property {[at: number, colour: string][]} scale
 */

/**
 * How a series looks: the colour, what bars are filled with, how lines are dashed, and what dots look like, as plotly
 * calls them.
 * @typedef {{colour: string, pattern: string, dash: string, symbol: string}} Style
 */

/** Opacity of what belongs to a step that isn't complete. */
export const PARTIAL = 0.35;

/** @type {Record<Theme, Look>} */
export const LOOKS = { light: lookOf("light"), dark: lookOf("dark") };

/**
 * @param {Theme} theme
 * @returns {Look}
 */
function lookOf(theme) {
  const one = colours.themes[theme];
  const scale = /** @type {[number, string][]} */ (one.scale);
  return {
    ink: one.ink, quiet: one.ink_3, grid: one.grid, axis: one.line_2, back: one.surface, band: one.band, accent: one.accent,
    alarm: one.alarm, alarmText: one.alarm_text, waiting: one.waiting, waitingGround: one.waiting_ground, hatch: one.hatch, scale,
  };
}

/** What the host says about its theme, null where it says nothing. */
function hostTheme() {
  const body = document.body;
  const lab = body.getAttribute("data-jp-theme-light");
  if (lab !== null) return lab === "false" ? "dark" : "light";
  const code = body.getAttribute("data-vscode-theme-kind") || body.className;
  if (/vscode-(dark|high-contrast)(?!-light)/.test(code)) return "dark";
  if (/vscode-(light|high-contrast-light)/.test(code)) return "light";
  const root = document.documentElement;
  const said = [root.getAttribute("theme"), root.dataset.theme, body.dataset.theme].find((one) => one === "dark" || one === "light");
  if (said) return said;
  if (root.classList.contains("dark") || body.classList.contains("dark")) return "dark";
  return root.classList.contains("light") || body.classList.contains("light") ? "light" : null;
}

/**
 * Watches the theme. `told` is called with "light" or "dark" at each change; returns {now, stop}.
 * @param {(theme: Theme) => void} told
 */
export function watchTheme(told) {
  const system = globalThis.matchMedia?.("(prefers-color-scheme: dark)");
  /** @returns {Theme} */
  const read = () => hostTheme() || (system?.matches ? "dark" : "light");
  const watch = { now: read(), stop() {} };
  const look = () => {
    const found = read();
    if (found === watch.now) return;
    watch.now = found;
    told(found);
  };
  const observer = new MutationObserver(look);
  const attributeFilter = ["class", "data-jp-theme-light", "data-vscode-theme-kind", "data-theme", "theme"];
  for (const target of [document.documentElement, document.body]) observer.observe(target, { attributes: true, attributeFilter });
  system?.addEventListener("change", look);
  watch.stop = () => {
    observer.disconnect();
    system?.removeEventListener("change", look);
  };
  return watch;
}

/**
 * The colour of a hue.
 * @param {string} name
 * @param {Theme} theme
 */
export function hue(name, theme) {
  return /** @type {Record<string, Record<Theme, string>>} */ (colours.hues)[name][theme];
}

/**
 * How the series `label` of a spec looks: that name looks so everywhere.
 * @param {Pick<Spec, "by" | "colour">} spec
 * @param {string} label
 * @param {Theme} theme
 * @returns {Style}
 */
export function styleOf(spec, label, theme) {
  return styleBy(listOf(spec.colour ?? spec.by), label, theme);
}

/**
 * @param {string[]} columns that tell the series apart; a phase's colour comes first, then a role's, then a cause's
 * @param {string} label
 * @param {Theme} theme
 * @returns {Style}
 */
export function styleBy(columns, label, theme) {
  const { kind, name } = meant(columns, label);
  const known = /** @type {Record<string, Record<string, string>>} */ (colours.names)[kind] ?? {};
  const plain = name.toLowerCase().replace(/[^a-z0-9]+/g, "_").replace(/^_+|_+$/g, "");
  return Object.hasOwn(known, plain) ? styled(known[plain], textureOf(known[plain]), theme) : styleOfName(name, theme);
}

/**
 * Series in the order in which a step has its phases, and after them by name.
 * @template T
 * @param {Pick<Spec, "by" | "colour">} spec
 * @param {T[]} series
 * @param {(one: T) => string} labelOf
 * @returns {T[]}
 */
export function inPipeline(spec, series, labelOf) {
  const columns = listOf(spec.colour ?? spec.by);
  const hues = Object.values(colours.hues).map((one) => one.light);
  const keyed = series.map((one) => ({ one, label: labelOf(one), place: hues.indexOf(styleBy(columns, labelOf(one), "light").colour) }));
  const first = hues.indexOf(colours.hues.own_1.light);
  for (const each of keyed) if (each.place >= first && each.place < first + colours.own.length) each.place = hues.length;
  return keyed.sort((a, b) => a.place - b.place || (a.label < b.label ? -1 : 1)).map(({ one }) => one);
}

/**
 * Which of the columns gives the colour, and its value in the label.
 * @param {string[]} columns
 * @param {string} label
 */
function meant(columns, label) {
  const parts = label.split(" · ");
  const kind = colours.columns.find((one) => columns.includes(one)) ?? "series";
  if (kind === "series" || columns.length === 1) return { kind, name: label };
  // Equal values are said once: then there is one part for several columns.
  const last = columns[columns.length - 1] === kind;
  return { kind, name: last ? parts[parts.length - 1] : parts[Math.min(columns.indexOf(kind), parts.length - 1)] };
}

/**
 * @param {string} name
 * @param {Theme} theme
 */
function styleOfName(name, theme) {
  if (!name || name.startsWith("no ")) return styled("kind_1", 0, theme);
  const rank = /^rank (\d{1,9})$/.exec(name);
  const number = rank ? Number(rank[1]) : hashOf(name);
  const { own, patterns } = colours;
  return styled(own[number % own.length], Math.floor(number / own.length) % patterns.length, theme);
}

/**
 * @param {string} name of a hue
 * @param {number} texture
 * @param {Theme} theme
 * @returns {Style}
 */
function styled(name, texture, theme) {
  const { patterns, dashes, symbols } = colours;
  return { colour: hue(name, theme), pattern: patterns[texture], dash: dashes[texture], symbol: symbols[texture] };
}

/**
 * Kinds are told apart by lightness and texture, phases by their hue alone.
 * @param {string} name of a hue
 */
function textureOf(name) {
  return name.startsWith("shade_") ? (Number(name.slice("shade_".length)) - 1) % colours.patterns.length : 0;
}

/**
 * FNV-1a with 32 bits: the same in each page and each language.
 * @param {string} name
 */
function hashOf(name) {
  let found = 0x811c9dc5;
  for (const byte of new TextEncoder().encode(name)) found = Math.imul(found ^ byte, 0x01000193) >>> 0;
  return found;
}
