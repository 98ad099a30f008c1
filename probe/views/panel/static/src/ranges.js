// What part of an axis of time or steps is shown, and how a time is written on it.

import { digits } from "./words.js";

/** @import { Place, Range } from "./types.js" */
/** @import { Store } from "./store.js" */
/** @import { Clock } from "./clock.js" */

/** Parts of a run to choose from. @type {Record<string, {title: string, steps?: number, seconds?: number}>} */
export const WINDOWS = {
  all: { title: "whole run" },
  steps10: { title: "last 10 steps", steps: 10 },
  steps50: { title: "last 50 steps", steps: 50 },
  steps200: { title: "last 200 steps", steps: 200 },
  minute: { title: "last minute", seconds: 60 },
  minutes10: { title: "last 10 minutes", seconds: 600 },
  hour: { title: "last hour", seconds: 3600 },
};

/**
 * What part of an axis of time or steps is shown: [from, to].
 * @param {Store} store
 * @param {"time" | "step"} kind
 * @returns {[from: number, to: number]}
 */
export function shownRange(store, kind) {
  const { clock, ui } = store;
  if (ui.zoom) return converted(clock, ui.zoom, kind);
  const newest = clock.newest ?? 0;
  /** @type {[from: number, to: number]} */
  const whole = kind === "time" ? [clock.begin || 0, clock.end] : [clock.steps[0] ?? 0, newest];
  const window = WINDOWS[ui.window] || WINDOWS.all;
  if (window.steps) {
    const from = clock.steps[Math.max(clock.steps.length - window.steps, 0)] ?? 0;
    return converted(clock, { kind: "step", from, to: newest }, kind);
  }
  if (window.seconds) return converted(clock, { kind: "time", from: Math.max(clock.end - window.seconds, whole[0]), to: clock.end }, kind);
  return whole;
}

/**
 * A range of time in steps, and the other way round.
 * @param {Clock} clock
 * @param {Range} range
 * @param {"time" | "step"} asked
 * @returns {[from: number, to: number]}
 */
function converted(clock, { kind, from, to }, asked) {
  if (kind === asked) return [from, to];
  if (asked === "step") return [clock.stepAt(from) ?? 0, clock.stepAt(to) ?? 0];
  const steps = clock.steps;
  const [first, last] = [steps[clock.indexOf(from)], steps[clock.indexOf(to)]];
  return [clock.span(first)[0] || 0, clock.span(last)[1] || clock.end];
}

/**
 * Where a place of another axis lies on this one; null where it can't be told.
 * @param {Clock} clock
 * @param {Place | null} place
 * @param {"time" | "step"} kind
 * @returns {number | null}
 */
export function placeOn(clock, place, kind) {
  if (!place) return null;
  if (place.kind === kind) return place.at;
  if (kind === "step") return clock.stepAt(place.at);
  const [begin, end] = clock.span(Math.round(place.at));
  return Number.isNaN(begin) ? null : (begin + end) / 2;
}

/**
 * Time on an axis: seconds, then minutes and seconds, then hours.
 * @param {number} value
 * @param {number} [step]
 */
export function clockText(value, step = 1) {
  const whole = Math.abs(value);
  if ((whole < 120 && step < 10) || step < 1) return `${digits(value, step < 1 ? 5 : 4)} s`;
  /** @param {number} number */
  const two = (number) => String(Math.floor(number)).padStart(2, "0");
  if (whole < 7200) return `${Math.floor(whole / 60)}:${two(whole % 60)}`;
  return `${Math.floor(whole / 3600)} h ${two((whole / 60) % 60)}`;
}
