// Shapes that several modules of the panel share: charts, what a person has chosen, cards and marks.

import type { LineMark } from "./line_mark.js";
import type { PlotMark } from "./plot_mark.js";
import type { Store } from "./store.js";
import type { Spec } from "./definition_types.js";
import type { AnswerPlace, Narrowing } from "./sample_types.js";

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
  /** the answer that something led to */
  answer: AnswerPlace | null;
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
