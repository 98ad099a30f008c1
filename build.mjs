// Builds the panel's script and style sheet from their sources, and the licences of what they contain of others.
// `make js` runs it after `npm ci`; the same sources and locked versions give the same bytes.

import { build } from "esbuild";
import { readFile, writeFile } from "node:fs/promises";
import { basename } from "node:path";

const STATIC = "probe/views/panel/static";

/**
 * The packages whose files were read.
 * @param {string[]} paths as esbuild names them
 */
function packagesOf(paths) {
  const names = paths.map((path) => /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(path)?.[1] ?? "");
  return [...new Set(names.filter(Boolean))].sort();
}

/**
 * A package's name, version and licence, as it ships them.
 * @param {string} name
 */
async function notice(name) {
  const about = JSON.parse(await readFile(`node_modules/${name}/package.json`, "utf8"));
  const licence = await readFile(`node_modules/${name}/LICENSE`, "utf8");
  return `${name} ${about.version}, ${about.license}, ${about.homepage}\n\n${licence.trim()}\n`;
}

const made = await build({
  entryPoints: [`${STATIC}/src/panel.js`, `${STATIC}/src/panel.css`],
  outdir: STATIC,
  bundle: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  minify: true,
  lineLimit: 500,
  metafile: true,
  write: false,
  legalComments: "none", //  they stand whole below
});
const notices = (await Promise.all(packagesOf(Object.keys(made.metafile.inputs)).map(notice))).join("\n\n");
for (const { path, text } of made.outputFiles) {
  const head = "/* Built by `make js` from src/: edit the sources. */\n";
  await writeFile(`${STATIC}/${basename(path)}`, `${head}${text.trimEnd()}\n/*! Contains code of:\n\n${notices}*/\n`);
}
await writeFile(`${STATIC}/LICENSES.txt`, `panel.js and panel.css contain code of these packages.\n\n${notices}`);
