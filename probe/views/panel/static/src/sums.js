// Sums shared by the views of a model, and rows that match a spec.

import { matcher } from "./matching.js";

/** @import { Spec } from "./definition_types.js" */
/** @import { LiveTable } from "./table.js" */
/** @import { Store } from "./store.js" */

const MOST_CACHES = 96;

/**
 * A sum that is kept as long as its spec and the choices are the same; shared by the views of a model.
 * @template {{pull(): unknown}} T
 * @param {Store} store
 * @param {{new (store: Store, spec: Spec): T, kind: string}} Kind
 * @param {Spec} spec
 * @returns {T}
 */
export function summed(store, Kind, spec) {
  const { role, rank, phase } = store.ui;
  const key = JSON.stringify([Kind.kind, spec, role, rank, phase]);
  let made = store.caches.get(key);
  if (made) store.caches.delete(key); //  last used comes last
  else made = new Kind(store, spec);
  store.caches.set(key, made);
  for (const oldest of store.caches.keys()) {
    if (store.caches.size <= MOST_CACHES) break;
    store.caches.delete(oldest);
  }
  made.pull();
  return made;
}

/**
 * Rows that match a spec, of one step or of all.
 * @param {Store} store
 * @param {Spec} spec
 * @param {number | null} step
 * @returns {number[]}
 */
export function rowsOf(store, spec, step) {
  const table = store.table(spec.table);
  const match = matcher(store, table, spec);
  const rows = [];
  if (step !== null) {
    for (const row of table.byStep.get(step) || []) if (match(row)) rows.push(row);
    return rows;
  }
  for (let row = 0; row < table.count; row += 1) if (match(row)) rows.push(row);
  return rows;
}

/**
 * At most `most` rows: the first of them, and of each bucket the one with the largest value.
 * @param {LiveTable} table
 * @param {number[]} rows
 * @param {string} score
 * @param {number} most
 */
export function foremost(table, rows, score, most) {
  if (rows.length <= most) return rows;
  const kept = [];
  for (let bucket = 0; bucket < most; bucket += 1) {
    const [from, to] = [Math.floor((bucket * rows.length) / most), Math.floor(((bucket + 1) * rows.length) / most)];
    let best = from;
    for (let at = from + 1; at < to; at += 1) if (table.get(score, rows[at]) > table.get(score, rows[best])) best = at;
    kept.push(rows[best]);
  }
  return kept;
}
