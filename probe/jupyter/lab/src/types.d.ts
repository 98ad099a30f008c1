// What the server tells; see `probe/jupyter/describing.py` and `probe/views/panel/looking.py`.

import type { Finding } from "../../../views/panel/static/src/finding_types.js";

export type State = "live" | "silent" | "finished" | "failed" | "killed" | "unknown";

export interface Alarm {
  name: string;
  /** in which it happened; null of what goes on from one to the next */
  attempt: number | null;
  rank: number | null;
  process: string | null;
  sentence: string;
}

/** A notebook, console or file that uses a kernel. */
export interface Session {
  path: string;
  name: string;
  type: string;
}

/** Who holds memory; see `probe/jupyter/holders.py`. */
export interface Holder {
  what: "kernel" | "run" | "left" | "server" | "process" | "stranger";
  bytes: number | null;
  processes: { pid: number; bytes: number | null; name: string | null }[];
  /** of all its processes */
  count: number;
  kernel: { id: string; name: string; state: string | null; since_s: number | null; sessions: Session[] } | null;
  run: { run: string; who: string; role: string | null } | null;
  name: string | null;
  user: string | null;
  path: string | null;
}

export interface Device {
  /** "0"; of an instance "0:1"; null is the machine itself */
  number: string | null;
  name: string;
  mig: boolean;
  used_bytes: number | null;
  total_bytes: number | null;
  why: string;
  listed: boolean;
  holders: Holder[];
}

/** What holds memory; see `probe/jupyter/memory.py`. */
export interface Held {
  kind: "gpu" | "rss";
  why: string;
  devices: Device[];
}

export interface Run {
  run: string;
  directory: string;
  project: string;
  experiment: string;
  started_s: number | null;
  state: State;
  since_s: number | null;
  step: number | null;
  processes: number | null;
  /** how many of them have */
  ended: number | null;
  error: string | null;
  /** null where nobody has looked yet */
  verdict: { worst: (Finding & { kind: "alarm" | "tuning" | "fine" | "withheld" }) | null; alarms: number; all_alarms: Alarm[]; whole: boolean; failed: string | null; last_step: number | null; peak_bytes: number | null; device_bytes: number | null; damaged: number } | null;
}
