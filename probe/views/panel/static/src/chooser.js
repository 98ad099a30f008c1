// A choice among a few words, with its name before it.

import { node } from "./dom.js";

/**
 * @param {string} label
 * @param {[value: string, title: string][]} options
 * @param {(value: string) => void} chosen
 */
export function chooser(label, options, chosen) {
  const select = node("select", { on: { change: () => chosen(select.value) } }, ...options.map(([value, text]) => node("option", { value, text })));
  return { select, root: node("label", { class: "pp-choice" }, `${label} `, select) };
}
