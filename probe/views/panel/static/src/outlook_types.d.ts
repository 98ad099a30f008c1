// What stands beside the sliders of settings; see `told` in `probe/views/panel/outlook.py`.

/** A cap on the axis of tokens. */
export interface OutlookCap {
  at: number;
  text: string;
}

/** Peaks of one phase by tokens; peaks are in GiB. */
export interface OutlookPeaks {
  title: string;
  phase: string | null;
  sentence: string;
  dots: [tokens: number, peak: number][];
  line: [tokens: number, peak: number, low: number, high: number][];
  /** tokens of the largest micro-batch */
  seen: number;
  capacity: number;
  now: OutlookCap | null;
  /** the best cap within the risk, where it is another one */
  best: OutlookCap | null;
  /** the highest peak of the replay under it */
  aim: { at: number; peak: number; low: number; high: number; text: string } | null;
  slope: string;
  notes: string[];
  head: string[];
  rows: string[][];
}

/** A list of changes or promises. */
export interface OutlookList {
  title?: string;
  sentence: string;
  head: string[];
  /** `when` says whether a change can be made now, in the last of its cells */
  rows: { cells: string[]; when?: "ready" | "held"; sum?: boolean; held?: boolean | null; about?: string }[];
  notes?: string[];
}

export interface OutlookTold {
  caps: OutlookPeaks[];
  /** why no cap can be told */
  remarks: string[];
  /** null without a suggested change */
  together: OutlookList | null;
  earlier: OutlookList;
}
