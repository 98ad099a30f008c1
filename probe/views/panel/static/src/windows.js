// Which lines of a long list are in sight, and where a key leads: numbers alone, without a page.

/**
 * The lines that are in sight, and a few around them.
 * @param {{top: number, height: number, line: number, count: number, spare?: number}} of scrolled by `top` px in a view of
 *   `height` px, lines of `line` px
 * @returns {{first: number, last: number}} last: the first one that isn't among them
 */
export function linesInSight({ top, height, line, count, spare = 1 }) {
  const begin = Math.floor(Math.max(top, 0) / line) - spare;
  const end = Math.ceil((Math.max(top, 0) + height) / line) + spare;
  const last = Math.min(Math.max(end, 0), count);
  return { first: Math.min(Math.max(begin, 0), last), last };
}

/**
 * The pieces of a list, of `size` lines each, that these lines are of.
 * @param {number} first
 * @param {number} last
 * @param {number} size
 * @returns {number[]}
 */
export function piecesOf(first, last, size) {
  const found = [];
  for (let at = Math.floor(first / size); at * size < last; at += 1) found.push(at);
  return found;
}

/**
 * How far to scroll so that a line is wholly in sight; as far as it is where it is.
 * @param {number} at
 * @param {{top: number, height: number, line: number, above?: number}} view `above`: px that something covers at the top
 */
export function scrolledTo(at, { top, height, line, above = 0 }) {
  const begin = at * line;
  if (begin < top) return begin;
  const end = begin + line + above;
  return end > top + height ? end - height : top;
}

/**
 * Where a key leads from a place among `count`; null where it leads nowhere.
 * @param {string} key
 * @param {number} at
 * @param {{count: number, page: number, across?: number}} of `across`: so many stand beside each other in a line; `page`:
 *   so many lines are in sight
 * @returns {number | null}
 */
export function movedTo(key, at, { count, page, across = 1 }) {
  /** @type {Record<string, number>} */
  const moves = { ArrowDown: at + across, ArrowUp: at - across, PageDown: at + page * across, PageUp: at - page * across, Home: 0, End: count - 1 };
  if (across > 1) Object.assign(moves, { ArrowRight: at + 1, ArrowLeft: at - 1 });
  if (!Object.hasOwn(moves, key) || !count) return null;
  const to = moves[key];
  if (across > 1 && (key === "ArrowUp" || key === "ArrowDown") && (to < 0 || to >= count)) return at; //  stays in its column
  return Math.min(Math.max(to, 0), count - 1);
}

/**
 * Where the next or the previous group begins; the place itself where there is none.
 * @param {1 | -1} by
 * @param {number} at
 * @param {{count: number, of: (at: number) => number | undefined}} list `of`: the group of a line, undefined where the
 *   line isn't here yet, and there it ends
 * @returns {number}
 */
export function groupFrom(by, at, { count, of }) {
  const here = of(at);
  let to = at;
  if (here === undefined) return Math.min(Math.max(at + by, 0), Math.max(count - 1, 0));
  if (by > 0) {
    while (to < count && of(to) === here) to += 1;
    return to < count ? to : at;
  }
  while (to > 0 && of(to - 1) === here) to -= 1;
  if (!to) return 0;
  const before = of(to - 1);
  to -= 1;
  while (before !== undefined && to > 0 && of(to - 1) === before) to -= 1;
  return to;
}
