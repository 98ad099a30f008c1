// How the panel draws series: [columns, label] of each comes on standard input, the looks go out. The Python side of this
// is tests/figures/test_colours.py.

import { readFileSync } from "node:fs";

import { styleBy } from "../../probe/views/panel/static/src/theme.js";

/** @type {[columns: string[], label: string][]} */
const asked = JSON.parse(readFileSync(0, "utf8"));
process.stdout.write(JSON.stringify(asked.map(([columns, label]) => [styleBy(columns, label, "light"), styleBy(columns, label, "dark")])));
