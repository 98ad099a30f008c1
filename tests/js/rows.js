// Messages as the kernel sends them, of rows as plain objects.

import { ARRAYS, padded } from "../../probe/views/panel/static/src/messages.js";

/** @import { Dtype, TableData } from "../../probe/views/panel/static/src/definition_types.js" */
/** @import { Head } from "../../probe/views/panel/static/src/message_types.js" */
/** @typedef {Record<string, number | string | null>} PlainRow */

/** @type {Record<string, TableData>} */
export const SCHEMA = {
  micro: {
    columns: {
      step: ["i4", "id"], rank: ["i4", "id"], process: ["i4", "word"], who: ["i4", "word"], role: ["i4", "word"], phase: ["i4", "word"], batch: ["i4", "id"],
      round: ["i4", "id"], micro_batch: ["i4", "id"], tokens: ["i4", "tokens"], cap: ["i4", "tokens"],
    },
    derived: { use: ["ratio", ["/", "tokens", "cap"]], left: ["tokens", ["-", "cap", "tokens"]] },
    key: ["process", "batch", "micro_batch"],
    thin: { scores: ["tokens"], group: [], whole: true },
    time: [],
  },
  spans: {
    columns: { step: ["i4", "id"], rank: ["i4", "id"], kind: ["i4", "word"], scope: ["i4", "id"], begin: ["f8", "s"], end: ["f8", "s"], peak: ["f8", "bytes"] },
    derived: { duration: ["s", ["-", "end", "begin"]] },
    key: ["scope"],
    thin: { scores: ["peak"], group: [], whole: true },
    time: ["begin", "end"],
  },
};

/** Encodes rows; words are numbered as they come. */
export class Encoder {
  constructor() {
    /** @type {string[]} */
    this.words = [];
    this.told = 0;
    this.seq = 0;
    /** @type {Record<string, number>} */
    this.sent = {};
  }

  /**
   * A message with new rows of one table.
   * @param {string} name
   * @param {PlainRow[]} rows
   * @param {TableData} table
   * @returns {[head: Head, buffers: DataView[]]}
   */
  delta(name, rows, table = SCHEMA[name]) {
    const columns = Object.entries(table.columns);
    const view = this._columns(columns, rows);
    const from = this.sent[name] ?? 0;
    this.sent[name] = from + rows.length;
    this.seq += 1;
    const words = this.words.slice(this.told);
    const tables = [{ name, from, n: rows.length, cols: columns.map(([column, [dtype]]) => `${column}:${dtype}`).join(" "), buffer: 0 }];
    const head = { v: 1, t: "d", seq: this.seq, words, words_from: this.told, tables };
    this.told = this.words.length;
    return [head, [view]];
  }

  /**
   * @param {[name: string, kind: [dtype: Dtype, unit: string]][]} columns
   * @param {PlainRow[]} rows
   */
  _columns(columns, rows) {
    const sizes = columns.map(([, [dtype]]) => padded(rows.length * ARRAYS[dtype].BYTES_PER_ELEMENT));
    const buffer = new ArrayBuffer(sizes.reduce((sum, one) => sum + one, 0));
    let at = 0;
    columns.forEach(([column, [dtype, unit]], index) => {
      const values = new ARRAYS[dtype](buffer, at, rows.length);
      rows.forEach((row, place) => {
        const missing = dtype === "i4" ? -1 : dtype === "u1" ? 0 : NaN;
        const value = row[column] ?? missing;
        values[place] = unit === "word" ? this._code(row[column]) : Number(value);
      });
      at += sizes[index];
    });
    return new DataView(buffer);
  }

  /** @param {number | string | null | undefined} word */
  _code(word) {
    if (word === null || word === undefined || word === "") return -1;
    const text = String(word);
    if (!this.words.includes(text)) this.words.push(text);
    return this.words.indexOf(text);
  }
}
