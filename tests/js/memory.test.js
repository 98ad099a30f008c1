// What JupyterLab's list and status bar say of who holds memory.

import assert from "node:assert/strict";
import { test } from "node:test";

import { activity, deviceName, gaps, heading, held, holderName, holderTip, inShort, lead, mostBy, pids, usage } from "../../probe/jupyter/lab/src/memory_words.js";

const GIB = 1024 ** 3;
const NOW = 1_800_000_000;

/** @import { Device, Held, Holder } from "../../probe/jupyter/lab/src/types.js" */

/** @param {string} text */
const plain = (text) => text.replaceAll("\u00a0", " ");
const titled = (/** @type {string} */ run) => `shop / ${run}`;

/** @type {(...sizes: (number | null)[]) => Pick<Holder, "bytes" | "processes" | "count">} */
const sized = (...sizes) => ({ bytes: sizes.reduce((sum, one) => (one === null ? sum : (sum ?? 0) + one), /** @type {number | null} */ (null)), processes: sizes.map((bytes, at) => ({ pid: 42 + at, bytes, name: at ? "worker" : null })), count: sizes.length });

/** @type {Holder} */
const PROCESS = { what: "process", name: "python", user: null, path: null, kernel: null, run: null, ...sized(2 * GIB) };

/** @type {NonNullable<Holder["kernel"]>} */
const KERNEL = { id: "k", name: "python3", state: "idle", since_s: NOW - 10_800, sessions: [{ path: "a/train.ipynb", name: "train.ipynb", type: "notebook" }] };
/** @type {Holder} */
const NOTEBOOK = { ...PROCESS, what: "kernel", name: null, kernel: KERNEL, ...sized(30 * GIB, 11 * GIB) };
const RUN = { run: "first", who: "rank 3", role: "actor" };

/** @type {Device} */
const DEVICE = { number: "0", name: "NVIDIA H100", mig: false, used_bytes: 41 * GIB, total_bytes: 79 * GIB, why: "", listed: true, holders: [NOTEBOOK] };
/** @type {(...devices: Device[]) => Held} */
const gpus = (...devices) => ({ kind: "gpu", why: "", devices });
/** @type {(...holders: Holder[]) => Held} */
const rss = (...holders) => ({ kind: "rss", why: "", devices: [{ ...DEVICE, number: null, name: "", holders }] });

test("who holds memory is named by notebook, run, server, or what the system tells", () => {
  const named = (/** @type {Partial<Holder>} */ more) => holderName({ ...PROCESS, ...more }, titled);
  assert.equal(named(NOTEBOOK), "a/train.ipynb");
  const console = { path: "a/console-1-x", name: "Console 1", type: "console" };
  assert.equal(named({ kernel: { ...KERNEL, sessions: [...KERNEL.sessions, console] } }), "a/train.ipynb and Console 1");
  assert.equal(named({ kernel: { ...KERNEL, sessions: [] } }), "Kernel python3 without a notebook");
  assert.equal(named({ what: "run", run: RUN }), "shop / first, rank 3, actor");
  assert.equal(named({ what: "run", run: { ...RUN, role: null } }), "shop / first, rank 3");
  assert.equal(named({ what: "left", path: "a/train.ipynb" }), "python, left by a/train.ipynb");
  assert.equal(named({ what: "server", name: null }), "This Jupyter server");
  assert.equal(named({ what: "stranger", name: null }), "Process outside this system");
  assert.deepEqual([named({}), named({ user: "bob" }), named({ name: null, user: "bob" })], ["python", "python, user bob", "Process without a name, user bob"]);
});

test("an idle kernel says since when, and only a kernel does", () => {
  const said = (/** @type {Partial<typeof KERNEL>} */ more) => plain(activity({ ...NOTEBOOK, kernel: { ...KERNEL, ...more } }, NOW));
  assert.equal(said({}), "Idle for 3 h");
  assert.deepEqual([said({ since_s: null }), said({ state: "busy" }), said({ state: "starting" }), said({ state: null })], ["Idle", "Busy", "Starting", ""]);
  assert.equal(said({ since_s: NOW + 5 }), "Idle for 0 s"); //  its clock is another one
  assert.equal(activity(PROCESS, NOW), "");
  assert.match(holderTip(NOTEBOOK), /^The kernel was active last at /);
  assert.equal(holderTip(PROCESS), "");
});

test("each process is named by its id, with what it holds where there are several", () => {
  assert.deepEqual(pids(PROCESS).map(plain), ["pid 42"]);
  assert.deepEqual(pids(NOTEBOOK).map(plain), ["pid 42: 30 GiB", "pid 43 (worker): 11 GiB"]);
  const many = pids({ ...NOTEBOOK, ...sized(...Array.from({ length: 20 }, () => GIB)), count: 70 }).map(plain);
  assert.deepEqual([many.length, many.at(-1)], [5, "and 66 more"]);
  assert.deepEqual(pids({ ...NOTEBOOK, ...sized(null, GIB) }).map(plain), ["pid 42: –", "pid 43 (worker): 1 GiB"]);
  assert.deepEqual([held(null), plain(held(GIB))], ["–", "1 GiB"]);
});

test("a device says what is used, and in words what the driver doesn't tell", () => {
  assert.equal(deviceName(DEVICE), "GPU 0 · NVIDIA H100");
  assert.equal(deviceName({ ...DEVICE, number: "2:1", mig: true, name: "MIG 1g" }), "GPU 2, MIG 1 · MIG 1g");
  assert.equal(deviceName({ ...DEVICE, number: null, name: "" }), "This machine");
  assert.equal(plain(usage(DEVICE)), "41 of 79 GiB");
  assert.deepEqual([usage({ ...DEVICE, used_bytes: null }), plain(usage({ ...DEVICE, total_bytes: null }))], ["not known", "41 GiB"]);
  const told = (/** @type {Partial<Device>} */ more) => plain(gaps({ ...DEVICE, ...more }));
  assert.equal(told({}), "");
  assert.equal(told({ used_bytes: 41 * GIB + 1000 }), "");
  assert.match(told({ used_bytes: 44 * GIB }), /^3 GiB belong to no listed process\. /);
  assert.match(told({ holders: [], used_bytes: 3 * GIB }), /^3 GiB belong to no listed process\. /);
  assert.equal(told({ listed: false, why: "Not Supported", holders: [] }), "The driver lists no processes here. The driver says: Not Supported.");
  // Where one number isn't known there is no difference to be told.
  assert.equal(told({ used_bytes: 60 * GIB, holders: [NOTEBOOK, { ...PROCESS, ...sized(null) }] }), "The driver doesn't say how much each process holds, as under WSL and in some containers.");
  assert.equal(told({ number: null, used_bytes: 60 * GIB }), ""); //  of a machine without a GPU not all processes are listed
  assert.equal(told({ used_bytes: null }), "");
});

test("without a GPU it is called process memory, and what helps is said", () => {
  assert.deepEqual([heading(gpus()), heading(rss())], ["GPU memory", "Process memory (RSS)"]);
  assert.equal(lead(gpus()), "");
  assert.match(lead(rss()), /It is not GPU memory\.$/);
  assert.match(lead({ ...rss(), why: "GPU memory needs a package" }), /It is not GPU memory\. GPU memory needs a package\.$/);
});

test("the status bar names the fullest GPU, or what kernels have resident", () => {
  const full = { ...DEVICE, number: "1", used_bytes: 70 * GIB, holders: [PROCESS] };
  assert.equal(plain(inShort(gpus(DEVICE))), "GPU: 41 of 79 GiB");
  assert.equal(plain(inShort(gpus(DEVICE, full, { ...DEVICE, number: "2", used_bytes: null }))), "GPU 1: 70 of 79 GiB");
  assert.equal(inShort(gpus({ ...DEVICE, used_bytes: null })), "");
  assert.equal(plain(inShort(rss(NOTEBOOK, { ...NOTEBOOK, run: RUN, ...sized(GIB) }, PROCESS))), "1 kernel: 42 GiB RSS");
  assert.equal(inShort(rss(PROCESS)), "");
  assert.equal(plain(mostBy(gpus(DEVICE, full), titled, NOW)), "GPU 1 · NVIDIA H100. Most is held by python: 2 GiB");
  assert.equal(plain(mostBy(rss(PROCESS, NOTEBOOK), titled, NOW)), "Most is held by a/train.ipynb, idle for 3 h: 41 GiB");
  assert.equal(mostBy(gpus({ ...DEVICE, holders: [] }), titled, NOW), "");
});
