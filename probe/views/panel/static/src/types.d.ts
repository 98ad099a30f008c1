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
  run?: { project?: string; experiment?: string; world_size?: number };
  schema?: Record<string, TableData>;
  limits?: { rows?: number; points?: number };
  thresholds?: Record<string, Limits>;
  views?: View[];
  panels?: Record<string, Definition>;
}

/** What the kernel says of the run beside its rows. */
export interface RunState {
  finished?: boolean;
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
