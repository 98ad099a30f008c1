// Every mark by its name.

import { barsOf } from "./bars.js";
import { heatOf } from "./heat.js";
import { LineMark } from "./line_mark.js";
import { scatterOf } from "./scatter.js";
import { stackOf } from "./stack.js";
import { stragglersOf } from "./stragglers.js";
import { PlotMark } from "./plot_mark.js";
import { TableMark } from "./table_mark.js";
import { TilesMark } from "./tiles.js";
import { timelineOf } from "./timeline.js";

/** @import { Builder, FullCard, Mark } from "./types.js" */

/** The marks that plotly draws: from a mark to its traces. @type {Record<string, Builder>} */
const BUILDERS = { stack: stackOf, bars: barsOf, heat: heatOf, timeline: timelineOf, scatter: scatterOf, stragglers: stragglersOf };

/**
 * The mark of a card, null where its spec names none that is known.
 * @param {FullCard} card
 * @returns {Mark | null}
 */
export function markOf(card) {
  const name = card.spec.mark ?? "";
  if (name === "line") return new LineMark(card);
  if (name === "tiles") return new TilesMark(card);
  if (name === "table") return new TableMark(card);
  return Object.hasOwn(BUILDERS, name) ? new PlotMark(card, BUILDERS[name]) : null;
}
