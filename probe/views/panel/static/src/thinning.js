// How a full table forgets: peaks survive, and sums over what is left stay exact.

/**
 * How a full table forgets. `whole: "step"` keeps or drops the rows of a step (of one `group`) together, so that
 * sums over what is left stay exact; without it single rows go. Of each bucket those stay that hold an extreme of `score`.
 */
export const THINNING = {
  spans: { whole: true, group: [], score: ["peak"] },
  micro: { whole: true, group: [], score: ["tokens"] },
  padding: { whole: true, group: [], score: ["tokens"] },
  reductions: { whole: true, group: ["key"], score: ["value"] },
  scalars: { whole: true, group: ["key"], score: ["value"] },
  memory: { whole: false, group: ["rank"], score: ["allocated", "reserved", "used"] },
  calls: { whole: false, group: [], score: ["duration", "bytes_out"] },
  events: { whole: false, group: [], score: ["count"] },
};
