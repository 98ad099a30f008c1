// Bars by category: side by side, stacked, and those that say which rank is the straggler.

/** Bars by category, one colour for each `by`; those of a stack lie on each other. */
function barsOf(mark) {
  const { spec, store } = mark;
  const found = summed(store, Categories, spec).data(mark.step);
  const stacked = spec.mark === "stack";
  const names = categoriesOf(spec, found, stacked);
  const shown = new Set(names);
  const data = found.filter((one) => shown.has(one.x));
  const totals = new Map();
  for (const one of data) totals.set(one.x, (totals.get(one.x) || 0) + one.value);
  const { by, title } = axisUnit(spec.unit, largestOf(stacked ? [...totals.values()] : data.map((one) => one.value)));
  const across = names.some((name) => name.length > 10);
  const items = data.map((one) => ({ ...one, label: `${one.x} ${one.series}`, cells: [one.x, one.series, mark.spell(one.value)] }));
  const traces = seriesOf(data, stacked).map((series) => barTrace(mark, items, { series, across, by, totals: stacked ? totals : null }));
  if (stacked) traces.push(totalTrace(mark, names, totals, { across, by }));
  const guides = (spec.lines || []).flatMap((guide) => barGuides(mark, guide, data, names));
  const side = stacked ? 1 : Math.max(1, ...names.map((name) => data.filter((one) => one.x === name).length)); //  bars beside each other
  const length = across ? Math.min(Math.max(110 + Math.max(30, 19 * Math.min(side, 4)) * names.length, 180), 720) : 280;
  const order = across ? [...names].reverse() : names;
  const category = { type: "category", categoryorder: "array", categoryarray: order, ...categoryTicks(mark, order) };
  const value = { title: { text: spec.y_title || title }, rangemode: "tozero", ...roomFor(mark, stacked ? [...totals.values()] : data.map((one) => one.value), guides, { by, across }) };
  const place = { title: { text: across ? "" : spec.x_title || mark.title(listOf(spec.x).join(" · ")) }, ...category, ...(across ? { showgrid: false } : {}) };
  const layout = {
    barmode: stacked ? "stack" : "group", showlegend: traces.length > 1 || guides.length > 0, height: length,
    bargap: across ? 0.18 : Math.max(0.18, 1 - names.length / 7),
    axes: across ? { x: value, y: place } : { x: place, y: value },
  };
  addGuides(mark, traces, layout, guides, { by, across, names });
  const largest = stacked ? [...totals] : items.map((one) => [one.x, one.value]);
  const told = largest.sort(([, a], [, b]) => b - a).slice(0, 5).map(([name, value]) => `${name} ${mark.spell(value)}`);
  const left = new Set(found.map((one) => one.x)).size - names.length;
  const rest = left > 0 ? ` ${many(left, "more is", "more are")} not shown.` : "";
  return framed(mark, { traces, layout, items, kind: null, head: ["what", "series", "value"], summary: `Largest: ${told.join(", ")}.${rest}` });
}

/** Series of bars by name; of a stack the largest first, as in the report. */
function seriesOf(data, stacked) {
  const names = inOrder(data, (one) => one.series);
  if (!stacked) return names;
  const sums = new Map();
  for (const one of data) sums.set(one.series, (sums.get(one.series) || 0) + one.value);
  return names.sort((a, b) => sums.get(b) - sums.get(a));
}

function categoriesOf(spec, data, stacked) {
  const sums = new Map();
  for (const one of data) sums.set(one.x, stacked ? (sums.get(one.x) || 0) + one.value : Math.max(sums.get(one.x) ?? -Infinity, one.value));
  const byValue = [...sums.keys()].sort((a, b) => sums.get(b) - sums.get(a)).slice(0, MOST_BARS);
  return spec.sort === "value" ? byValue : inOrder(byValue, (one) => one);
}

/** Users' names on an axis: escaped, and not so long that the bars have no room. */
function categoryTicks(mark, names) {
  const length = mark.holder.clientWidth > 560 ? 36 : 20;
  return { tickmode: "array", tickvals: names, ticktext: names.map((name) => plain(name, length)) };
}

/** Room for the number behind the longest bar, also where the chart is narrow. */
function roomFor(mark, values, guides, { by, across }) {
  if (!across) return {};
  const wide = Math.max(mark.holder.clientWidth - 170, 120); //  what labels and margins leave of it
  return { range: [0, (Math.max(1.14, 1 + 62 / wide) * largestOf([...values, ...guides.map((one) => one.value)])) / by] };
}

/** What a stack comes to, behind its end. */
function totalTrace(mark, names, totals, { across, by }) {
  const ends = names.map((name) => totals.get(name) / by);
  const few = names.length <= 24;
  return {
    type: "scatter", mode: "text", showlegend: false, hoverinfo: "skip", cliponaxis: false, x: across ? ends : names, y: across ? names : ends,
    text: few ? names.map((name) => ` ${mark.spell(totals.get(name))}`) : [], textposition: across ? "middle right" : "top center", textfont: { size: 11 },
  };
}

function barTrace(mark, items, { series, across, by, totals }) {
  const own = items.map((one, at) => [one, at]).filter(([one]) => one.series === series);
  const ends = own.map(([one]) => one.value / by);
  const places = own.map(([one]) => one.x);
  const alone = items.every((one) => one.series === series); //  nothing to be told apart from
  const colour = alone ? palette(mark.store, mark.card.theme)[0] : mark.colour(series, series);
  return {
    type: "bar", name: plain(series, 32), orientation: across ? "h" : "v", x: across ? ends : places, y: across ? places : ends,
    marker: { color: colour, pattern: mark.pattern(series), line: { width: 0 } }, customdata: own.map(([, at]) => at), hoverinfo: "text",
    hovertext: own.map(([one]) => hoverText(`${one.x}: ${one.cells[2]}`, one.series, totals ? `of ${mark.spell(totals.get(one.x))} in all` : "")),
    text: own.length <= 14 && !totals ? own.map(([one]) => one.cells[2]) : undefined, textposition: "auto", textangle: 0, insidetextanchor: "end", cliponaxis: false,
  };
}

/** A guide's lines; "mean" is the mean of the bars. */
function barGuides(mark, guide, data, names) {
  if (guide.value !== "mean") return guideLines(mark.store, mark.spec, guide).filter((one) => one.value > 0);
  const sum = data.reduce((total, one) => total + one.value, 0);
  return [{ title: guide.title, value: sum / Math.max(names.length, 1), even: true }];
}

function addGuides(mark, traces, layout, guides, { by, across, names }) {
  const look = LOOKS[mark.card.theme];
  layout.shapes = guides.map((guide) => {
    const at = guide.value / by;
    const ends = across ? { x0: at, x1: at, y0: 0, y1: 1, xref: "x", yref: "paper" } : { y0: at, y1: at, x0: 0, x1: 1, xref: "paper", yref: "y" };
    return { type: "line", ...ends, line: { color: guide.even ? look.quiet : ALARM, width: 1.5, dash: guide.even ? "dot" : "dash" } };
  });
  for (const guide of guides) {
    const at = guide.value / by;
    traces.push({
      type: "scatter", mode: "lines", name: `${plain(guide.title, 24)} ${mark.spell(guide.value)}`, hoverinfo: "skip",
      x: across ? [at] : [names[0]], y: across ? [names[0]] : [at], line: { color: guide.even ? look.quiet : ALARM, width: 1.5, dash: guide.even ? "dot" : "dash" },
    });
  }
}

// ---- stragglers

//  A rank is called the straggler where it is the fullest most often and has so much more than the mean.
const STANDS_OUT = 1.02;

/** Each rank's tokens over the mean of the ranks; who is the fullest most often is marked and named. */
function stragglersOf(mark) {
  const { spec, store } = mark;
  const { ranks, rounds } = standings(store, spec);
  if (!rounds) return null;
  const look = LOOKS[mark.card.theme];
  const items = ranks.map((one) => {
    const often = `fullest in ${one.first} of ${rounds}`;
    return { ...one, row: -1, label: `rank ${one.rank}`, value: one.share, cells: [`rank ${one.rank}`, `${one.share.toFixed(2)}×`, often, spell(one.tokens, "tokens")] };
  });
  const worst = items.reduce((a, b) => (b.first > a.first || (b.first === a.first && b.share > a.share) ? b : a));
  const stands = worst.first > 0 && worst.share >= STANDS_OUT;
  const said = `${worst.cells[2]} batches, with ${worst.cells[1]} the mean tokens`;
  mark.remark = stands ? `${worst.label} is the straggler: ${said}` : worst.first ? `no rank stands out; ${worst.label} is ${said}` : "all ranks get the same";
  const order = [...items].reverse();
  const isWorst = (one) => stands && one === worst;
  const trace = {
    type: "bar", orientation: "h", name: "tokens ÷ mean", x: order.map((one) => one.share), y: order.map((one) => one.label), customdata: order.map((one) => items.indexOf(one)),
    marker: { color: order.map((one) => (isWorst(one) ? ALARM : palette(store, mark.card.theme)[0])), pattern: { shape: order.map((one) => (isWorst(one) ? "/" : "")), size: 6, solidity: 0.2, fillmode: "overlay", fgcolor: "rgba(255,255,255,0.5)" } },
    text: order.length <= 32 ? order.map((one) => `${one.cells[1]}, ${one.cells[2]}`) : undefined, textposition: "auto", insidetextanchor: "end", cliponaxis: false,
    hoverinfo: "text", hovertext: order.map((one) => hoverText(one.label, `${one.cells[1]} the mean of the ranks`, one.cells[2], `${one.cells[3]} tokens`)),
  };
  const layout = {
    showlegend: false, height: Math.min(Math.max(110 + 26 * items.length, 170), 720),
    shapes: [{ type: "line", xref: "x", yref: "paper", x0: 1, x1: 1, y0: 0, y1: 1, line: { color: look.quiet, width: 1.5, dash: "dot" } }],
    axes: { x: { title: { text: "tokens ÷ mean of the ranks (1 is even)" }, rangemode: "tozero", range: [0, 1.14 * largestOf([1, ...items.map((one) => one.share)])] }, y: { type: "category", showgrid: false, ...categoryTicks(mark, order.map((one) => one.label)) } },
  };
  return framed(mark, { traces: [trace], layout, items, kind: null, head: ["rank", "tokens ÷ mean", "how often", "tokens"], summary: `${mark.remark}, of ${many(items.length, "rank")}.` });
}

/** Tokens of each rank in each round: the n-th batch that it cut in a (step, phase). Rounds of one rank tell nothing. */
function standings(store, spec) {
  const table = store.table(spec.table);
  const match = matcher(store, table, { ...spec, free: ["rank"] });
  const batches = new Map(); //  "step|phase" → rank → batch → tokens
  for (let row = 0; row < table.count; row += 1) {
    if (!match(row) || table.partial.has(table.step(row))) continue;
    const [place, rank] = [`${table.step(row)}|${table.columns.get("phase")[row]}`, table.columns.get("rank")[row]];
    const own = inside(inside(batches, place), rank);
    const batch = table.columns.get("batch")[row];
    own.set(batch, (own.get(batch) || 0) + table.columns.get("tokens")[row]);
  }
  const found = new Map();
  let rounds = 0;
  for (const ranks of batches.values()) for (const round of roundsOf(ranks)) rounds += scored(found, round);
  const ranks = [...found].map(([rank, { tokens, mean, first }]) => ({ rank, tokens, first, share: mean ? tokens / mean : NaN }));
  return { ranks: ranks.sort((a, b) => a.rank - b.rank).slice(0, MOST_BARS), rounds };
}

function inside(map, key) {
  if (!map.has(key)) map.set(key, new Map());
  return map.get(key);
}

/** Per round [[rank, tokens], …] by rank. */
function* roundsOf(ranks) {
  const sums = [...ranks].sort(([a], [b]) => a - b).map(([rank, own]) => [rank, [...own].sort(([a], [b]) => a - b).map(([, tokens]) => tokens)]);
  const most = Math.max(...sums.map(([, own]) => own.length));
  for (let at = 0; at < most; at += 1) yield sums.filter(([, own]) => at < own.length).map(([rank, own]) => [rank, own[at]]);
}

/** Add a round to the standings; 1 where it counts. */
function scored(found, round) {
  const sum = round.reduce((total, [, tokens]) => total + tokens, 0);
  if (round.length < 2 || !sum) return 0;
  const top = Math.max(...round.map(([, tokens]) => tokens));
  const first = top > sum / round.length ? round.find(([, tokens]) => tokens === top)[0] : null;
  for (const [rank, tokens] of round) {
    const one = found.get(rank) || { tokens: 0, mean: 0, first: 0 };
    found.set(rank, { tokens: one.tokens + tokens, mean: one.mean + sum / round.length, first: one.first + (rank === first ? 1 : 0) });
  }
  return 1;
}
