// What JupyterLab's list, status bar and notifications say of runs.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Alarms } from "../../probe/jupyter/lab/src/alarms.js";
import { configRow, findingRow, metricRow } from "../../probe/jupyter/lab/src/compared.js";
import { notebookOf, sameAs } from "../../probe/jupyter/lab/src/notebook_cells.js";
import { ORDERS } from "../../probe/jupyter/lab/src/order.js";
import { age, inShort, isRecent, kindOf, mayBeRun, namesOf, newestOf, standing, verdict, whyNoPanel } from "../../probe/jupyter/lab/src/words.js";

const GIB = 1024 ** 3;
const NOW = Date.now() / 1000;

/** @type {import("../../probe/jupyter/lab/src/types.js").Run} */
const RUN = {
  run: "runs/a", directory: "/home/ann/runs/a", project: "shop", experiment: "a", started_s: NOW - 200, state: "live", since_s: NOW, step: 412, processes: 2, ended: 0, error: null,
  verdict: { worst: null, alarms: 0, all_alarms: [], whole: true, failed: null, last_step: 411, peak_bytes: 71 * GIB, device_bytes: 79 * GIB, damaged: 0 },
};
const VERDICT = /** @type {NonNullable<typeof RUN.verdict>} */ (RUN.verdict);
/** @param {Partial<typeof VERDICT>} more */
const judged = (more) => ({ ...RUN, verdict: { ...VERDICT, ...more } });
/** @param {string} text */
const plain = (text) => text.replaceAll("\u00a0", " ");

test("2: the status bar says step, memory of the device and alarms", () => {
  assert.equal(plain(inShort(judged({ alarms: 1 }))), "step 412 · 71 of 79 GiB · 1 alarm");
  assert.equal(plain(inShort(judged({ alarms: 2, device_bytes: null }))), "step 412 · 71 GiB · 2 alarms");
  assert.equal(plain(inShort({ ...judged({ peak_bytes: null }), step: null })), "");
});

test("2: a run says whether it is live, since when not, and how old it is", () => {
  assert.equal(standing(RUN, NOW), "Live");
  assert.equal(age(RUN, NOW), "began 3 min ago");
  assert.equal(age({ ...RUN, started_s: null }, NOW), "");
  assert.equal(standing({ ...RUN, state: "silent", since_s: NOW - 40 }, NOW), "Silent for 40 s");
  const silent = (/** @type {number} */ seconds) => isRecent({ ...RUN, state: "silent", since_s: NOW - seconds }, NOW);
  assert.deepEqual([isRecent(RUN), silent(60), silent(3600)], [true, true, false]);
  assert.equal(standing({ ...RUN, state: "finished", since_s: NOW - 7200 }, NOW), "Finished 2 h ago");
});

test("2: the status bar is about a live run, also where a newer one has just fallen silent", () => {
  const live = { ...RUN, run: "live" };
  const silent = { ...RUN, run: "silent", state: /** @type {const} */ ("silent"), since_s: NOW - 60 };
  const finished = { ...RUN, run: "finished", state: /** @type {const} */ ("finished"), since_s: NOW - 5 };
  assert.equal(newestOf([finished, silent, live])?.run, "live");
  assert.equal(newestOf([live, { ...RUN, run: "older" }])?.run, "live");
  assert.equal(newestOf([finished, silent])?.run, "silent");
  assert.equal(newestOf([finished, { ...silent, since_s: NOW - 3600 }]), null);
});

test("3: a run is the same one by its name in the list and by the whole path that a cell has", () => {
  for (const name of [RUN.run, RUN.directory]) assert.deepEqual(namesOf(name, [{ ...RUN, run: "b", directory: "/b" }, RUN]), ["runs/a", "/home/ann/runs/a"]);
  assert.deepEqual(namesOf("/elsewhere/a", [RUN]), ["/elsewhere/a"]);
});

test("3: a cell without its live panel says why", () => {
  assert.match(whyNoPanel(true, false, "idle"), /install ipywidgets and anywidget/);
  assert.match(whyNoPanel(false, true, "idle"), /Trust Notebook/);
  for (const status of ["busy", "unknown", "starting"]) assert.match(whyNoPanel(true, true, status), /waits for the kernel/);
  for (const status of [null, "dead"]) assert.match(whyNoPanel(true, true, status), /needs a kernel/);
  assert.match(whyNoPanel(true, true, "idle"), /no live panel for this cell any more/);
  assert.equal(whyNoPanel(true, true, undefined), "The live panel isn't shown here.");
});

test("2: damaged files are counted, and where not everything was looked for nothing is called fine", () => {
  assert.equal(verdict(RUN), "Nothing was found.");
  assert.match(verdict(judged({ damaged: 1 })), /^Nothing was found\. 1 damaged file left out: /);
  assert.match(verdict(judged({ damaged: 3 })), /3 damaged files left out/);
  const worst = /** @type {any} */ ({ kind: "tuning", sentence: "They wait 1.04 s of a step, 16 %, and hold 64 MiB so far." });
  assert.equal(verdict(judged({ worst })), "They wait 1.04\u00a0s of a step, 16\u00a0%, and hold 64\u00a0MiB so far.");
  assert.equal(verdict(judged({ whole: false })), "Nothing was found, but not everything could be looked for.");
});

test("2: of a healthy run the verdict comes before what was checked, and nothing is called fine where not everything was", () => {
  const checked = (/** @type {any} */ kind, whole = true) => judged({ worst: /** @type {any} */ ({ kind, sentence: "The largest peak was 9.2 GiB." }), whole });
  const said = (/** @type {string} */ kind, whole = true) => [kindOf(checked(kind, whole)), plain(verdict(checked(kind, whole)))];
  assert.deepEqual(said("fine"), ["fine", "Nothing is wrong. The largest peak was 9.2 GiB."]);
  assert.deepEqual(said("fine", false), ["unknown", "Nothing was found, but not everything could be looked for. The largest peak was 9.2 GiB."]);
  assert.deepEqual(said("withheld"), ["unknown", "Nothing was found, but not everything could be judged. The largest peak was 9.2 GiB."]);
  for (const kind of ["alarm", "tuning"]) assert.deepEqual(said(kind), [kind, "The largest peak was 9.2 GiB."]);
  assert.deepEqual([RUN, judged({ whole: false }), { ...RUN, verdict: null }, { ...RUN, state: /** @type {const} */ ("unknown") }].map(kindOf), ["fine", "unknown", "unknown", "unknown"]);
  assert.equal(kindOf({ ...RUN, error: "gone" }), "alarm");
});

test("2: a run.json of another tool is no run, and nobody is told to delete its directory", () => {
  const others = ['{"name": "of another tool", "steps": 3}', '{"schema_version": 2, "steps": 3}', '{"schema_version": "2.0", "project": "a"}', "[]", "null", "3"];
  assert.deepEqual(others.filter(mayBeRun), []);
  assert.deepEqual(['{"schema_version": 2, "project": "a"}', '{"not'].map(mayBeRun), [true, true]);
  const said = (/** @type {string} */ error) => verdict({ ...RUN, error });
  assert.equal(said("run 'a': run.json isn't what probe writes: it is torn"), "run.json isn't what probe writes: it is torn. If this is a run of probe, put the file back from a copy.");
  assert.match(said("run 'a': run.json wasn't written by probe: it has no schema_version"), /^run\.json wasn't .* If this is a run of probe, put /);
  // What a copy doesn't help against.
  assert.equal(said("run 'a' has schema version 9; install a newer probe-rl to open it"), "run 'a' has schema version 9; install a newer probe-rl to open it.");
  assert.equal(said("[Errno 13] Permission denied: 'run.json'"), "[Errno 13] Permission denied: 'run.json'.");
  const empty = verdict({ ...RUN, state: "unknown" });
  assert.equal(empty, "Nothing is recorded here yet. The numbers appear by themselves once a training records here.");
  assert.doesNotMatch(empty, /delete/);
});

test("2: the list is sorted by age, by name, or the worst first", () => {
  const worst = (/** @type {string} */ kind) => /** @type {any} */ ({ kind, sentence: "" });
  const runs = [
    { ...judged({ worst: worst("tuning") }), experiment: "b", started_s: 3 },
    { ...judged({ worst: worst("alarm") }), experiment: "c", started_s: 1 },
    { ...judged({ worst: null }), experiment: "a", started_s: 2 },
    { ...RUN, verdict: null, experiment: "d", started_s: 4 },
  ];
  const judgedLess = [{ ...judged({ worst: worst("withheld") }), experiment: "e", started_s: 5 }, ...runs];
  assert.equal(judgedLess.sort(ORDERS.worst).map(({ experiment }) => experiment).join(""), "cbead");
  const sorted = (/** @type {string} */ by) => [...runs].sort(ORDERS[by]).map(({ experiment }) => experiment).join("");
  assert.deepEqual(["newest", "name", "worst"].map(sorted), ["dbac", "abcd", "cbad"]);
});

/** JupyterLab's notifications: what stands in its list, by its id. */
class Bell {
  constructor() {
    /** @type {Map<string, {message: string, type?: string, autoClose?: any}>} */
    this.shown = new Map();
    this.rung = 0;
  }

  /** @param {string} message @param {any} [how] */
  warning = (message, how) => {
    this.rung += 1;
    this.shown.set(String(this.rung), { ...how, message, type: "warning" });
    return String(this.rung);
  };

  /** @param {any} told */
  update = ({ id, ...told }) => {
    if (!this.shown.has(id)) return false;
    this.shown.set(id, told);
    return true;
  };

  get said() {
    return [...this.shown.values()].map(({ message, type }) => `${type}: ${message}`);
  }
}

const LEAK = { name: "device_leak", attempt: null, rank: 1, process: null, sentence: "64 MiB stay on each card." };
const KILLED = { name: "killed", attempt: 1, rank: 0, process: null, sentence: "Rank 0 was killed." };

function hearing() {
  const bell = new Bell();
  return { bell, alarms: new Alarms(() => undefined, /** @type {any} */ (bell)) };
}

test("2: each alarm is told once, whichever is the worst by then", () => {
  const { bell, alarms } = hearing();
  for (const found of [[LEAK], [KILLED, LEAK], [LEAK, KILLED]]) alarms.hear([judged({ all_alarms: found })]);
  assert.deepEqual(bell.said, ["warning: shop / a: 64 MiB stay on each card.", "warning: shop / a: Rank 0 was killed."]);
});

test("2: an alarm that is found no longer is marked so, and is one again when it comes back", () => {
  const { bell, alarms } = hearing();
  alarms.hear([judged({ all_alarms: [LEAK] })]);
  alarms.hear([judged({ all_alarms: [] })]);
  assert.deepEqual(bell.said, ["info: Found no longer in shop / a: 64 MiB stay on each card."]);
  assert.equal([...bell.shown.values()][0].autoClose, 8000);
  alarms.hear([judged({ all_alarms: [LEAK] })]);
  assert.deepEqual(bell.said, ["warning: shop / a: 64 MiB stay on each card."]);
  assert.equal(bell.rung, 1);
});

test("2: where a look failed, or none is known, no alarm is taken back", () => {
  const { bell, alarms } = hearing();
  alarms.hear([judged({ all_alarms: [LEAK] })]);
  for (const run of [judged({ whole: false }), judged({ failed: "MemoryError", whole: false }), { ...RUN, verdict: null }, { ...RUN, error: "gone" }]) alarms.hear([run]);
  alarms.hear([]);
  assert.deepEqual(bell.said, ["warning: shop / a: 64 MiB stay on each card."]);
});

test("2: one that was dismissed stays dismissed while it comes and goes", () => {
  const { bell, alarms } = hearing();
  alarms.hear([judged({ all_alarms: [LEAK] })]);
  bell.shown.clear();
  for (const found of [[], [LEAK], [], [LEAK]]) alarms.hear([judged({ all_alarms: found })]);
  assert.deepEqual(bell.said, []);
});

test("2: a rank that is killed again, in a job that was started again, is told again", () => {
  const { bell, alarms } = hearing();
  alarms.hear([judged({ all_alarms: [KILLED] })]);
  bell.shown.clear();
  for (const found of [[KILLED], [], [{ ...KILLED, attempt: 2 }], [{ ...KILLED, attempt: 2 }]]) alarms.hear([judged({ all_alarms: found })]);
  assert.deepEqual(bell.said, ["warning: shop / a: Rank 0 was killed."]);
  assert.equal(bell.rung, 2);
});

test("2: of a run that had ended before anybody looked, and where nobody wants any, nothing is told", () => {
  const { bell, alarms } = hearing();
  alarms.hear([{ ...judged({ all_alarms: [LEAK] }), state: "failed", since_s: NOW - 5 }]);
  alarms.wanted = false;
  alarms.hear([judged({ all_alarms: [KILLED] })]);
  alarms.wanted = true;
  alarms.hear([judged({ all_alarms: [KILLED] })]);
  assert.deepEqual(bell.said, []);
});

/** @type {import("../../probe/views/panel/static/src/finding_types.js").Finding} */
const FOUND = {
  kind: "tuning", name: "slow_rank", topic: "overview", sentence: "Rank 1 is slower.", why: "", since: null, change: null,
  where: { step: null, role: "actor", phase: "update", micro_batch: null, rank: 1, process: null },
};
const told = (/** @type {object} */ more, /** @type {object} */ place = {}) => ({ ...FOUND, evidence_sql: "select 1", ...more, where: { attempt: 1, ...FOUND.where, ...place } });

test("3: a finding's query isn't taken from another one of the same rank and phase", () => {
  const others = [told({ sentence: "Rank 1 is slower still." }), told({}, { step: 3 }), told({}, { role: "critic" }), told({}, { process: "extra" }), told({ name: "padding" })];
  assert.equal(sameAs(FOUND, others), undefined);
  const own = told({ sentence: "Rank 1 is\n slower." });
  assert.equal(sameAs(FOUND, [...others, own]), own);
  const long = told({ sentence: "word ".repeat(300) });
  assert.equal(sameAs({ ...FOUND, sentence: `${long.sentence.slice(0, 799)}…` }, [...others, long]), long);
});

test("3: what a run says stays text in a notebook: one line, no markup, no formula", () => {
  const of = (/** @type {string} */ sentence, why = "") => notebookOf("runs/a", { ...FOUND, sentence, why }).cells[0].source;
  assert.equal(of("Rank 1 in actor/pg_loss is slower.", "1. It waits\n# for 30 %."), "## Rank 1 in actor/pg\\_loss is slower.\n\n1\\. It waits \\# for 30 %.");
  assert.equal(of("a\n\n- <b>b</b> ~~c~~ &lt;"), "## a - \\<b\\>b\\</b\\> \\~\\~c\\~\\~ \\&lt;");
  assert.equal(of("ValueError: $x^2$ \\(y\\)"), '## <span class="mathjax_ignore">ValueError: &#36;x^2&#36; &#92;(y&#92;)</span>');
  assert.equal(of("a", "- b"), "## a\n\n\\- b");
});

test("2: two runs are compared in units that people read, and what can't be said is a dash or nothing", () => {
  const row = (/** @type {object} */ more) => metricRow({ metric: "m", unit: "number", a: 1, b: 1, change_ratio: 0, ...more });
  assert.deepEqual(row({ metric: "peak_memory", unit: "bytes", a: 2 * GIB, b: 3 * GIB, change_ratio: 0.5 }), { metric: "peak_memory", a: "2 GiB", b: "3 GiB", change: "+50 %" });
  assert.deepEqual(row({ unit: "tokens", a: 19200, b: 9600, change_ratio: -0.5 }), { metric: "m", a: "19.2 k tokens", b: "9600 tokens", change: "−50 %" });
  assert.deepEqual(row({ unit: "percent", a: 0, b: 0.25, change_ratio: "NaN" }), { metric: "m", a: "0 %", b: "25 %", change: "" });
  assert.equal(row({ unit: "ratio", a: 1.04 }).a, "1.04×");
  assert.deepEqual(row({ unit: "ratio", a: null, b: "NaN", change_ratio: null }), { metric: "m", a: "–", b: "–", change: "" });
  assert.deepEqual(configRow({ key: "lr", a: 1e-6, b: null }), { key: "lr", a: "0.000001", b: "–" });
  assert.deepEqual(configRow({ key: "steps", a: [1, 2], b: 1000000 }), { key: "steps", a: "[1,2]", b: "1000000" });
  assert.deepEqual(findingRow({ about: "ranks", kind_a: "tuning", finding_a: "Rank 1 is slower.", kind_b: null, finding_b: null }), { about: "ranks", a: "Worth a change: Rank 1 is slower.", b: "–" });
});
