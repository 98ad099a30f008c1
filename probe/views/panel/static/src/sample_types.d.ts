// Samples as the kernel sends them: lines of the list, windows of it, answers with their tokens.

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

/** What names an answer in its step. */
export type AnswerKey = [process: string, batch: number, row: number];

/** An answer of a step, and a token of it. */
export interface AnswerPlace {
  step: number;
  key: AnswerKey;
  token: number;
}

/** A line of the list of samples: an answer, or the group of those that follow. Fields are those of the run's table. */
export interface SampleLine {
  kind: "group" | "answer";
  /** the group's place */
  of: number;
  group: string;
  key?: AnswerKey;
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
  /** the line of the answer that was asked for; null: it isn't among them */
  place?: number | null;
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
