// The tables in a message from the kernel, as typed arrays.

export const ARRAYS = { f8: Float64Array, f4: Float32Array, i4: Int32Array, u1: Uint8Array };

export const padded = (size) => Math.ceil(size / 8) * 8;

/** [[name, type], …] of a table in a message. */
export function headerOf(head) {
  return head.cols.split(" ").map((one) => one.split(":"));
}

/** The columns of a table in a message. */
export function decode(head, view) {
  const columns = new Map();
  let at = 0;
  for (const [name, type] of headerOf(head)) {
    const Kind = ARRAYS[type];
    if (!Kind) throw new Error(`unknown column type ${type}`);
    const begin = view.byteOffset + at;
    const size = head.n * Kind.BYTES_PER_ELEMENT;
    const aligned = begin % Kind.BYTES_PER_ELEMENT === 0;
    const buffer = aligned ? view.buffer : view.buffer.slice(begin, begin + size);
    columns.set(name, new Kind(buffer, aligned ? begin : 0, head.n));
    at += padded(size);
  }
  return columns;
}
