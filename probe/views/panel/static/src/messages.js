// The tables in a message from the kernel, as typed arrays.

/** @import { Dtype, Numbers } from "./definition_types.js" */
/** @import { TableHead } from "./message_types.js" */

export const ARRAYS = { f8: Float64Array, f4: Float32Array, i4: Int32Array, u1: Uint8Array };

/** @param {number} size in bytes; each column begins at a multiple of 8 */
export const padded = (size) => Math.ceil(size / 8) * 8;

/**
 * Name and type of each column of a table in a message.
 * @param {Pick<TableHead, "cols">} head
 * @returns {[string, Dtype][]}
 */
export function headerOf(head) {
  return head.cols.split(" ").map((one) => {
    const [name, type] = one.split(":");
    if (!Object.hasOwn(ARRAYS, type)) throw new Error(`unknown column type ${type}`);
    return [name, /** @type {Dtype} */ (type)];
  });
}

/**
 * How many bytes a table takes in a snapshot.
 * @param {TableHead} head
 */
export function sizeOf(head) {
  return headerOf(head).reduce((sum, [, type]) => sum + padded(head.n * ARRAYS[type].BYTES_PER_ELEMENT), 0);
}

/**
 * The columns of a table in a message.
 * @param {TableHead} head
 * @param {DataView} view
 * @returns {Map<string, Numbers>}
 */
export function decode(head, view) {
  const columns = new Map();
  let at = 0;
  for (const [name, type] of headerOf(head)) {
    const Kind = ARRAYS[type];
    const begin = view.byteOffset + at;
    const size = head.n * Kind.BYTES_PER_ELEMENT;
    const buffer = /** @type {ArrayBuffer} */ (view.buffer);
    const aligned = begin % Kind.BYTES_PER_ELEMENT === 0;
    columns.set(name, aligned ? new Kind(buffer, begin, head.n) : new Kind(buffer.slice(begin, begin + size)));
    at += padded(size);
  }
  return columns;
}
