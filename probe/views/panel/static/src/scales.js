// Where ticks stand, where an axis ends, and which steps share a bar: as probe/figures/scales.py has it.

/** The most ticks of an axis of whole numbers. */
export const MOST_TICKS = 10;

/** An axis ends at so much times its 99th percentile. */
const BEYOND = 1.15;

/** Pixels that one bar of several steps takes at least. */
const PIXELS_OF_BIN = 4;

/**
 * The smallest of 1, 2, 5, 10, 20 … of which at most `most` multiples fit into a span of whole numbers.
 * @param {number} span
 * @param {number} [most]
 */
export function wholeStep(span, most = MOST_TICKS) {
  for (let power = 1; ; power *= 10) {
    for (const one of [1, 2, 5]) if (Math.floor(span / (one * power)) < most) return one * power;
  }
}

/**
 * Whole numbers for the ticks of an axis: at most ten, and none twice.
 * @param {number} from
 * @param {number} to
 * @param {number} [most]
 * @returns {number[]}
 */
export function wholeTicks(from, to, most = MOST_TICKS) {
  const [first, last] = [Math.ceil(from), Math.floor(to)];
  const step = wholeStep(Math.max(last - first, 0), most);
  const ticks = [];
  for (let at = Math.ceil(first / step); at * step <= last; at += 1) ticks.push(at * step + 0); //  no −0
  return ticks;
}

/**
 * The ticks of an axis of steps: the chosen step has one of its own, and its neighbours make room.
 * @param {number} from
 * @param {number} to
 * @param {number | null} chosen
 * @returns {{tickmode: string, tickvals: number[], ticktext: string[]}}
 */
export function stepTicks(from, to, chosen) {
  const inside = chosen !== null && chosen >= from && chosen <= to;
  const room = (to - from) / 16;
  const ticks = wholeTicks(from, to, inside ? MOST_TICKS - 1 : MOST_TICKS).filter((at) => !inside || Math.abs(at - chosen) > room);
  if (inside) ticks.push(chosen);
  ticks.sort((a, b) => a - b);
  return { tickmode: "array", tickvals: ticks, ticktext: ticks.map((at) => (at === chosen ? `<b>${at}</b>` : String(at))) };
}

/**
 * The ticks of an axis of names: where there are more than fit, every so many.
 * @template T
 * @param {T[]} names
 * @param {number} [most]
 * @returns {T[]}
 */
export function someOf(names, most = MOST_TICKS) {
  const every = wholeStep(names.length - 1, most);
  return names.filter((_, at) => at % every === 0);
}

/**
 * Where an axis ends so that a few large values don't flatten the rest: 1.15 times the 99th percentile without the
 * first. null: nothing is larger.
 * @param {number[]} values in the order of their steps
 * @returns {number | null}
 */
export function robustEnd(values) {
  const known = values.filter((one) => Number.isFinite(one));
  const later = (known.length > 1 ? known.slice(1) : known).sort((a, b) => a - b);
  const end = BEYOND * percentile(later, 0.99);
  return end > 0 && known.some((one) => one > end) ? end : null;
}

/**
 * @param {number[]} sorted
 * @param {number} share
 */
function percentile(sorted, share) {
  if (!sorted.length) return NaN;
  const at = share * (sorted.length - 1);
  const low = sorted[Math.floor(at)];
  return low + (at - Math.floor(at)) * (sorted[Math.ceil(at)] - low);
}

/**
 * Which steps share a bar where there are more of them than half the pixels: runs of places in `steps`.
 * @param {number[]} steps sorted
 * @param {number} pixels
 * @returns {{width: number, bins: [from: number, to: number][]} | null} null: each has its own
 */
export function binsOf(steps, pixels) {
  if (steps.length <= pixels / 2) return null;
  const most = Math.max(Math.floor(pixels / PIXELS_OF_BIN), 1);
  const width = wholeStep(steps[steps.length - 1] - steps[0], most);
  /** @type {[from: number, to: number][]} */
  const bins = [];
  steps.forEach((step, at) => {
    const last = bins[bins.length - 1];
    if (last && Math.floor(steps[last[0]] / width) === Math.floor(step / width)) last[1] = at + 1;
    else bins.push([at, at + 1]);
  });
  return { width, bins };
}

/**
 * The place of the median among values: of an even number the lower one, so that it is a value that was there.
 * @param {number[]} values
 * @param {number} from
 * @param {number} to
 * @returns {number} −1 where there is no number
 */
export function medianPlace(values, from, to) {
  const places = [];
  for (let at = from; at < to; at += 1) if (Number.isFinite(values[at])) places.push(at);
  places.sort((a, b) => values[a] - values[b] || a - b);
  return places.length ? places[(places.length - 1) >> 1] : -1;
}
