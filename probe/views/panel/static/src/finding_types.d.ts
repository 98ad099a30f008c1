// What was found in a run, as the kernel sends it: findings, advice, ledger, lanes and the post-mortem.

import type { AnswerKey } from "./sample_types.js";

/** The one change that a finding asks for. */
export interface FindingChange {
  advice: string;
  setting: string | null;
  /** what can be pasted */
  line: string | null;
  value: string | null;
  now: string | null;
  /** what `probe advise` prints of it, where it was replayed: its settings, then what each of them gave */
  told?: string[];
}

/** Changes that were replayed on the run's own batches; see `advised` in `probe/views/panel/looking.py`. */
export interface FoundAdvice {
  changes: { told: string[]; line: string | null }[];
  /** all of them, as what can be copied; "" where that is too long */
  patch: string;
}

/** What was found in the run; see `probe/views/panel/looking.py`. */
export interface Finding {
  kind: "alarm" | "tuning" | "fine" | "withheld";
  name: string;
  topic: string;
  sentence: string;
  why: string;
  where: { step: number | null; role: string | null; phase: string | null; micro_batch: number | null; rank: number | null; process: string | null; token?: number | null };
  /** where it leads among the samples; see `places` in `probe/views/panel/places.py` */
  samples?: SamplesPlace | null;
  /** the step with which it began */
  since: number | null;
  change: FindingChange | null;
  /** whether it is what ends a run */
  failure?: boolean;
  /** what follows from it, a sentence each */
  folded?: string[];
  /** the query for the rows that show it; "" where there is none */
  sql?: string;
}

/** The answers of a step that a finding is of, and a token of one of them. */
export interface SamplesPlace {
  step: number;
  /** null: which they are isn't known */
  answers: number | null;
  key: AnswerKey;
  token: number;
}

/** A line of the funnel; stream and part are shares of the sampled tokens. */
export interface FunnelLine {
  title: string;
  about: string;
  cells: string[];
  /** of a step and of all these steps, in words; null: there is no price */
  money?: { step: string; all: string } | null;
  stream: number;
  part: number;
  kind: string;
}

/** Where the tokens of some steps went; see `shown` in `probe/views/panel/funnel.py`. */
export interface FunnelTold {
  sentence: string;
  head: string[];
  lines: FunnelLine[];
  notes: string[];
  first?: number;
  last?: number;
  /** the numbers above the funnel */
  tiles?: { value: string; about: string }[];
}

/** Of one step, and of the steps up to it; null: what became of the tokens wasn't recorded. See `told` there. */
export interface FunnelAt {
  at?: number;
  step?: FunnelTold | null;
  recent?: FunnelTold | null;
  refused?: string;
}

/** Of the attempt, and of its last steps; see `kept` there. */
export type FoundLedger = FunnelTold & FunnelAt;

/** A cause of a mismatch, or several of which the same is said; see `CauseLine` in `probe/analysis/mismatch/excluded.py`. */
export interface LookedFor {
  name: string;
  state: "yes" | "perhaps" | "part" | "no" | "noise" | "unknown";
  word: string;
  seen: string;
}

/** The differences of one answer; see `_strip` in `probe/views/panel/disagree.py`. */
export interface DifferenceStrip {
  name: string;
  about: string;
  concerned: boolean;
  largest: string;
  tokens: number;
  /** of the longest answer's tokens */
  share: number;
  /** by position, −4 to 4; null: not in the loss */
  levels: (number | null)[];
  /** of each the token that differs most */
  tops: number[];
  /** what names the answer among the samples; null: that isn't known */
  step: number | null;
  key: AnswerKey | null;
  /** the token that is looked at first */
  token: number;
}

/** The mean difference by token, nats; null: too few answers have one there. See `Curve` in
 * `probe/analysis/mismatch/onset.py`. */
export interface DifferenceCurve {
  begin: number;
  width: number;
  answers: [concerned: number, others: number];
  place: number;
  concerned: (number | null)[];
  others: (number | null)[];
}

/** Why rollout and training disagree; see `told` there. */
export interface Disagreement {
  agree: boolean;
  sentence: string;
  confidence: string;
  causes: LookedFor[];
  curve: DifferenceCurve | null;
  strips: DifferenceStrip[];
  notes: string[];
}

/** What one replica did in a step; times are seconds after the begin of what is drawn. See `_lane` in
 * `probe/views/panel/lanes.py`. */
export interface Lane {
  name: string;
  /** share of the span, and how many answers are under way from there to the next */
  points: [at: number, high: number][];
  /** shares of the span at which its answers of the tail end */
  late: number[];
  ended: number;
  /** from when to when it is idle in the tail, seconds */
  rests: [from: number, to: number][];
  ends: string;
  idle: string;
  cells: string[];
  about: string;
}

/** What the trainer did for a while. */
export interface LanePhase {
  name: string;
  from: number;
  to: number;
  inside: boolean;
}

/** The rollout of one step; see `told` in `probe/views/panel/lanes.py`. */
export interface Lanes {
  step: number | null;
  sentence: string;
  notes: string[];
  lanes: Lane[];
  phases: LanePhase[];
  span?: number;
  tail?: [from: number, to: number] | null;
  most?: number;
  head?: string[];
  left_out?: number;
  rules?: OtherRules | null;
}

/** What other rules for the longest answers would have saved a step. */
export interface OtherRules {
  head: string[];
  rows: string[][];
  note: string;
}

/** A part of a post-mortem. */
export interface PostMortemPart {
  title: string;
  lines: string[];
  head: string[];
  rows: string[][];
  /** rows that aren't told */
  left_out: number;
  text: string;
  /** whether it stands folded */
  long: boolean;
}

/** What ended a run; see `shown` in `probe/views/panel/looking.py`. */
export interface PostMortem {
  sentence: string;
  why: string;
  parts: PostMortemPart[];
}
