// Stores, made and fed by the models of widgets.

import { unpacked } from "./plotly.js";
import { Store } from "./store.js";

/** @import { Head } from "./message_types.js" */
/** @import { Model } from "./types.js" */

/** The stores of a page, shared by the copies of this module that a notebook may load. @type {{__probe_panels?: Map<unknown, Store>}} */
const page = /** @type {any} */ (globalThis);

/** Stores by the key of their widget: the proxies of one model that `initialize` and `render` get are different objects. */
export const STORES = (page.__probe_panels ??= new Map());

/**
 * The store of a model, made and fed.
 * @param {Model} model
 * @returns {[store: Store, stop: () => void, restored: Promise<void> | null]} the store, what ends the feeding, and a
 *   promise that what there was has been read: messages that come before that wait for it
 */
export function feed(model) {
  const config = model.get("config") || {};
  const store = new Store(config);
  const key = config.key ?? config;
  STORES.set(key, store);
  const packed = model.get("snapshot");
  /** @type {[Head, DataView[]][] | null} */
  let early = packed?.byteLength ? [] : null;
  /** @type {(head: Head, buffers: DataView[]) => void} */
  const received = (head, buffers) => {
    if (early) early.push([head, buffers]);
    else guarded(store, () => store.receive(head, buffers));
  };
  const restored = early && unpacked(packed).arrayBuffer()
    .then((data) => store.restore(model.get("snapshot_head"), new DataView(data)))
    .catch((error) => guarded(store, () => { throw error; }))
    .finally(() => {
      const waiting = early ?? [];
      early = null;
      for (const one of waiting) received(...one);
    });
  const changed = () => store.configure(model.get("config") || {});
  model.on("msg:custom", received);
  model.on("change:config", changed);
  const stop = () => {
    model.off?.("msg:custom", received);
    model.off?.("change:config", changed);
    if (STORES.get(key) === store) STORES.delete(key);
  };
  return [store, stop, restored];
}

/**
 * A message that can't be read must not stop the next ones, and must be seen.
 * @param {Store} store
 * @param {() => void} work
 */
function guarded(store, work) {
  try {
    work();
  } catch (error) {
    store.broken = true;
    const message = error instanceof Error ? error.message : String(error);
    store.state = { ...store.state, errors: [...(store.state.errors || []), { where: "panel", message }] };
    store.tell("state");
  }
}
