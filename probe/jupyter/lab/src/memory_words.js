// What is said of the memory of the server's machine, and of who holds it.

import { ago, bytes, many } from "../../../views/panel/static/src/words.js";
import { kept, ofTotal } from "./words.js";

/** @import { Device, Held, Holder } from "./types.js" */

const MOST_PIDS = 4;
const UNLISTED_BYTES = 256 * 1024 ** 2; //  so much a driver may need itself, and two numbers aren't of one moment

/** @param {Held} held */
export const heading = ({ kind }) => (kind === "gpu" ? "GPU memory" : "Process memory (RSS)");

/** What the numbers are, where that could be mistaken. @param {Held} held */
export function lead({ kind, why }) {
  if (kind === "gpu") return "";
  const help = why ? ` ${sentence(why)}` : "";
  return `Resident memory of kernels, of runs, and of their child processes. It is not GPU memory.${help}`;
}

/** @param {string} text */
const sentence = (text) => (/[.!?]$/.test(text) ? text : `${text}.`);

/** @param {Device} device */
export function deviceName({ number, name, mig }) {
  if (number === null) return "This machine";
  const [gpu, part] = number.split(":");
  return [`GPU ${gpu}${mig ? `, MIG ${part}` : ""}`, name].filter(Boolean).join(" · ");
}

/** "71 of 79 GiB" @param {Device} device */
export const usage = ({ used_bytes: used, total_bytes: total }) => (used === null ? "not known" : kept(ofTotal(used, total)));

/** What isn't known of a device, and why. @param {Device} device */
export function gaps(device) {
  const said = [];
  if (!device.listed) said.push("The driver lists no processes here.");
  if (device.why) said.push(`The driver says: ${sentence(device.why)}`);
  if (device.holders.some((one) => one.bytes === null)) said.push("The driver doesn't say how much each process holds, as under WSL and in some containers.");
  const left = unlisted(device);
  if (left) said.push(`${kept(bytes(left))} belong to no listed process. In a container the driver lists only the container's own.`);
  return said.join(" ");
}

/** What is in use and belongs to nobody who is listed; 0 where that is little, or can't be known. @param {Device} device */
function unlisted({ number, used_bytes: used, listed, holders }) {
  if (number === null || used === null || !listed || holders.some((one) => one.bytes === null)) return 0;
  const left = used - holders.reduce((sum, one) => sum + (one.bytes ?? 0), 0);
  return left > UNLISTED_BYTES ? left : 0;
}

/**
 * Who it is.
 * @param {Holder} holder
 * @param {(run: string) => string} titled what a run is called
 */
export function holderName(holder, titled) {
  const { what, kernel, run, name, user, path } = holder;
  if (kernel) return kernel.sessions.map((one) => (one.type === "notebook" ? one.path : one.name || one.path)).join(" and ") || `Kernel ${kernel.name} without a notebook`;
  if (run) return `${titled(run.run)}, ${place(run)}`;
  if (what === "left") return `${name}, left by ${path}`;
  if (what === "server") return "This Jupyter server";
  if (what === "stranger") return "Process outside this system";
  return [name || "Process without a name", user ? `user ${user}` : ""].filter(Boolean).join(", ");
}

/** "rank 3, actor" @param {NonNullable<Holder["run"]>} run */
export const place = ({ who, role }) => (role ? `${who}, ${role}` : who);

/** More of it than a line can say. @param {Holder} holder */
export function holderTip({ what, kernel }) {
  if (what === "left") return "A kernel of this notebook began it, and isn't its parent any more: it goes on although the kernel was restarted or shut down.";
  if (what === "stranger") return "The driver names a process id that isn't of this system: it runs outside this container.";
  if (kernel?.since_s) return `The kernel was active last at ${new Date(kernel.since_s * 1000).toLocaleString("en")}`;
  return "";
}

/**
 * Whether its kernel is idle, and since when.
 * @param {Holder} holder
 * @param {number} now seconds since the epoch
 */
export function activity({ kernel }, now) {
  if (!kernel?.state) return "";
  const { state, since_s: since } = kernel;
  if (state === "idle" && since !== null) return kept(`Idle for ${ago(Math.max(now - since, 0))}`);
  return state[0].toUpperCase() + state.slice(1);
}

/** "pid 4242", or each with what it holds. @param {Holder} holder */
export function pids({ processes, count }) {
  if (count === 1) return [kept(`pid ${processes[0].pid}`)];
  const shown = processes.slice(0, MOST_PIDS);
  const told = shown.map(({ pid, bytes: size, name }) => kept(`pid ${pid}${name ? ` (${name})` : ""}: ${held(size)}`));
  return count > shown.length ? [...told, kept(`and ${count - shown.length} more`)] : told;
}

/** @param {number | null} size */
export const held = (size) => (size === null ? "–" : kept(bytes(size)));

/** For the status bar: the fullest GPU; else what kernels hold. "" where there is nothing to say. @param {Held} told */
export function inShort({ kind, devices }) {
  if (kind === "gpu") {
    const device = fullest(devices);
    if (!device) return "";
    return `GPU${devices.length > 1 ? ` ${device.number}` : ""}: ${usage(device)}`;
  }
  const kernels = devices.flatMap(({ holders }) => holders).filter((one) => one.kernel);
  const sum = kernels.reduce((all, one) => all + (one.bytes ?? 0), 0);
  return sum ? `${many(new Set(kernels.map((one) => one.kernel?.id)).size, "kernel")}: ${kept(bytes(sum))} RSS` : "";
}

/** The GPU with the least left; null where none says. @param {Device[]} devices */
function fullest(devices) {
  const share = (/** @type {Device} */ one) => (one.used_bytes ?? 0) / (one.total_bytes || Infinity);
  const known = devices.filter(({ used_bytes: used }) => used !== null);
  return known.length ? known.reduce((most, one) => (share(one) > share(most) ? one : most)) : null;
}

/**
 * Who holds most of what the status bar names.
 * @param {Held} told
 * @param {(run: string) => string} titled
 * @param {number} now seconds since the epoch
 */
export function mostBy({ kind, devices }, titled, now) {
  const device = kind === "gpu" ? fullest(devices) : devices[0];
  const most = device?.holders.find((one) => one.bytes !== null && (kind === "gpu" || one.kernel));
  if (!device || !most) return "";
  const idle = activity(most, now).toLowerCase();
  return `${kind === "gpu" ? `${deviceName(device)}. ` : ""}Most is held by ${holderName(most, titled)}${idle ? `, ${idle}` : ""}: ${held(most.bytes)}`;
}
