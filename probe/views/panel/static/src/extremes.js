// Fewer points that keep the extremes.

/**
 * Indices that keep the newest half and each bucket's extremes of the older; null: all fit.
 * @param {ArrayLike<number>} xs
 * @param {ArrayLike<number>[]} columns
 * @param {number} points
 * @returns {number[] | null}
 */
export function thinned(xs, columns, points) {
  if (xs.length <= points) return null;
  const half = xs.length - (points >> 1);
  const buckets = Math.max(Math.floor((points >> 1) / Math.max(2 * columns.length, 2)), 1);
  const kept = new Set([0]);
  for (let bucket = 0; bucket < buckets; bucket += 1) {
    const [from, to] = [Math.floor((bucket * half) / buckets), Math.floor(((bucket + 1) * half) / buckets)];
    for (const values of columns) for (const index of extremes(values, from, to)) kept.add(index);
  }
  for (let index = half; index < xs.length; index += 1) kept.add(index);
  return [...kept].sort((a, b) => a - b);
}

/**
 * Where the smallest and the largest of a part stand.
 * @param {ArrayLike<number>} values
 * @param {number} from
 * @param {number} to
 * @returns {[low: number, high: number] | []} nothing where there is no number
 */
export function extremes(values, from, to) {
  let [low, high] = [-1, -1];
  for (let index = from; index < to; index += 1) {
    if (Number.isNaN(values[index])) continue;
    if (low < 0 || values[index] < values[low]) low = index;
    if (high < 0 || values[index] > values[high]) high = index;
  }
  return low < 0 ? [] : [low, high];
}

/**
 * @param {ArrayLike<number>} values
 * @param {boolean} whole whether none is missing, so that NaN is a value, too
 * @returns {number} the last; where some are missing, the last that is there
 */
export function newest(values, whole) {
  return whole && values.length ? values[values.length - 1] : lastKnown(values);
}

/**
 * @param {ArrayLike<number>} values
 * @returns {number} the last that is one; NaN where none is
 */
export function lastKnown(values) {
  for (let at = values.length - 1; at >= 0; at -= 1) if (!Number.isNaN(values[at])) return values[at];
  return NaN;
}
