// plotly.js of this page, from the gzip that the kernel sends once.

import { node } from "./dom.js";

/** plotly.js of this page, from the gzip that the kernel sends once; null while nobody has sent it. */
export function plotly(model) {
  if (globalThis.__probe_plotly) return globalThis.__probe_plotly;
  const packed = model.get("plotly_gz");
  if (!packed || !packed.byteLength) return null;
  globalThis.__probe_plotly = unpack(packed).catch((error) => {
    delete globalThis.__probe_plotly;
    throw error;
  });
  return globalThis.__probe_plotly;
}

/** What the kernel has packed with gzip, as a Response. */
export function unpacked(packed) {
  const bytes = new Uint8Array(packed.buffer ?? packed, packed.byteOffset ?? 0, packed.byteLength);
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")));
}

async function unpack(packed) {
  const source = await unpacked(packed).text();
  try {
    const module = { exports: {} };
    // `define` is shadowed: a page with RequireJS would keep the library to itself.
    new Function("module", "exports", "define", source).call(globalThis, module, module.exports, undefined);
    return module.exports.react ? module.exports : globalThis.Plotly;
  } catch (error) {
    if (!(error instanceof EvalError)) throw error;
    return await scripted(source); //  a page whose policy forbids eval may still allow a blob
  }
}

function scripted(source) {
  return new Promise((done, failed) => {
    const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
    const script = node("script", { src: url, on: { error: () => failed(new Error("the page forbids plotly's script")) } });
    script.addEventListener("load", () => done(globalThis.Plotly));
    document.head.append(script);
  });
}
