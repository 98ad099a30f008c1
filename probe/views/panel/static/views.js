// What stands around the charts: cards, tabs, the controls, and the strip that says what went wrong.

const MARKS = { line: LineMark, tiles: TilesMark, table: TableMark };
for (const name of Object.keys(BUILDERS)) MARKS[name] = PlotMark;

const WIDE = new Set(["tiles", "table", "timeline", "stack", "heat", "stragglers"]);

const EMPTY = {
  spans: "No scope has ended yet: phases come from probe.phase, session.step and probe.watch.",
  memory: "No memory was sampled yet.",
  micro: "No micro-batches were recorded: nothing was cut by probe.micro_batches or rearrange_micro_batches yet.",
  padding: "No padded batch was formed yet.",
  scalars: "No metric was logged yet.",
  reductions: "reduce_metrics was not called yet.",
  calls: "No call of an observed function was recorded yet.",
  events: "Nothing went wrong with the observing.",
};

/** The live tables that a `live:` block names anywhere. */
function tablesOf(spec) {
  if (spec === null || typeof spec !== "object") return [];
  const own = typeof spec.table === "string" ? [spec.table] : [];
  return [...new Set([...own, ...Object.values(spec).flatMap(tablesOf)])];
}

/** One chart with its title, what it means, and its numbers as a table. */
class Card {
  constructor(panel, id, definition) {
    Object.assign(this, { panel, id, definition });
    this.store = panel.store;
    this.model = panel.model;
    this.spec = definition.live;
    this.title = definition.title;
    this.tables = tablesOf(this.spec);
    this.due = 0;
    this.visible = true;
    this.dirty = true;
    this._frame();
    const Kind = this.spec && (isFaceted(this.spec) ? FacetMark : MARKS[this.spec.mark]);
    this.mark = Kind ? new Kind(this) : null;
    if (!this.mark) this._say(this.spec ? `This panel's mark ${this.spec.mark} isn't known here.` : "This picture is in the report: probe report.");
  }

  _frame() {
    const heading = freshId("card");
    this.place = node("span", { class: "pp-place" });
    this.body = node("div", { class: "pp-body" });
    this.message = node("p", { class: "pp-empty", hidden: true });
    this.numbers = node("div", { class: "pp-scroll pp-numbers", hidden: true, tabindex: "0", role: "region", "aria-label": `${this.title}: numbers` });
    const head = node("header", {}, node("h3", { id: heading, text: this.title }), this.place);
    const mark = this.spec?.mark;
    if (mark && mark !== "tiles" && mark !== "table") {
      this.toggle = node("button", { type: "button", class: "pp-plain", "aria-expanded": "false", "aria-label": `Numbers of ${this.title}`, title: "The numbers as a table", text: "Numbers", on: { click: () => this.unfold(this.numbers.hidden) } });
      head.append(this.toggle);
    }
    this.root = node("figure", { class: `pp-card pp-mark-${mark || "none"}`, role: "group", "aria-labelledby": heading }, head, this.message, this.body, this.numbers, this._about());
    if (WIDE.has(mark) || (this.spec && isFaceted(this.spec))) this.root.classList.add("pp-wide");
    if (this.store.ui.unfolded[this.id]) this.unfold(true, false);
  }

  _about() {
    const { about } = this.definition;
    if (!about) return null;
    const lines = [["shows", "Shows"], ["read", "Read it"], ["do", "Then"]].filter(([name]) => about[name]);
    const told = lines.map(([name, title]) => node("p", {}, node("b", { text: `${title}: ` }), about[name]));
    return node("details", { class: "pp-about" }, node("summary", { text: "How to read this" }), ...told);
  }

  /** Show the numbers below the chart, or hide them. */
  unfold(open, draw = true) {
    this.numbers.hidden = !open;
    this.toggle?.setAttribute("aria-expanded", String(open));
    this.store.ui.unfolded[this.id] = open;
    if (open && draw) this._numbers();
  }

  _numbers() {
    const made = this.shown ? this.mark.table() : null;
    if (!made) return;
    const head = node("tr", {}, ...made.head.map((text) => node("th", { scope: "col", text })));
    const rows = made.rows.map((cells) => node("tr", {}, ...cells.map((text, at) => this._cell(text, at, cells.pick))));
    this.numbers.replaceChildren(node("table", { class: "pp-table" }, node("thead", {}, head), node("tbody", {}, ...rows)));
  }

  _cell(text, at, pick) {
    if (at || !pick) return node("td", { text });
    return node("td", {}, node("button", { type: "button", class: "pp-link", title: "What made it", text: text || "–", on: { click: pick } }));
  }

  /** Whether what it shows may have changed since it was drawn: its tables, or the step that is shown. */
  stale() {
    return this.seen !== this._seen();
  }

  _seen() {
    const step = this.spec?.of === "step" || this.spec?.mark === "tiles" ? this.store.step : null;
    return `${step}|${this.tables.map((name) => this.store.table(name).version).join("|")}`;
  }

  get theme() {
    return this.panel.theme;
  }

  _say(text) {
    this.message.hidden = !text;
    say(this.message, text);
  }

  /** Draw. How long it takes decides when new data may draw it again, so that the page stays free. */
  draw(now) {
    if (!this.mark) return;
    this.dirty = false;
    this.seen = this._seen();
    const shown = this.mark.draw();
    this.shown = shown;
    this.body.hidden = !shown;
    this._say(shown ? "" : this._nothing());
    this.root.dataset.state = shown ? "drawn" : "empty";
    if (!this.numbers.hidden && shown && !this.numbers.contains(document.activeElement)) this._numbers();
    const step = this.spec.of === "step" && this.store.step !== null ? `step ${this.store.step}` : "";
    if (this.spec.mark !== "line") say(this.place, [step, this.mark.remark].filter(Boolean).join(" · "));
    const cost = performance.now() - now;
    this.due = now + Math.max(PACE, cost / SHARE_OF_CARD);
  }

  _nothing() {
    const { role, rank, phase, step, zoom } = this.store.ui;
    const held = this.store.table(this.spec.table).count;
    if (!held) return EMPTY[this.spec.table] || "Nothing yet.";
    const chosen = [role, rank !== "" ? `rank ${rank}` : "", phase].filter(Boolean);
    if (chosen.length) return `Nothing here for ${chosen.join(", ")}.`;
    if (this.spec.of === "step" || step !== null) return `Nothing here in step ${this.store.step}.`;
    return zoom ? "Nothing here in this part of the run." : EMPTY[this.spec.table] || "Nothing yet.";
  }

  invalidate() {
    this.due = 0;
    this.dirty = true;
    this.panel.wake();
  }

  restyle() {
    this.mark?.restyle();
    this.invalidate();
  }

  point(text) {
    say(this.place, text);
  }

  pick(selection) {
    this.panel.details.show(selection);
  }

  announce(text) {
    this.panel.announce(text, true);
  }

  destroy() {
    this.mark?.destroy();
  }
}

// ---- small multiples: metrics have no common scale, so each key of a line chart gets a small card of its own

const MOST_FACETS = 24;

/** Whether a line chart shows metrics of unlike scales. */
function isFaceted(spec) {
  return spec.mark === "line" && spec.x === "step" && listOf(spec.by)[0] === "key" && !spec.unit;
}

/** One small chart for each key, filtered by text. */
class FacetMark {
  constructor(card) {
    this.card = card;
    this.store = card.store;
    this.spec = card.spec;
    this.facets = new Map();
    this.search = node("input", {
      type: "search", class: "pp-search", placeholder: "Filter metrics…", "aria-label": `Filter ${card.title}`, on: { input: () => this._filter() },
    });
    this.search.value = this.asked;
    this.told = node("span", { class: "pp-quiet", role: "status" });
    this.grid = node("div", { class: "pp-facets" });
    card.body.append(node("div", { class: "pp-tools" }, this.search, this.told), this.grid);
  }

  get asked() {
    return this.store.ui.tables[this.card.id]?.search || "";
  }

  _filter() {
    this.store.ui.tables[this.card.id] = { search: this.search.value };
    this.store.tell("ui");
  }

  /** Keys that have rows, by name. */
  _keys() {
    const { step, rank, role, phase } = this.store.ui;
    const table = this.store.table(this.spec.table);
    const choice = JSON.stringify([step === null, rank, role, phase, table.epoch]);
    if (choice !== this.choice) [this.choice, this.seen, this.found, this.match] = [choice, 0, new Set(), matcher(this.store, table, this.spec)];
    const fresh = Math.min(table.total - this.seen, table.count);
    for (let row = table.count - fresh; row < table.count; row += 1) {
      const code = table.columns.get("key")[row];
      if (!this.found.has(code) && this.match(row)) this.found.add(code);
    }
    this.seen = table.total;
    return [...this.found].map((code) => this.store.words.text(code)).sort();
  }

  draw() {
    const keys = this._keys();
    if (!keys.length) return false;
    const parts = this.asked.toLowerCase().split(/\s+/).filter(Boolean);
    const found = keys.filter((key) => parts.every((part) => key.toLowerCase().includes(part)));
    const shown = found.slice(0, MOST_FACETS);
    say(this.told, found.length > shown.length ? `${shown.length} of ${many(found.length, "metric")}; filter to see others` : `${many(found.length, "metric")}`);
    this._arrange(shown);
    for (const key of shown) this.facets.get(key).draw();
    return true;
  }

  _arrange(shown) {
    for (const [key, facet] of this.facets) {
      if (shown.includes(key)) continue;
      facet.destroy();
      this.facets.delete(key);
    }
    shown.forEach((key, at) => {
      if (!this.facets.has(key)) this.facets.set(key, new Facet(this.card, key));
      const { root } = this.facets.get(key);
      if (this.grid.children[at] !== root) this.grid.insertBefore(root, this.grid.children[at] || null);
    });
  }

  hover(place) {
    for (const facet of this.facets.values()) facet.mark.hover(place);
  }

  restyle() {
    for (const facet of this.facets.values()) facet.mark.restyle();
  }

  destroy() {
    for (const facet of this.facets.values()) facet.destroy();
  }

  summary() {
    return this.told.textContent;
  }

  /** The last and the extreme values of each metric. */
  table() {
    const rows = [...this.facets].map(([key, { mark }]) => {
      const values = mark.frame?.series[0]?.values || [];
      const [low, high] = extremes(values, 0, values.length);
      return [key, spell(lastKnown(values)), spell(values[low]), spell(values[high])];
    });
    return { head: ["metric", "now", "smallest", "largest"], rows };
  }
}

/** One of them: what a line mark needs of a card. */
class Facet {
  constructor(card, key) {
    this.store = card.store;
    this.outer = card;
    this.title = key;
    this.id = `${card.id}:${key}`;
    const [, ...rest] = listOf(card.spec.by);
    this.spec = { ...card.spec, by: rest, where: { ...card.spec.where, key: [key] }, names: { ...card.spec.names, value: "" }, exact: true };
    this.place = node("span", { class: "pp-place" });
    this.body = node("div", { class: "pp-body" });
    this.root = node("section", { class: "pp-facet", "aria-label": key }, node("header", {}, node("h4", { text: shorten(key, 60), title: key }), this.place), this.body);
    this.mark = new LineMark(this);
  }

  get theme() {
    return this.outer.theme;
  }

  draw() {
    this.mark.draw();
  }

  pick(selection) {
    this.outer.pick(selection);
  }

  announce(text) {
    this.outer.announce(text);
  }

  point(text) {
    say(this.place, text);
  }

  destroy() {
    this.mark.destroy();
    this.root.remove();
  }
}

// ---- controls

/** Pause, window, role, rank, phase, and the scrubber. */
class Controls {
  constructor(panel) {
    this.panel = panel;
    this.store = panel.store;
    this.pause = node("button", { type: "button", class: "pp-button", on: { click: () => panel.pause() } });
    this.window = this._select("Window", Object.entries(WINDOWS).map(([value, { title }]) => [value, title]), "window");
    this.role = this._select("Role", [], "role");
    this.rank = this._select("Rank", [], "rank");
    this.phase = this._select("Phase", [], "phase");
    this.reset = node("button", { type: "button", class: "pp-button", text: "Reset zoom", on: { click: () => this.store.choose({ zoom: null }) } });
    const choices = node("div", { class: "pp-choices" }, this.pause, ...[this.window, this.role, this.rank, this.phase].map((one) => one.root), this.reset);
    this.root = node("div", { class: "pp-controls", role: "toolbar", "aria-label": "What is shown" }, choices, this._scrubber());
  }

  _select(title, options, name) {
    const select = node("select", { "aria-label": title, on: { change: () => this.store.choose({ [name]: select.value }) } });
    const made = { select, root: node("label", { class: "pp-choice" }, node("span", { text: title }), select), known: "" };
    this._offer(made, options);
    return made;
  }

  _offer(made, options) {
    const known = JSON.stringify(options);
    if (made.known === known) return;
    made.known = known;
    const kept = made.select.value;
    made.select.replaceChildren(...options.map(([value, text]) => node("option", { value, text: shorten(text, 40) })));
    made.select.value = kept;
  }

  _scrubber() {
    this.slider = node("input", { type: "range", min: "0", max: "0", step: "1", "aria-label": "Step", on: { input: () => this._scrub(Number(this.slider.value)) } });
    this.told = node("output", { class: "pp-step" });
    this.back = node("button", { type: "button", class: "pp-plain", "aria-label": "One step back", text: "◀", on: { click: () => this.move(-1) } });
    this.on = node("button", { type: "button", class: "pp-plain", "aria-label": "One step on", text: "▶", on: { click: () => this.move(1) } });
    this.follow = node("button", { type: "button", class: "pp-button", text: "Follow", title: "Show the newest step as it comes", on: { click: () => this.store.choose({ step: null }) } });
    return node("div", { class: "pp-scrubber" }, this.told, this.back, this.slider, this.on, this.follow);
  }

  /** Move by steps; at the newest the panel follows. */
  move(by) {
    const { clock } = this.store;
    if (!clock.steps.length) return;
    const now = clock.indexOf(this.store.step);
    this._scrub(Math.min(Math.max(now + by, 0), clock.steps.length - 1));
  }

  _scrub(index) {
    const { steps } = this.store.clock;
    this.store.choose({ step: index >= steps.length - 1 ? null : steps[index] });
  }

  draw() {
    const { ui, clock, words } = this.store;
    const named = (codes) => [...codes].map((code) => words.text(code)).sort().map((text) => [text, text]);
    this._offer(this.role, [["", "all roles"], ...named(this.store.roles)]);
    this._offer(this.phase, [["", "all phases"], ...named(this.store.phases)]);
    this._offer(this.rank, [["", "all ranks"], ...[...this.store.ranks].sort((a, b) => a - b).map((rank) => [String(rank), `rank ${rank}`])]);
    for (const [name, made] of [["window", this.window], ["role", this.role], ["rank", this.rank], ["phase", this.phase]]) {
      made.root.hidden = name !== "window" && made.select.options.length < 3 && !ui[name];
      if (made.select.value !== String(ui[name])) made.select.value = String(ui[name]);
    }
    say(this.pause, ui.paused ? "Resume" : "Pause");
    this.pause.setAttribute("aria-pressed", String(ui.paused));
    this.reset.hidden = !ui.zoom;
    this._drawScrubber(ui, clock);
  }

  _drawScrubber(ui, clock) {
    const last = Math.max(clock.steps.length - 1, 0);
    const at = ui.step === null ? last : clock.indexOf(ui.step);
    if (this.slider.max !== String(last)) this.slider.max = String(last);
    if (this.slider.value !== String(at)) this.slider.value = String(at);
    this.slider.disabled = clock.steps.length < 2;
    const step = this.store.step;
    const text = step === null ? "no step yet" : `step ${step}`;
    say(this.told, text);
    this.slider.setAttribute("aria-valuetext", step === null ? text : `${text} of ${clock.newest}${ui.step === null ? ", following" : ""}`);
    this.back.disabled = at <= 0;
    this.on.disabled = at >= last;
    this.follow.setAttribute("aria-pressed", String(ui.step === null));
  }
}

// ---- the strip

/** One line for each thing that a person must know before they trust the numbers. */
class Strip {
  constructor(panel) {
    this.panel = panel;
    this.store = panel.store;
    this.root = node("ul", { class: "pp-strip", "aria-label": "Notices", hidden: true });
    this.told = "";
  }

  notices() {
    const { state, losses, switchedOff, waiting, ui } = this.store;
    const { name, when } = answerer(this.store.config);
    const made = [];
    for (const error of (state.errors || []).slice(0, 5)) made.push(["alarm", `${error.where || "probe"}: ${error.message}`]);
    for (const [where, message] of [...switchedOff].slice(-5)) made.push(["alarm", `Listener switched off: ${where}${message ? ` (${message})` : ""}`]);
    if (state.dropped > 0) made.push(["warn", `${many(state.dropped, "row")} dropped: sums that contain them are too low.`]);
    if (this.store.broken) made.push(["warn", `${losses.messages ? `${many(losses.messages, "message")} lost on the way here` : "Something that came could not be read"}; the next keyframe brings what was in ${losses.messages === 1 || !losses.messages ? "it" : "them"}.`, "keyframe"]);
    if (this.store.kernel.busy && this.store.kernel.asked !== "ping") made.push(["quiet", `The ${name} is busy: it answers ${when}. All else here goes on.`]);
    if (ui.paused && waiting.length) made.push(["quiet", `Paused; ${many(waiting.length, "update")} waiting.`]);
    return made;
  }

  draw() {
    const notices = this.notices();
    const told = JSON.stringify(notices) + this.store.kernel.asked;
    if (told === this.told) return;
    this.told = told;
    this.root.hidden = !notices.length;
    this.root.replaceChildren(...notices.map(([tone, text, ask]) => this._notice(tone, text, ask)));
    const alarms = notices.filter(([tone]) => tone === "alarm").map(([, text]) => text);
    if (alarms.length) this.panel.announce(alarms[0]);
  }

  _notice(tone, text, ask) {
    const line = node("li", { "data-tone": tone }, node("span", { class: "pp-sign", "aria-hidden": "true", text: { alarm: "✕", warn: "!", quiet: "i" }[tone] }), node("span", { text: shorten(text, 400) }));
    if (ask) {
      const asked = this.store.kernel.asked === ask;
      line.append(node("button", { type: "button", class: "pp-link", disabled: asked, text: asked ? "asked" : `Ask the ${answerer(this.store.config).name} now`, on: { click: () => this.panel.ask(ask) } }));
    }
    return line;
  }
}

// ---- tabs

/** The views as tabs. */
class Tabs {
  constructor(panel) {
    this.panel = panel;
    this.store = panel.store;
    this.views = this.store.config.views || [];
    this.pane = node("div", { class: "pp-pane", role: "tabpanel", id: freshId("pane"), tabindex: "-1" });
    this.tabs = this.views.map((view) => this._tab(view));
    this.root = node("div", { class: "pp-tabs", role: "tablist", "aria-label": "Views", on: { keydown: (event) => this._key(event) } }, ...this.tabs);
  }

  _tab(view) {
    return node("button", {
      type: "button", role: "tab", id: freshId("tab"), "aria-controls": this.pane.id, "data-view": view.id, text: view.title,
      on: { click: () => this.store.choose({ tab: view.id }) },
    });
  }

  get chosen() {
    return this.views.find((view) => view.id === this.store.ui.tab) || this.views[0];
  }

  _key(event) {
    const at = this.views.indexOf(this.chosen);
    const moves = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: this.views.length - 1 };
    if (!(event.key in moves)) return;
    const to = (moves[event.key] + this.views.length) % this.views.length;
    event.preventDefault();
    this.store.choose({ tab: this.views[to].id });
    this.tabs[to].focus();
  }

  /** Mark the chosen tab; true where it is another one than before. */
  draw() {
    const { chosen } = this;
    const other = this.shown !== chosen;
    if (!other) return false;
    this.shown = chosen;
    this.tabs.forEach((tab, at) => {
      const selected = this.views[at] === chosen;
      tab.setAttribute("aria-selected", String(selected));
      tab.tabIndex = selected ? 0 : -1;
      if (selected) {
        this.pane.setAttribute("aria-labelledby", tab.id);
        tab.scrollIntoView?.({ block: "nearest", inline: "nearest" });
      }
    });
    return true;
  }
}
