// What comes from the kernel as data, and shapes that several modules share.

import type { LineMark } from "./line_mark.js";
import type { PlotMark } from "./plot_mark.js";
import type { Store } from "./store.js";

export type Dtype = "f8" | "f4" | "i4" | "u1";
export type Numbers = Float64Array | Float32Array | Int32Array | Uint8Array;

/** A column's name, a number, or an operator and its two sides. */
export type Formula = string | number | [operator: string, left: Formula, right: Formula];

/** What the kernel says of a live table; see `probe/live/protocol.py`. */
export interface TableData {
  columns: Record<string, [dtype: Dtype, unit: string]>;
  derived: Record<string, [unit: string, formula: Formula]>;
  key: string[];
  thin: { scores: string[]; group: string[]; whole: boolean };
  time: string[];
}

export type Names = string | string[];
export type Ask = string | number | boolean | { not: Ask } | Ask[];

/** Which numbers of which table are shown, and how; see `probe/dashboards/spec.py`. */
export interface Spec {
  table: string;
  mark?: string;
  where?: Record<string, Ask>;
  /** of its texts under `where` the first that a group has is what counts there */
  first?: string;
  x?: Names;
  y?: Names;
  by?: Names;
  each?: Names;
  per?: Names;
  least?: Names;
  slots?: Names;
  reduce?: string;
  scale?: number;
  divide?: Spec;
  of?: string;
  unit?: string;
  names?: Record<string, string>;
  lines?: Guide[];
  colour?: Names;
  share?: string;
  sort?: string;
  over?: string;
  cap?: string;
  fit?: Fit;
  tell?: Names;
  label?: string;
  beside?: (Spec & { title: string })[];
  ticks?: { title: string; least: Names };
  free?: string[];
  zero?: boolean;
  exact?: boolean;
  x_title?: string;
  y_title?: string;
  columns?: string[];
  newest?: number;
  tone?: string;
  search?: boolean;
  tiles?: TileSpec[];
}

/** What a line through dots must be. */
export interface Fit {
  explained: number;
  rows: number;
}

export interface Guide extends Partial<Omit<Spec, "table">> {
  table?: string;
  title: string;
  value?: number | string;
}

export interface Limits {
  warn?: number;
  alarm?: number;
}

export interface TileSpec extends Spec, Limits {
  id: string;
  title: string;
  better?: string;
  total?: boolean;
  capacity?: Spec;
  means?: string | Record<string, string>;
  missing?: { rows?: string; value?: string };
  window?: number;
  own?: boolean;
  who?: string | Spec;
  pooled?: boolean;
}

export interface Definition {
  title: string;
  about?: Record<string, string>;
  live?: Spec;
  missing?: string;
  /** the query for its numbers */
  sql?: string;
}

export interface View {
  id: string;
  title: string;
  about?: string;
  panels: string[];
}

export interface Config {
  key?: string;
  title?: string;
  asks?: string;
  run?: { project?: string; experiment?: string; world_size?: number; directory?: string | null };
  schema?: Record<string, TableData>;
  limits?: { rows?: number; points?: number };
  thresholds?: Record<string, Limits>;
  views?: View[];
  /** which view shows findings of which topic */
  topics?: Record<string, string>;
  panels?: Record<string, Definition>;
}

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
  where: { step: number | null; role: string | null; phase: string | null; micro_batch: number | null; rank: number | null; process: string | null };
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

/** A line of the funnel; stream and part are shares of the sampled tokens. */
export interface FunnelLine {
  title: string;
  about: string;
  cells: string[];
  stream: number;
  part: number;
  kind: string;
}

/** Where the tokens went; see `funnel` in `probe/views/panel/looking.py`. */
export interface FoundLedger {
  sentence: string;
  head: string[];
  lines: FunnelLine[];
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
  /** the replicas of the last step that has ended; null: nobody told when answers were sampled */
  long_tail?: Lanes | null;
  /** what was found, the worst first; null: nothing is known. See `Verdict` in `probe/views/panel/verdict.py` */
  verdict?: { findings: Finding[] | null; looking: boolean; whole: boolean; post_mortem?: PostMortem | null; ledger?: FoundLedger | null; advice?: FoundAdvice | null };
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

/** Which answers of a step are listed, and how; see `Wish` in `probe/analysis/step_samples.py`. */
export interface Narrowing {
  sort: string;
  only: string;
  search: string;
  group: string | null;
  micro_batch: number | null;
  phase: string;
  process: string;
}

/** A line of the list of samples: an answer, or the group of those that follow. Fields are those of the run's table. */
export interface SampleLine {
  kind: "group" | "answer";
  /** the group's place */
  of: number;
  group: string;
  key?: [process: string, batch: number, row: number];
  answers?: number;
  equal?: boolean | null;
  tokens?: number | null;
  block?: boolean;
  uid?: string;
  row?: number;
  ended?: string;
  dropped?: any; // of an answer why, of a group how many
  truncated?: any; // of an answer whether it is, of a group how many are
  failed?: number;
  micro_batches?: number[];
  response_tokens?: number;
  nan_count?: number;
  [column: string]: any; // the columns are data
}

/** A window of the list. */
export interface SampleRows {
  step: number;
  total: number;
  answers: number;
  kept: number;
  sampled: number | null;
  note: string;
  from: number;
  lines: SampleLine[];
  near?: number | null;
}

/** One answer with its tokens: numbers of each in base64. */
export interface SampleTokens {
  step: number;
  answer: SampleLine;
  tokens: number;
  arrays: Record<string, string>;
  ids: number[];
  prompt: string | null;
  text: string | null;
  cut: number;
}

/** What a saved copy keeps of the samples. */
export interface KeptSamples {
  rows: SampleRows;
  tokens: SampleTokens[];
}

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
export interface SecondsTold {
  coefficients: number[];
  covariance: number[][];
  reach: number;
}

/** Peak of a micro-batch from a constant, its tokens, its longest row and its rows. */
export interface MemoryTold extends SecondsTold {
  sigma: number;
  room_bytes: number | null;
  largest_tokens: number;
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
  before: Record<string, number | null>;
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
  saved: [saved: number, reach: number] | null;
  /** micro-batches of each rank, where they are known */
  counts?: number[];
  notes: string[];
  compared: boolean;
}

/** The model of a widget, as anywidget gives it. */
export interface Model {
  get(name: string): any; // traits are whatever the kernel has put there
  on(name: string, callback: (...values: any[]) => void): void;
  off?(name: string, callback: (...values: any[]) => void): void;
  send(content: object): void;
}

/** A row of a live table: words as texts, numbers as numbers. */
export interface Row {
  table: string;
  [column: string]: any; // the columns are data
}

/** A part of an axis. */
export interface Range {
  kind: "time" | "step";
  from: number;
  to: number;
}

/** Where the pointer is. */
export interface Place {
  kind: "time" | "step";
  at: number;
  from: object;
}

/** What a person has clicked. */
export interface Selection {
  table: string | null;
  row: Row | null;
  step: number | null;
  time?: number;
  label: string;
  /** the figure that was clicked, and how many px from its left */
  card?: string;
  at?: number;
}

export interface TableChoice {
  sort?: string | null;
  down?: boolean;
  search: string;
}

/** What the person has chosen. */
export interface Choices {
  tab: string | null;
  window: string;
  role: string;
  rank: string;
  phase: string;
  step: number | null;
  zoom: Range | null;
  selection: Selection | null;
  hidden: Record<string, Record<string, boolean>>;
  tables: Record<string, TableChoice>;
  unfolded: Record<string, boolean>;
  search: string;
  samples: Partial<Narrowing>;
  what_if: { where?: string | null; changes?: Record<string, number | boolean>; steps?: number };
}

/** One line of a chart. */
export interface Line {
  key: string;
  label: string;
  values: ArrayLike<number> & Iterable<number>;
  top?: [x: number, y: number] | null;
  /** where several steps share a point: the step whose value it is, and the smallest and largest of them */
  at?: number[];
  low?: number[];
  high?: number[];
}

export interface LineData {
  xs: number[];
  series: Line[];
  width?: number;
  /** how many steps share a point */
  steps?: number;
}

/** The numbers of a chart as a table. A row may carry what a click on it does. */
export interface NumbersTable {
  head: string[];
  rows: (string[] & { pick?: () => void })[];
}

/** What a card shows itself with. */
export interface Mark {
  remark: string;
  draw(): boolean;
  destroy(): void;
  restyle(): void;
  hover(place: Place | null): void;
  summary(): string;
  table(): NumbersTable | null;
}

/** What a mark needs of the card that it stands in. */
export interface CardLike {
  id: string;
  title: string;
  store: Store;
  spec: Spec;
  body: HTMLElement;
  theme: Theme;
  pick(selection: Selection): void;
  announce(text: string): void;
  point(text: string): void;
}

export interface FullCard extends CardLike {
  model: Model;
  invalidate(): void;
  unfold(open: boolean): void;
}

export type Theme = "light" | "dark";

export interface GuideLine {
  title: string;
  value: number;
  even?: boolean;
  far?: boolean;
}

/** A box, bar, cell or dot: what a click on it finds, and its line in the table of numbers. */
export interface Item {
  label: string;
  cells: string[];
  value: number;
  row?: number;
  step?: number;
  [more: string]: any; // what only one mark knows of it
}

/** plotly's own objects: their keys are plotly's. */
export type Trace = Record<string, any>;
export type Layout = Record<string, any>;

/** What a mark that plotly draws consists of. */
export interface PlotFrame {
  generation: number;
  traces: Trace[];
  layout: Layout;
  items: Item[];
  kind: "time" | "step" | null;
  range?: [number, number];
  /** what the axis of time begins with, as the clock of the run has it */
  offset?: number;
  head: string[];
  summary: string;
}

export type Builder = (mark: PlotMark) => PlotFrame | null;
export type { LineMark, PlotMark };
