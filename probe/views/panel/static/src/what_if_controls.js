// One setting as a slider with a field beside it, or as a switch; what it was is marked.

import { freshId, node } from "./dom.js";
import { asked, placeOf, valueOf } from "./what_if_settings.js";
import { digits } from "./words.js";

/** @import { CapLimit, SettingTold } from "./what_if_types.js" */
/** @import { Chosen, Value } from "./what_if_settings.js" */

/** @param {Value | undefined} value */
export const spelled = (value) => (typeof value === "number" ? value.toLocaleString("en") : String(value));

/**
 * Where a value stands on its slider, 0 to 1.
 * @param {SettingTold} setting
 * @param {Value} value
 */
const shareOf = (setting, value) => (setting.choices.length > 1 ? placeOf(setting, value) / (setting.choices.length - 1) : 0);

/**
 * Where the choices begin whose risk is too large, 0 to 1; null where none is.
 * @param {SettingTold} setting
 * @param {CapLimit | null} limit
 */
function riskyFrom({ choices }, limit) {
  const risky = limit?.risky ?? Infinity;
  const at = choices.findIndex((one) => Number(one) >= risky);
  return at < 0 ? null : Math.max(at - 0.5, 0) / Math.max(choices.length - 1, 1);
}

/** The place of a share on a track, whose ends the thumb's half stays away from. @param {number} share */
const startsAt = (share) => `inset-inline-start: calc(8px + (100% - 16px) * ${share.toFixed(4)})`;

/** @param {number} risk */
export const percent = (risk) => `${digits(100 * risk)} %`;

/** A setting. */
export class SettingControl {
  /**
   * @param {SettingTold} setting
   * @param {(value: Value) => void} turned
   */
  constructor(setting, turned) {
    this.setting = setting;
    this.turned = turned;
    const { key } = setting;
    const [group, name] = [key.slice(0, key.lastIndexOf(".") + 1), key.slice(key.lastIndexOf(".") + 1)];
    const label = freshId("setting");
    this.was = node("del", { hidden: true, text: setting.known ? spelled(setting.value) : "not set" });
    const heading = node("span", { class: "pp-setting-name", id: label }, node("small", { text: group }), node("code", { text: name }));
    this.switch = typeof setting.value === "boolean" ? node("input", { type: "checkbox", role: "switch", "aria-labelledby": label, on: { change: () => turned(this.switch?.checked ?? false) } }) : null;
    this.field = this.switch ? null : node("input", { type: "number", min: "1", step: "1", "aria-label": `${key}, as a number`, on: { input: () => this._types(true), change: () => this._typed(), blur: () => this._types(false) } });
    this.typing = false; //  what stands in the field isn't asked for yet
    this.slider = this.switch ? null : this._slider(key);
    this.risk = node("i", { class: "pp-setting-risk", "aria-hidden": "true", hidden: true });
    this.best = node("i", { class: "pp-setting-best", "aria-hidden": "true", hidden: true });
    /** @type {CapLimit | null} */
    this.limit = null;
    const track = this.slider ? node("div", { class: "pp-setting-track" }, this.risk, this.slider, this._mark(), this.best, node("span", { class: "pp-setting-ends", "aria-hidden": "true" }, node("span", { text: spelled(setting.choices[0]) }), node("span", { text: spelled(setting.choices.at(-1)) }))) : null;
    this.root = node("div", { class: "pp-setting", role: "group", "aria-labelledby": label }, node("div", {}, heading, this.was, this.field ?? this.switch), track);
  }

  /** @param {string} key */
  _slider(key) {
    const { choices } = this.setting;
    const slider = node("input", { type: "range", min: "0", max: String(choices.length - 1), step: "1", "aria-label": key, on: { input: () => this.turned(choices[Number(slider.value)]) } });
    return slider;
  }

  /** Where it stood. */
  _mark() {
    return node("i", { class: "pp-setting-was", "aria-hidden": "true", style: startsAt(shareOf(this.setting, this.setting.value)) });
  }

  /**
   * What memory allows of it: hatched where the risk is too large, and a mark at the best.
   * @param {CapLimit | null} limit
   */
  allow(limit) {
    this.limit = limit;
    const from = riskyFrom(this.setting, limit);
    this.risk.hidden = from === null;
    if (from !== null) this.risk.style.cssText = startsAt(from);
    this.slider?.style.setProperty("--risky", String(from ?? 2)); //  beyond its end where nothing is
    const best = limit?.best ?? null;
    this.best.hidden = best === null;
    if (best !== null) this.best.style.cssText = startsAt(shareOf(this.setting, best));
  }

  /** What a screen reader is told beside a value. @param {Value} value */
  _beside(value) {
    const { setting, limit } = this;
    const told = value === setting.value && setting.known ? ", as it was" : "";
    if (!limit || typeof value !== "number") return told;
    if (limit.risky !== null && value >= limit.risky) return `${told}, risk of running out of memory above ${percent(limit.risk)}`;
    return value === limit.best ? `${told}, best within ${percent(limit.risk)} risk` : told;
  }

  /** @param {boolean} typing */
  _types(typing) {
    this.typing = typing;
  }

  _typed() {
    this.typing = false;
    const value = asked(this.setting, Number(this.field?.value));
    if (value !== null) this.turned(value);
    else if (this.field) this.field.value = String(this.shown);
  }

  /**
   * @param {Chosen} chosen
   * @param {boolean} usable whether it means anything, and can be answered
   */
  draw(chosen, usable) {
    const { setting, slider, field } = this;
    const value = valueOf(setting, chosen);
    this.shown = value;
    this.was.hidden = value === setting.value;
    this.root.toggleAttribute("data-off", !usable);
    if (this.switch) {
      this.switch.checked = Boolean(value);
      this.switch.disabled = !usable;
    }
    if (!slider || !field) return;
    slider.disabled = !usable;
    field.disabled = !usable;
    slider.value = String(placeOf(setting, value));
    slider.setAttribute("aria-valuetext", `${spelled(value)}${this._beside(value)}`);
    if (!this.typing && Number(field.value) !== value) field.value = String(value);
    const ends = [shareOf(setting, setting.value), shareOf(setting, value)].sort((a, b) => a - b);
    slider.style.setProperty("--from", ends[0].toFixed(4));
    slider.style.setProperty("--to", ends[1].toFixed(4));
  }
}

