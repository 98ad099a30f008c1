// The marks that plotly draws: stack, bars, heat, timeline, scatter. Each is a function from a spec to traces; what
// loads plotly, sizes, zooms, points and picks is the same for all.

const MOST_BOXES = 500;
const MOST_DOTS = 1200;
const MOST_BARS = 60;

/** plotly.js of this page, from the gzip that the kernel sends once; null while nobody has sent it. */
function plotly(model) {
  if (globalThis.__probe_plotly) return globalThis.__probe_plotly;
  const packed = model.get("plotly_gz");
  if (!packed || !packed.byteLength) return null;
  globalThis.__probe_plotly = unpack(packed).catch((error) => {
    delete globalThis.__probe_plotly;
    throw error;
  });
  return globalThis.__probe_plotly;
}

/** What the kernel has packed with gzip, as a Response. */
function unpacked(packed) {
  const bytes = new Uint8Array(packed.buffer ?? packed, packed.byteOffset ?? 0, packed.byteLength);
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")));
}

async function unpack(packed) {
  const source = await unpacked(packed).text();
  try {
    const module = { exports: {} };
    // `define` is shadowed: a page with RequireJS would keep the library to itself.
    new Function("module", "exports", "define", source).call(globalThis, module, module.exports, undefined);
    return module.exports.react ? module.exports : globalThis.Plotly;
  } catch (error) {
    if (!(error instanceof EvalError)) throw error;
    return await scripted(source); //  a page whose policy forbids eval may still allow a blob
  }
}

function scripted(source) {
  return new Promise((done, failed) => {
    const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
    const script = node("script", { src: url, on: { error: () => failed(new Error("the page forbids plotly's script")) } });
    script.addEventListener("load", () => done(globalThis.Plotly));
    document.head.append(script);
  });
}

/** Divisor and unit of an axis. */
function axisUnit(unit, largest) {
  if (unit === "bytes") {
    const power = Math.min(Math.max(Math.floor(Math.log2(Math.max(largest, 1)) / 10), 0), 3);
    return { by: 1024 ** power, title: UNITS_OF_BYTES[power] };
  }
  if (unit === "percent") return { by: 0.01, title: "%" };
  if (unit === "s") return largest < 0.1 ? { by: 1e-3, title: "ms" } : { by: 1, title: "s" };
  return { by: 1, title: unit === "ratio" || unit === "number" ? "" : unit || "" };
}

function largestOf(values) {
  let largest = 0;
  for (const value of values) if (Math.abs(value) > largest) largest = Math.abs(value);
  return largest;
}

/** One chart drawn by plotly. */
class PlotMark {
  constructor(card) {
    this.card = card;
    this.store = card.store;
    this.spec = card.spec;
    this.build = BUILDERS[this.spec.mark];
    this.given = new Map();
    this.holder = node("div", { class: "pp-plotly", role: "img" });
    this.line = node("div", { class: "pp-crosshair", hidden: true });
    this.note = node("p", { class: "pp-quiet", hidden: true });
    card.body.append(this.note, node("div", { class: "pp-stage" }, this.holder, this.line));
    this.sized = new ResizeObserver(() => this._resize());
    this.sized.observe(this.holder);
  }

  destroy() {
    this.gone = true;
    this.sized.disconnect();
    if (this.drawnOnce) this.library.purge(this.holder);
  }

  restyle() {
    this.card.invalidate();
  }

  read() {
    this.frame = this.build(this);
    return this.frame !== null && this.frame.items.length > 0;
  }

  draw() {
    if (!this.read()) return false;
    this.holder.setAttribute("aria-label", `${this.card.title}: ${this.summary()}`);
    if (!this.library) this._load();
    else this._react();
    return true;
  }

  _load() {
    if (this.loading) return;
    const promise = plotly(this.card.model);
    if (!promise) {
      this._say(`Waiting for the ${answerer(this.store.config).name} to send plotly; the table below has the numbers.`);
      return;
    }
    this.loading = true;
    this._say("Loading the chart…");
    promise.then((library) => this._loaded(library), (error) => this._failed(error));
  }

  _loaded(library) {
    this.library = library;
    this._say("");
    if (!this.gone) this.card.invalidate();
  }

  _failed(error) {
    this.loading = false;
    this._say(`plotly can't be started here (${error.message}); the table has the numbers.`);
    this.card.unfold(true);
  }

  _say(text) {
    this.note.hidden = !text;
    say(this.note, text);
  }

  _react() {
    const { traces, layout } = this.frame;
    const config = { displayModeBar: false, responsive: false, doubleClick: false, showTips: false };
    this.library.react(this.holder, traces, this._layout(layout), config);
    if (!this.drawnOnce) this._listen();
    this.drawnOnce = true;
  }

  _layout(own) {
    const look = LOOKS[this.card.theme];
    const font = { family: "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", size: 11.5, color: look.ink };
    const title = { font: { size: 11.5, color: look.quiet }, standoff: 8 };
    const axis = { gridcolor: look.grid, linecolor: look.axis, zeroline: false, automargin: true, fixedrange: true, tickfont: { color: look.quiet }, title };
    const height = own.height || 260;
    this.holder.style.height = `${height}px`;
    const { axes = {} } = own;
    const put = (given) => ({ ...axis, ...given, title: { ...title, ...given?.title } });
    const x = put({ showgrid: false, showline: true, ...this._zoomable(), ...axes.x });
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font, height, width: Math.max(this.holder.clientWidth, 200),
      margin: { l: 8, r: 8, t: own.showlegend ? 34 : 10, b: 8 }, hovermode: "closest", bargap: 0.18, uirevision: "kept",
      dragmode: this.frame.kind ? "zoom" : false,
      legend: { orientation: "h", traceorder: "normal", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", bgcolor: "rgba(0,0,0,0)", font: { size: 11.5 } },
      hoverlabel: { align: "left", bgcolor: look.back, bordercolor: look.axis, font: { ...font, size: 12 } },
      ...own, axes: undefined, xaxis: x, yaxis: put(axes.y),
    };
  }

  _zoomable() {
    if (!this.frame.kind) return {};
    const [from, to] = shownRange(this.store, this.frame.kind);
    const room = this.frame.kind === "step" ? 0.6 : 0;
    return { fixedrange: false, range: this.frame.range || [from - room, to + room] };
  }

  _resize() {
    if (this.drawnOnce && this.holder.clientWidth && this.holder.clientWidth !== this.width) this.card.invalidate();
    this.width = this.holder.clientWidth;
  }

  // ---- what the person does

  _listen() {
    this.holder.on("plotly_click", ({ points }) => this._choose(points[0]));
    this.holder.on("plotly_hover", ({ points }) => this._hovered(points[0]));
    this.holder.on("plotly_unhover", () => this._hovered(null));
    this.holder.on("plotly_doubleclick", () => this.store.choose({ zoom: null }));
    this.holder.on("plotly_relayout", (change) => this._relaid(change));
  }

  _choose(point) {
    const at = point?.customdata;
    const item = this.frame.items[Array.isArray(at) ? at[0] : at];
    if (item) this.card.pick(this.picked(item));
  }

  /** What a box, bar or dot stands for. */
  picked(item) {
    const table = this.store.table(this.spec.table);
    const held = item.row >= 0 && this.frame.generation === table.generation;
    return {
      table: this.spec.table, row: held ? table.row(item.row, this.store.words) : null,
      step: held ? table.step(item.row) : item.step ?? this.store.step, label: item.label,
    };
  }

  _hovered(point) {
    if (!this.frame.kind) return;
    this.store.hover = point ? { kind: this.frame.kind, at: Number(point.x), from: this } : null;
    this.store.tell("hover");
  }

  hover(place) {
    const axis = this.holder._fullLayout?.xaxis;
    const at = this.frame?.kind && place?.from !== this ? placeOn(this.store.clock, place, this.frame.kind) : null;
    const left = axis && at !== null && at !== undefined ? axis._offset + axis.l2p(at) : -1;
    const inside = axis && left >= axis._offset && left <= axis._offset + axis._length;
    this.line.hidden = !inside;
    if (inside) this.line.style.transform = `translateX(${left}px)`;
  }

  _relaid(change) {
    const [from, to] = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    if (!this.frame.kind || from === undefined) return;
    const round = this.frame.kind === "step" ? Math.round : (value) => value;
    this.store.choose({ zoom: { kind: this.frame.kind, from: round(from), to: round(to) } });
  }

  summary() {
    return this.frame.summary;
  }

  table() {
    const rows = this.frame.items.slice(-200).map((item) => Object.assign([...item.cells], { pick: () => this.card.pick(this.picked(item)) }));
    return { head: this.frame.head, rows };
  }

  // ---- shared by the builders

  colour(key, text) {
    const colours = palette(this.store, this.card.theme);
    return colours[colourIndex(this.store, this.spec, this.given, key, text) % colours.length];
  }

  pattern(key) {
    return { shape: PATTERNS[(this.given.get(key) ?? 0) % PATTERNS.length], size: 6, solidity: 0.2, fillmode: "overlay", fgcolor: "rgba(255,255,255,0.5)" };
  }

  get step() {
    return this.spec.of === "step" ? this.store.step : null;
  }

  spell(value) {
    return spell(value, this.spec.unit);
  }

  title(name) {
    return this.spec.names?.[name] || String(name).replaceAll("_", " ").replace("micro batch", "micro-batch");
  }
}

function hoverText(...lines) {
  const [first, ...rest] = lines.filter(Boolean).map((line) => plain(line, 120));
  return [`<b>${first}</b>`, ...rest].join("<br>");
}

function inOrder(items, key) {
  return [...new Set(items.map(key))].sort((a, b) => (typeof a === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true })));
}

// ---- stack

/** Stacked bars of each `by` over steps or a category. */
function stackOf(mark) {
  const { spec, store } = mark;
  if (spec.x !== "step") return barsOf(mark);
  const lines = summed(store, StepLines, spec);
  const below = spec.share ? summed(store, StepLines, { ...spec, y: spec.share, by: [], reduce: "sum", share: undefined }) : null;
  const { xs, series } = lines.data(400);
  const share = (value, x) => (below ? value / below.only(x) : value);
  const items = [];
  const { by, title } = axisUnit(spec.unit, below ? 1 : largestOf(xs.map((_, at) => series.reduce((sum, one) => sum + (one.values[at] || 0), 0))));
  const traces = series.map((one) => {
    const colour = mark.colour(one.key, one.label);
    const first = items.length;
    const ys = one.values.map((value, at) => {
      const shown = share(value, xs[at]);
      items.push({ row: lines.rowOf(one.key, xs[at]), step: xs[at], label: one.label, cells: [String(xs[at]), one.label, mark.spell(shown)], value: shown });
      return Number.isNaN(shown) ? null : shown / by;
    });
    return {
      type: "bar", name: plain(one.label, 32), x: xs, y: ys, marker: { color: colour, pattern: mark.pattern(one.key), line: { width: 0 } },
      customdata: ys.map((_, at) => first + at), hoverinfo: "text",
      hovertext: ys.map((_, at) => hoverText(`${one.label}: ${items[first + at].cells[2]}`, `step ${xs[at]}`)),
    };
  });
  const told = series.map((one) => `${one.label} now ${mark.spell(share(lastKnown(one.values), xs[xs.length - 1]))}`);
  const layout = { barmode: "stack", showlegend: true, shapes: stepBand(mark), axes: { x: { title: { text: "step" }, tickformat: "d" }, y: { title: { text: spec.y_title ? `${spec.y_title}${title ? `, ${title}` : ""}` : title }, rangemode: "tozero" } } };
  return framed(mark, { traces, layout, items, kind: "step", head: ["step", "part", "value"], summary: `${told.join(", ")}.` });
}

/** The scrubber's step, as a band behind the marks. */
function stepBand(mark) {
  const { step } = mark.store.ui;
  if (step === null) return [];
  return [{ type: "rect", xref: "x", yref: "paper", x0: step - 0.5, x1: step + 0.5, y0: 0, y1: 1, fillcolor: LOOKS[mark.card.theme].band, line: { width: 0 }, layer: "below" }];
}

function framed(mark, made) {
  return { generation: mark.store.table(mark.spec.table).generation, ...made };
}

// ---- heat

/** Cells of x × by. */
function heatOf(mark) {
  const { spec, store } = mark;
  const data = summed(store, Categories, spec).data(mark.step);
  if (!data.length) return null;
  const table = store.table(spec.table);
  const rows = inOrder(data, (one) => one.series);
  const columns = columnsOf(data);
  const items = [];
  const grids = { z: [], text: [], at: [], told: [] };
  const cellOf = new Map(data.map((one) => [`${one.series}|${one.x}`, one]));
  for (const row of rows) {
    const line = columns.map((column) => heatCell(mark, table, items, cellOf.get(`${row}|${column}`)));
    for (const name of Object.keys(grids)) grids[name].push(line.map((cell) => cell[name]));
  }
  const { traces, cap } = heatTraces(mark, { items, grids, rows, columns, data });
  const layout = {
    height: Math.min(Math.max(120 + 32 * rows.length, 180), 560), showlegend: false,
    axes: {
      x: { type: "category", title: { text: spec.x_title || mark.title(listOf(spec.x)[0]) }, showline: false, ...heatTicks(mark, columns) },
      y: { type: "category", autorange: "reversed", showgrid: false, ...categoryTicks(mark, rows) },
    },
  };
  const over = items.filter((one) => one.over).length;
  const most = items.reduce((a, b) => (b.value > a.value ? b : a));
  const summary = `${rows.length} × ${columns.length} cells; the fullest is ${most.label} with ${mark.spell(most.value)}` +
    `${cap ? `, cap ${mark.spell(cap)}` : ""}; ${over ? `${over} over the cap` : "none over the cap"}.`;
  return framed(mark, { traces, layout, items, kind: null, head: [mark.title(listOf(spec.by)[0]), mark.title(listOf(spec.x)[0]), mark.title(listOf(spec.y)[0]), ""], summary });
}

/** All names of a few columns, some of many. */
function heatTicks(mark, columns) {
  const every = Math.max(Math.ceil((columns.length * 40) / Math.max(mark.holder.clientWidth, 200)), 1);
  return categoryTicks(mark, columns.filter((_, at) => at % every === 0));
}

/** All numbers between the smallest and the largest, so that an empty cell is seen as one; else the names. */
function columnsOf(data) {
  const numbers = data.map((one) => one.at);
  if (numbers.some((one) => Number.isNaN(one))) return inOrder(data, (one) => one.x);
  const last = Math.min(Math.max(...numbers), 511);
  return Array.from({ length: last + 1 }, (_, at) => String(at));
}

function heatCell(mark, table, items, one) {
  if (!one) return { z: null, text: "", at: -1, told: "nothing here" };
  const { spec } = mark;
  const over = Boolean(spec.over && one.row >= 0 && table.get(spec.over, one.row) > 0);
  const cap = spec.cap && one.row >= 0 ? table.get(spec.cap, one.row) : NaN;
  const value = mark.spell(one.value);
  const label = `${one.series}, ${mark.title(listOf(spec.x)[0])} ${one.x}`;
  items.push({ ...one, over, cap, label, cells: [one.series, one.x, value, over ? "over the cap" : ""] });
  const use = cap > 0 ? `${spell(one.value / cap, "percent")} of the cap of ${mark.spell(cap)}${over ? ", over it" : ""}` : "";
  return { z: one.value, text: value, at: items.length - 1, told: hoverText(`${value} ${mark.title(listOf(spec.y)[0])}`, label, use) };
}

function heatTraces(mark, { items, grids, rows, columns }) {
  const look = LOOKS[mark.card.theme];
  const cap = Math.max(0, ...items.map((one) => one.cap || 0));
  const top = Math.max(cap, ...items.map((one) => one.value), 1e-9);
  const few = rows.length * columns.length <= 160 && columns.length <= Math.max(mark.holder.clientWidth / 44, 4);
  const bar = { thickness: 9, outlinewidth: 0, tickvals: cap ? [0, cap] : [0, top], ticktext: cap ? ["0", `cap ${mark.spell(cap)}`] : ["0", mark.spell(top)], tickfont: { color: look.quiet, size: 11 } };
  const traces = [{
    type: "heatmap", z: grids.z, x: columns, y: rows, zmin: 0, zmax: top, xgap: 2, ygap: 2, colorscale: look.scale, customdata: grids.at, hoverongaps: false,
    hoverinfo: "text", hovertext: grids.told, showscale: mark.holder.clientWidth > 420, colorbar: bar, ...(few ? { text: grids.text, texttemplate: "%{text}", textfont: { size: 11 } } : {}),
  }];
  const over = items.filter((one) => one.over);
  if (over.length) {
    traces.push({
      type: "scatter", mode: "markers", x: over.map((one) => one.x), y: over.map((one) => one.series), hoverinfo: "skip",
      marker: { symbol: "triangle-up", size: 10, color: ALARM, line: { width: 1.5, color: "#fff" } },
    });
  }
  return { traces, cap };
}

// ---- timeline

/** Boxes from begin to end: as high as y, or in lanes. */
function timelineOf(mark) {
  const { spec, store } = mark;
  const table = store.table(spec.table);
  const score = listOf(spec.y)[0] || "duration";
  const [from, to] = mark.step === null ? shownRange(store, "time") : store.clock.span(mark.step);
  const inside = (row) => table.get("end", row) >= from && table.get("begin", row) <= to && (!spec.y || table.get(score, row) > 0);
  const found = rowsOf(store, spec, mark.step).filter(inside);
  const rows = foremost(table, spec.y ? ofHighest(mark, table, found, score) : found, score, MOST_BOXES);
  if (!rows.length) return null;
  return spec.y ? highBoxes(mark, table, rows, [from, to]) : laneBoxes(mark, table, rows, [from, to]);
}

/** Boxes of several ranks would hide each other: without a chosen rank that with the highest is shown. */
function ofHighest(mark, table, rows, score) {
  let best = null;
  for (const row of rows) if (best === null || table.get(score, row) > table.get(score, best)) best = row;
  const rank = best === null ? NaN : table.get("rank", best);
  if (!(rank >= 0)) return rows;
  mark.remark = mark.store.ui.rank === "" && mark.store.ranks.size > 1 ? `rank ${rank}, the highest` : `rank ${rank}`;
  return rows.filter((row) => table.get("rank", row) === rank);
}

function boxItem(mark, table, row) {
  const { spec, store } = mark;
  const told = table.row(row, store.words);
  const label = [...new Set([told.role, told.phase || told.name, told.micro_batch >= 0 ? `micro-batch ${told.micro_batch}` : ""])].filter(Boolean).join(" · ") || told.kind;
  const cells = [String(told.step), `rank ${told.rank}`, label, seconds(told.duration), bytes(told.peak)];
  const peak = told.peak > 0 ? `peak ${bytes(told.peak)}` : "";
  return { row, told, label, cells, value: spec.y ? table.get(listOf(spec.y)[0], row) : told.duration, hover: hoverText(label, `rank ${told.rank}, step ${told.step}`, `${seconds(told.duration)} from ${clockText(told.begin, 0.01)}`, peak) };
}

function bySeries(mark, items, names) {
  const made = new Map();
  items.forEach((item, at) => {
    const text = names.map((name) => String(item.told[name] || `no ${name}`)).join(" · ");
    if (!made.has(text)) made.set(text, []);
    made.get(text).push(at);
  });
  return [...made].sort(([a], [b]) => a.localeCompare(b));
}

const BOX_HEAD = ["step", "rank", "scope", "time", "peak"];

function highBoxes(mark, table, rows, range) {
  // Large boxes first: what lies inside a scope is drawn over it.
  const items = rows.map((row) => boxItem(mark, table, row)).sort((a, b) => b.told.duration - a.told.duration);
  const { by, title } = axisUnit(mark.spec.unit, largestOf(items.map((one) => one.value)));
  const least = (range[1] - range[0]) / 600;
  // Roles with the longest scopes first, for the same reason; `own` holds places in `items`, longest first.
  const roles = bySeries(mark, items, listOf(mark.spec.by).slice(0, 1)).sort(([, a], [, b]) => a[0] - b[0]);
  const traces = roles.map(([name, own]) => ({
    type: "bar", name: plain(name, 32), x: own.map((at) => items[at].told.begin + Math.max(items[at].told.duration, least) / 2), y: own.map((at) => items[at].value / by),
    width: own.map((at) => Math.max(items[at].told.duration, least)), customdata: own, hoverinfo: "text", hovertext: own.map((at) => items[at].hover), opacity: 0.85,
    marker: { color: mark.colour(name, name), line: { width: 0.5, color: LOOKS[mark.card.theme].back } },
  }));
  const guides = (mark.spec.lines || []).flatMap((guide) => guideLines(mark.store, mark.spec, guide)).filter((guide) => guide.value > 0);
  const layout = { barmode: "overlay", showlegend: true, height: 280, axes: { x: timeAxis(range), y: { title: { text: title }, rangemode: "tozero" } } };
  addGuides(mark, traces, layout, guides, { by, across: false, names: [range[0]] });
  const most = items.reduce((a, b) => (b.value > a.value ? b : a));
  const summary = `${items.length} scopes; the highest is ${most.label}, rank ${most.told.rank}, step ${most.told.step}, with ${mark.spell(most.value)}.`;
  return framed(mark, { traces, layout, items, kind: "time", range, head: BOX_HEAD, summary });
}

/** Ticks of time where the range is one that plotly would write as bare seconds. */
function timeAxis(range) {
  const span = Math.max(range[1] - range[0], 1e-6);
  const step = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400].find((one) => span / one <= 7) || span / 6;
  const ticks = [];
  for (let at = Math.ceil(range[0] / step); at * step <= range[1]; at += 1) ticks.push(at * step);
  return { tickvals: ticks, ticktext: ticks.map((at) => clockText(at, step)) };
}

function laneBoxes(mark, table, rows, range) {
  const { spec } = mark;
  const items = rows.map((row) => boxItem(mark, table, row)).sort((a, b) => b.told.duration - a.told.duration);
  const names = listOf(spec.by);
  const lane = (told) => names.map((name) => (name === "rank" ? `rank ${told.rank}` : told[name] || `no ${name}`)).join(" · ");
  const lanes = inOrder(items, (one) => lane(one.told));
  const traces = bySeries(mark, items, listOf(spec.colour || names)).flatMap(([name, own]) => {
    const thin = own.filter((at) => items[at].told.kind === "micro_batch");
    const wide = own.filter((at) => items[at].told.kind !== "micro_batch");
    return [[wide, 0.74, 0.55], [thin, 0.4, 1]].filter(([some]) => some.length).map(([some, width, opacity], part) => ({
      type: "bar", orientation: "h", name: plain(name, 32), legendgroup: plain(name, 120), showlegend: part === 0, customdata: some, width, opacity,
      base: some.map((at) => items[at].told.begin), x: some.map((at) => items[at].told.duration || 0), y: some.map((at) => lane(items[at].told)),
      hoverinfo: "text", hovertext: some.map((at) => items[at].hover), marker: { color: mark.colour(name, name), line: { width: 0.5, color: LOOKS[mark.card.theme].back } },
    }));
  });
  traces.sort((a, b) => b.width - a.width);
  const layout = {
    barmode: "overlay", showlegend: true, height: Math.min(Math.max(120 + 34 * lanes.length, 190), 560),
    axes: { x: timeAxis(range), y: { type: "category", categoryorder: "array", categoryarray: [...lanes].reverse(), showgrid: false, ...categoryTicks(mark, lanes) } },
  };
  const most = items[0];
  const summary = `${items.length} scopes in ${many(lanes.length, "lane")}; the longest is ${most.label}, rank ${most.told.rank}, with ${seconds(most.told.duration)}.`;
  return framed(mark, { traces, layout, items, kind: "time", range, head: BOX_HEAD, summary });
}

// ---- scatter

/** A dot a row, and where asked a least-squares line for each series. */
function scatterOf(mark) {
  const { spec, store } = mark;
  const table = store.table(spec.table);
  const [x, y] = [listOf(spec.x)[0], listOf(spec.y)[0]];
  const known = rowsOf(store, spec, mark.step).filter((row) => table.get(x, row) >= 0 && !Number.isNaN(table.get(y, row)));
  const rows = foremost(table, known, y, MOST_DOTS);
  if (!rows.length) return null;
  const names = listOf(spec.by);
  const items = rows.map((row) => {
    const label = groupLabel(store, spec, table, names, names.map((name) => table.columns.get(name)?.[row] ?? -1));
    const values = [table.get(x, row), table.get(y, row)];
    const place = `rank ${table.get("rank", row)}, step ${table.get("step", row)}`;
    return { row, label, values, value: values[1], cells: [label, place, spell(values[0], x === "tokens" ? "tokens" : "number"), mark.spell(values[1])], place };
  });
  const { by, title } = axisUnit(spec.unit, largestOf(items.map((one) => one.value)));
  const traces = inOrder(items, (one) => one.label).flatMap((label) => dots(mark, items, { label, by, fit: spec.fit, x }));
  const layout = { showlegend: true, height: 300, axes: { x: { title: { text: spec.x_title || mark.title(x) }, rangemode: "tozero", showline: true }, y: { title: { text: title } } } };
  const fits = traces.filter((trace) => trace.told).map((trace) => trace.told);
  const most = items.reduce((a, b) => (b.value > a.value ? b : a));
  const summary = `${items.length} dots; the highest is ${most.label}, ${most.place}, with ${mark.spell(most.value)}. ${fits.join(". ")}`;
  return framed(mark, { traces, layout, items, kind: null, head: ["series", "where", mark.title(x), mark.title(y)], summary });
}

function dots(mark, items, { label, by, fit, x }) {
  const own = items.map((one, at) => [one, at]).filter(([one]) => one.label === label);
  const colour = mark.colour(label, label);
  const [xs, ys] = [own.map(([one]) => one.values[0]), own.map(([one]) => one.values[1])];
  const trace = {
    type: "scatter", mode: "markers", name: plain(label, 32), x: xs, y: ys.map((one) => one / by), customdata: own.map(([, at]) => at), hoverinfo: "text",
    hovertext: own.map(([one]) => hoverText(one.cells[3], `${one.cells[2]} ${mark.title(x)}`, label, one.place)),
    marker: { color: colour, size: 7, opacity: 0.75, symbol: ["circle", "diamond", "square", "triangle-up", "pentagon", "star", "hexagon", "cross"][(mark.given.get(label) ?? 0) % 8] },
  };
  const line = fit ? leastSquares(xs, ys) : null;
  if (!line) return [trace];
  const ends = [Math.min(...xs), Math.max(...xs)];
  const told = `${label}: ${mark.spell(line.slope)} a ${mark.title(x).replace(/s$/, "")}`;
  return [trace, {
    type: "scatter", mode: "lines", name: plain(told, 48), told, x: ends, y: ends.map((one) => (line.start + line.slope * one) / by),
    line: { color: colour, width: 1.5, dash: "dash" }, hoverinfo: "skip",
  }];
}

/** Start and slope; null where x doesn't vary or there are too few. */
function leastSquares(xs, ys) {
  if (xs.length < 3) return null;
  const mean = (values) => values.reduce((sum, one) => sum + one, 0) / values.length;
  const [mx, my] = [mean(xs), mean(ys)];
  let [above, below] = [0, 0];
  xs.forEach((x, at) => {
    above += (x - mx) * (ys[at] - my);
    below += (x - mx) ** 2;
  });
  return below > 0 ? { slope: above / below, start: my - (above / below) * mx } : null;
}

const BUILDERS = { stack: stackOf, bars: barsOf, heat: heatOf, timeline: timelineOf, scatter: scatterOf, stragglers: stragglersOf };
