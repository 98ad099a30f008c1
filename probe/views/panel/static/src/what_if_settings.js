// The settings that a person turns: what they change, and the change as text for the configuration.

/** @import { SettingTold } from "./what_if_types.js" */

/** @typedef {number | boolean} Value */

/** What was chosen, by the name of a setting. @typedef {Record<string, Value>} Chosen */

/**
 * @param {SettingTold} setting
 * @param {Chosen} chosen
 * @returns {Value}
 */
export const valueOf = (setting, chosen) => chosen[setting.name] ?? setting.value;

/**
 * Whether micro-batches are cut by tokens; null where there is no such setting.
 * @param {SettingTold[]} settings
 * @param {Chosen} chosen
 */
function dynamicOf(settings, chosen) {
  const found = settings.find(({ name }) => name === "dynamic");
  return found ? { now: Boolean(valueOf(found, chosen)), was: Boolean(found.value) } : null;
}

/**
 * Whether a setting means anything: a cap only where micro-batches are cut by tokens, rows only where they are fixed.
 * @param {SettingTold} setting
 * @param {SettingTold[]} settings
 * @param {Chosen} chosen
 */
export function counts(setting, settings, chosen) {
  const dynamic = dynamicOf(settings, chosen);
  if (!dynamic) return true;
  if (setting.name === "cap_tokens") return dynamic.now;
  return setting.name !== "rows_each" || !dynamic.now;
}

/**
 * The settings that are other than they were, or that came in with another kind of cutting.
 * @param {SettingTold[]} settings
 * @param {Chosen} chosen
 */
export function changed(settings, chosen) {
  const dynamic = dynamicOf(settings, chosen);
  const kind = dynamic !== null && dynamic.now !== dynamic.was;
  return settings.filter((one) => counts(one, settings, chosen) && (valueOf(one, chosen) !== one.value || (kind && ["cap_tokens", "rows_each"].includes(one.name))));
}

/**
 * What `run.what_if` is asked, by its own names.
 * @param {SettingTold[]} settings
 * @param {Chosen} chosen
 * @returns {Record<string, number | boolean | string>}
 */
export function changesOf(settings, chosen) {
  return Object.fromEntries(changed(settings, chosen).map((one) => {
    const value = valueOf(one, chosen);
    if (one.name === "balance") return [one.name, value ? "batch" : "none"];
    return [one.name, typeof value === "number" ? value * one.rows : value];
  }));
}

/**
 * What to set, by the keys of the configuration.
 * @param {SettingTold[]} settings
 * @param {Chosen} chosen
 * @returns {{key: string, was: Value | null, now: Value}[]}
 */
export function linesOf(settings, chosen) {
  return changed(settings, chosen).flatMap((one) => {
    const now = valueOf(one, chosen);
    const was = one.known ? one.value : null;
    const lines = [one.key, ...one.beside].map((key) => ({ key, was, now }));
    if (!one.product || typeof now !== "number" || typeof one.value !== "number") return lines;
    const [key, whole] = one.product;
    return [...lines, { key, was: whole / one.value, now: whole / now }];
  });
}

/**
 * The change as overrides, a line each, as `probe advise` prints them for Hydra.
 * @param {{key: string, now: Value}[]} lines
 */
export const overridesOf = (lines) => lines.map(({ key, now }) => `${key}=${JSON.stringify(now)}`).join("\n");

/**
 * The place of the choice that is nearest to a value.
 * @param {SettingTold} setting
 * @param {Value} value
 */
export function placeOf({ choices }, value) {
  let nearest = 0;
  choices.forEach((one, at) => {
    if (Math.abs(Number(one) - Number(value)) < Math.abs(Number(choices[nearest]) - Number(value))) nearest = at;
  });
  return nearest;
}

/**
 * A value that can be asked for, nearest to a number that was typed; null where that is none.
 * @param {SettingTold} setting
 * @param {number} typed
 * @returns {Value | null}
 */
export function asked(setting, typed) {
  if (!Number.isFinite(typed) || typed < 1 || typed > 2 ** 31) return null;
  const whole = Math.round(typed);
  return setting.free ? whole : setting.choices[placeOf(setting, whole)];
}
