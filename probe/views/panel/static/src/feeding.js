// Stores, made and fed by the models of widgets.

import { unpacked } from "./plotly.js";
import { Store } from "./store.js";

/** Stores by the key of their widget: the proxies of one model that `initialize` and `render` get are different objects. */
export const STORES = (globalThis.__probe_panels ??= new Map());

/**
 * The store of a model, made and fed where there is none yet. Returns [store, what ends the feeding, a promise that
 * what there was has been read]. Messages that come before that wait for it.
 */
export function feed(model) {
  const config = model.get("config") || {};
  const store = new Store(config);
  const key = config.key ?? config;
  STORES.set(key, store);
  const packed = model.get("snapshot");
  let early = packed?.byteLength ? [] : null;
  const received = (head, buffers) => {
    if (early) early.push([head, buffers]);
    else guarded(store, () => store.receive(head, buffers));
  };
  const restored = early && unpacked(packed).arrayBuffer()
    .then((data) => store.restore(model.get("snapshot_head"), new DataView(data)))
    .catch((error) => guarded(store, () => { throw error; }))
    .finally(() => {
      const waiting = early;
      early = null;
      for (const one of waiting) received(...one);
    });
  const changed = () => {
    store.config = model.get("config") || {};
    store.tell("config");
  };
  model.on("msg:custom", received);
  model.on("change:config", changed);
  return [store, () => {
    model.off?.("msg:custom", received);
    model.off?.("change:config", changed);
    if (STORES.get(key) === store) STORES.delete(key);
  }, restored];
}

/** A message that can't be read must not stop the next ones, and must be seen. */
function guarded(store, work) {
  try {
    work();
  } catch (error) {
    store.broken = true;
    store.state = { ...store.state, errors: [...(store.state.errors || []), { where: "panel", message: String(error.message || error) }] };
    store.tell("state");
  }
}
