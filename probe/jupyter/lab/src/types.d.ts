// What the server tells; see `probe/jupyter/describing.py` and `probe/views/panel/looking.py`.

import type { Finding } from "../../../views/panel/static/src/finding_types.js";

export type State = "live" | "silent" | "finished" | "failed" | "killed" | "unknown";

export interface Alarm {
  name: string;
  rank: number | null;
  process: string | null;
  sentence: string;
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
  verdict: { worst: (Finding & { kind: "alarm" | "tuning" | "fine" }) | null; alarms: number; all_alarms: Alarm[]; whole: boolean; failed: string | null; last_step: number | null; peak_bytes: number | null; device_bytes: number | null; damaged: number } | null;
}
