// Light and dark: what the host says, else what the person's system says. Colours of marks are the same in both.

import { listOf } from "./matching.js";

/** @import { Spec, Theme } from "./types.js" */
/** @import { Store } from "./store.js" */

const PALETTE = ["#2f7ec2", "#d2620f", "#0c9b76", "#b95f9f", "#b98600", "#7b6fd0", "#5c8f2f", "#8a8f98"];

export const PATTERNS = ["", "/", ".", "x", "\\", "-", "|", "+"];

const NO_ROLE = PALETTE.length - 1; //  grey

export const ALARM = "#d93f3f";

/**
 * What is coloured apart from the marks.
 * @typedef {object} Look
 * @property {string} ink
 * @property {string} quiet
 * @property {string} grid
 * @property {string} axis
 * @property {string} back
 * @property {string} band
 * @property {[at: number, colour: string][]} scale
 */

/** Opacity of what belongs to a step that isn't complete. */
export const PARTIAL = 0.35;

/** @type {Record<Theme, Look>} */
export const LOOKS = {
  light: {
    ink: "#30363d", quiet: "#656d76", grid: "rgba(48,54,61,0.10)", axis: "rgba(48,54,61,0.30)", back: "#ffffff",
    band: "rgba(47,126,194,0.13)", scale: [[0, "#f2f6fa"], [0.35, "#b7d3ea"], [0.7, "#5f9fd0"], [1, "#174f86"]],
  },
  dark: {
    ink: "#c9d1d9", quiet: "#8d96a0", grid: "rgba(201,209,217,0.12)", axis: "rgba(201,209,217,0.30)", back: "#14181f",
    band: "rgba(103,173,235,0.16)", scale: [[0, "#1b232e"], [0.35, "#1f4468"], [0.7, "#2f7ec2"], [1, "#a9d4f7"]],
  },
};

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
 * The palette of a run's configuration, else probe's own.
 * @param {Store} store
 * @param {Theme} theme
 */
export function palette(store, theme) {
  const given = store.config.colours?.[theme];
  return Array.isArray(given) && given.length ? given : PALETTE;
}

/** Columns whose values have one colour in all charts, beside the role. */
const SHARED = new Set(["phase", "cause"]);

/**
 * The index of a series' colour. A role, a phase and a cause have one in all charts; anything else keeps its first.
 *  * @param {Store} store
 * @param {Spec} spec
 * @param {Map<string, number>} given
 * @param {string} key
 * @param {string} text
 */
export function colourIndex(store, spec, given, key, text) {
  if (listOf(spec.by ?? spec.colour)[0] === "role") {
    const role = text.split(" · ")[0];
    const roles = [...store.roles].map((code) => store.words.text(code)).sort();
    const at = roles.indexOf(role);
    const alone = listOf(spec.by).length <= 1 && listOf(spec.y).length <= 1;
    if (alone) return at >= 0 ? at : NO_ROLE;
  }
  if (!given.has(key)) given.set(key, sharedIndex(store, spec, text) ?? given.size);
  return given.get(key) ?? 0;
}

/**
 * The index that a phase or a cause has in all charts; undefined for anything else, and when the palette is used up.
 * @param {Store} store
 * @param {Spec} spec
 * @param {string} text
 */
function sharedIndex(store, spec, text) {
  const by = listOf(spec.by ?? spec.colour);
  if (by.length !== 1 || !SHARED.has(by[0]) || listOf(spec.y).length > 1) return undefined;
  const shared = (store.colours[by[0]] ??= new Map());
  if (!shared.has(text) && shared.size < NO_ROLE) shared.set(text, shared.size);
  return shared.get(text);
}
