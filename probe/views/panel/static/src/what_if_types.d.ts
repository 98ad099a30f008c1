// Batches, settings and models of a phase, with which a page answers what other settings come to.

/** Rows that were put together: one row, or those of two others, the first ones in front. */
export type PackedRows = number | [PackedRows, PackedRows];

/** What a packer is given; `Cut` in `probe/core/balancing/replay.py` says what each of them means. */
export interface PackerCut {
  packer: string;
  cap_tokens: number | null;
  minimum_count: number | null;
  divisor: number | null;
  group_size: number;
  counts_agreed: boolean;
  rows_each: number | null;
  ordered: boolean;
  strict: boolean;
}

/** A setting that can be turned; see `Adjustable` in `probe/analysis/advice/adjustable.py`. */
export interface SettingTold {
  name: string;
  key: string;
  value: number | boolean;
  choices: (number | boolean)[];
  free: boolean;
  known: boolean;
  rows: number;
  product: [key: string, whole: number] | null;
  beside: string[];
}

/** Seconds of a phase from micro-batches, tokens and squares. */
export interface FitTold {
  coefficients: number[];
  covariance: number[][];
  reach: number;
}

/** of micro-batches, tokens and squares; then of each rank with a pace of its own the seconds at the others' pace */
export interface SecondsTold extends FitTold {
  paces: [rank: number, pace: number][];
  /** which ranks have a pace of their own */
  notes: string[];
}

/** A number of a micro-batch without a coefficient; `Unseen` in `probe/analysis/unseen.py` says what was seen of it. */
export interface UnseenTold {
  /** its place among the tokens, the longest row and the rows */
  at: number;
  /** what a constant, the tokens, the longest row and the rows foretell of it */
  foretold: number[];
  below: number;
  above: number;
  usual: number;
  little: number;
  why: string;
}

/** Peak of a micro-batch from a constant, its tokens, its longest row and its rows. */
export interface MemoryTold extends FitTold {
  /** of a measurement: at least the first, else the second + the third × what is expected */
  noise: [least: number, always: number, share: number];
  room_bytes: number | null;
  largest_tokens: number;
  unseen: UnseenTold[];
}

/** The batches of one role and phase; see `told_batches` in `probe/views/panel/what_if.py`. */
export interface WhatIfPhase {
  role: string | null;
  phase: string | null;
  packer: string;
  compared: boolean;
  /** whether a page has the packer's rule */
  in_page: boolean;
  why: string;
  settings: SettingTold[];
  cuts: { now?: "capped" | "fixed"; capped?: PackerCut; fixed?: PackerCut };
  parallel: number;
  width: { padded: boolean; fixed: number | null; round_to: number };
  lengths: string;
  /** what was recorded */
  before: Record<string, number | null>;
  /** what the models say of the batches as they were cut */
  modelled: Record<string, number | null>;
  work: number[];
  seconds: SecondsTold | null;
  memory: MemoryTold | null;
  unknown: string[];
  caps?: CapLimit;
}

/** What memory allows of a cap: the largest at the risk, and from which on the risk is larger. */
export interface CapLimit {
  best: number | null;
  risky: number | null;
  risk: number;
}

export interface WhatIfBatches {
  step: number | null;
  phases: WhatIfPhase[];
}

/** What other settings come to. */
export interface Answered {
  before: Record<string, number | null>;
  after: Record<string, number | null>;
  low: Record<string, number | null>;
  high: Record<string, number | null>;
  /** what the models say of the batches as they were cut */
  modelled: Record<string, number | null>;
  saved: [saved: number, reach: number] | null;
  /** micro-batches of each rank, where they are known */
  counts?: number[];
  notes: string[];
  compared: boolean;
}
