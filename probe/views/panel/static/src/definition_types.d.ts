// What dashboards define, as the kernel sends it: tables, specs, tiles, views and the configuration.

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
