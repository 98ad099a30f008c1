// The panel as a widget module: what a notebook, the page of `probe open` and the tab in JupyterLab load.

import { Connection } from "./connection.js";
import { STORES, feed } from "./feeding.js";
import { Panel } from "./view.js";

/** @import { Model } from "./types.js" */

export { Connection };

export default {
  /** @param {{model: Model}} host */
  async initialize({ model }) {
    const [, stop, restored] = feed(model);
    await restored;
    return stop;
  },
  /** @param {{model: Model, el: HTMLElement}} host */
  render({ model, el }) {
    const config = model.get("config") || {};
    const known = STORES.get(config.key ?? config);
    const [store, stop] = known ? [known, null] : feed(model);
    const panel = new Panel(store, model, el);
    return () => {
      panel.destroy();
      stop?.();
    };
  },
};
