// plotly.js of this page, from the gzip that the kernel sends once.

import { node } from "./dom.js";

/** @import { Model } from "./types.js" */

/** The library, shared by all panels of a page; Plotly is what it calls itself. @type {{__probe_plotly?: Promise<any>, Plotly?: any}} */
const page = globalThis;

/**
 * plotly.js of this page, from the gzip that the kernel sends once; null while nobody has sent it.
 * @param {Model} model
 * @returns {Promise<any> | null}
 */
export function plotly(model) {
  if (page.__probe_plotly) return page.__probe_plotly;
  const packed = model.get("plotly_gz");
  if (!packed || !packed.byteLength) return null;
  page.__probe_plotly = unpack(packed).catch((error) => {
    delete page.__probe_plotly;
    throw error;
  });
  return page.__probe_plotly;
}

/**
 * What the kernel has packed with gzip, as a Response.
 * @param {DataView} packed
 */
export function unpacked(packed) {
  const { buffer = packed, byteOffset = 0, byteLength } = packed;
  const bytes = new Uint8Array(/** @type {ArrayBuffer} */ (buffer), byteOffset, byteLength);
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")));
}

/**
 * @param {DataView} packed
 * @returns {Promise<any>}
 */
async function unpack(packed) {
  const source = await unpacked(packed).text();
  try {
    /** @type {{exports: any}} */
    const module = { exports: {} };
    // `define` is shadowed: a page with RequireJS would keep the library to itself.
    new Function("module", "exports", "define", source).call(globalThis, module, module.exports, undefined);
    return module.exports.react ? module.exports : page.Plotly;
  } catch (error) {
    if (!(error instanceof EvalError)) throw error;
    return await scripted(source); //  a page whose policy forbids eval may still allow a blob
  }
}

/**
 * @param {string} source
 * @returns {Promise<any>}
 */
function scripted(source) {
  return new Promise((done, failed) => {
    const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
    const script = node("script", { src: url, on: { error: () => failed(new Error("the page forbids plotly's script")) } });
    script.addEventListener("load", () => done(page.Plotly));
    document.head.append(script);
  });
}
