// The keyboard in a chart that plotly draws: up and down go through what is drawn of the step, Enter opens it.

/** @import { FullCard, Item, PlotMark } from "./types.js" */

/**
 * Let the keyboard reach what a chart draws.
 * @param {FullCard} card
 * @param {PlotMark} mark
 */
export function walkable(card, mark) {
  const { body } = card;
  let at = -1;
  body.tabIndex = 0;
  body.setAttribute("role", "group");
  body.setAttribute("aria-label", `${card.title}: up and down arrow go through what is drawn, Enter opens it`);
  body.addEventListener("blur", () => {
    at = -1;
    card.point("");
  });
  body.addEventListener("keydown", (event) => {
    if (event.target !== body) return;
    const items = walked(mark.frame.items, card.store.step);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Enter: Math.max(at, 0) }[event.key];
    if (to === undefined || !items.length) return;
    event.preventDefault();
    at = Math.min(Math.max(to, 0), items.length - 1);
    if (event.key === "Enter") card.pick(mark.picked(items[at]));
    else show(card, mark, items[at]);
  });
}

/**
 * What the keyboard goes through: what is drawn of the step where the chart is over steps, the largest first.
 * @param {Item[]} items
 * @param {number | null} step
 */
export function walked(items, step) {
  const here = items.filter((item) => item.step === undefined || item.step === step);
  return [...(here.length ? here : items)].sort((a, b) => (b.value || 0) - (a.value || 0));
}

/**
 * Say what is walked on, and point at it.
 * @param {FullCard} card
 * @param {PlotMark} mark
 * @param {Item} item
 */
function show(card, mark, item) {
  const text = item.cells.filter(Boolean).join(", ");
  card.announce(text);
  card.point(text);
  const index = mark.frame.items.indexOf(item);
  mark.frame.traces.forEach((trace, curveNumber) => {
    const pointNumber = Array.isArray(trace.customdata) ? trace.customdata.indexOf(index) : -1;
    if (pointNumber >= 0 && mark.drawnOnce) mark.library.Fx.hover(mark.holder, [{ curveNumber, pointNumber }]);
  });
}
