// Cuts batches as a page does: a list of questions as JSON on its input, a list of answers on its output.

import { stdin, stdout } from "node:process";

import { Refused } from "../../probe/views/panel/static/src/packing.js";
import { answered, cutOf, lengthsOf, stepNumbers } from "../../probe/views/panel/static/src/what_if_numbers.js";
import { cutRanks } from "../../probe/views/panel/static/src/packing.js";

/** @param {() => any} made */
function orRefused(made) {
  try {
    return made();
  } catch (error) {
    if (error instanceof Refused) return "refused";
    throw error;
  }
}

/** @param {any} question either ranks and a cut, or a phase with changes */
async function answerOf({ ranks, cut, width, phase, changes }) {
  if (phase) {
    const given = cutOf(phase, changes);
    const lengths = await lengthsOf(phase.lengths);
    return orRefused(() => (given ? answered(phase, lengths, given) : "asks"));
  }
  return orRefused(() => {
    const parts = cutRanks(ranks, cut);
    const made = parts.map((own, rank) => own.map((part) => part.map((row) => ranks[rank][row])));
    return { parts, values: stepNumbers([made], cut.cap_tokens, width).values };
  });
}

let text = "";
for await (const piece of stdin) text += piece;
const answers = [];
for (const question of JSON.parse(text)) answers.push(await answerOf(question));
stdout.write(JSON.stringify(answers));
