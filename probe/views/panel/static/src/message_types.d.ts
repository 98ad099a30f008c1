// Messages between kernel and browser: the state of the run, tables, series over all steps, wishes.

import type { Spec, TableData } from "./definition_types.js";
import type { Disagreement, Finding, FoundAdvice, FoundLedger, Lanes, PostMortem } from "./finding_types.js";
import type { OutlookTold } from "./outlook_types.js";
import type { KeptSamples } from "./sample_types.js";
import type { WhatIfBatches } from "./what_if_types.js";

/** What the kernel says of the run beside its rows. */
export interface RunState {
  finished?: boolean;
  /** processes that an exception has ended, by name */
  ended?: { word: string; short: string; sentence: string } | null;
  live?: boolean;
  newest_at?: number;
  updated_at?: number;
  writers?: string;
  silence_s?: number;
  complete_step?: number | null;
  /** number, first and last step of each attempt, where there are several */
  attempts?: [number: number, first: number, last: number][];
  /** the one that is shown alone; null: what the newest has not hidden of each */
  attempt?: number | null;
  /** which steps were recorded more than once, as a sentence */
  repeated?: string;
  /** what memory is here where that isn't the memory of a device */
  memory?: string;
  missing?: { name: string; since: number; why: string }[];
  dropped?: number;
  thinned?: number;
  errors?: { where?: string; message: string }[];
  cost?: { kernel_ms?: number; bytes?: number };
  /** the batches of the last step that has ended; null where nothing was cut */
  what_if?: WhatIfBatches | null;
  /** what comes with advice; null where there is none */
  outlook?: OutlookTold | null;
  /** the replicas of the last step that has ended; null: nobody told when answers were sampled */
  long_tail?: Lanes | null;
  /** what was found, the worst first; null: nothing is known. See `Verdict` in `probe/views/panel/verdict.py` */
  verdict?: { findings: Finding[] | null; looking: boolean; whole: boolean; post_mortem?: PostMortem | null; ledger?: FoundLedger | null; disagreement?: Disagreement | null; advice?: FoundAdvice | null };
}

/** One table of a message. */
export interface TableHead {
  name: string;
  from: number;
  next?: number;
  n: number;
  cols: string;
  buffer: number;
}

/** A series over all steps, in a message. */
export interface HistoryHead {
  key: string;
  /** the last step that it has */
  until: number;
  /** of each the place of its y, and the values of `by` */
  series: number[][];
  more: number;
  n: number;
  buffer: number;
}

/** What the kernel is asked for: a series, or (without a spec) when each step began and ended. */
export interface Wish {
  key: string;
  spec: Partial<Spec> | null;
  who: string;
}

export interface Head {
  v: number;
  t: string;
  seq: number;
  id?: number;
  words?: string[];
  words_from?: number;
  schema?: Record<string, TableData>;
  tables?: TableHead[];
  histories?: HistoryHead[];
  state?: RunState;
  /** all that was known is to be forgotten */
  anew?: boolean;
  /** a few samples, for a page without a kernel */
  samples?: KeptSamples;
  /** of an answer about samples: the question's number, and the answer */
  q?: string;
  answer?: any; // as `probe/views/panel/browsing.py` says, by what was asked
}
