// How a token is coloured: each colouring takes the arrays of one answer and says how far each token is from nothing.

/** @typedef {Record<string, Float32Array>} Arrays */

/** @typedef {"nothing" | "less" | "more" | "held" | "out" | "broken"} Tone of a token; "broken": it is NaN */

/**
 * @typedef {object} Coloured
 * @property {(at: number) => [tone: Tone, share: number]} of share: how strong, from 0 to 1
 * @property {string} less what the tones mean, in words; "" where there is no such tone
 * @property {string} more
 * @property {string} scale from where to where
 * @property {(at: number) => boolean} [dotted] whether the two sides are sure of opposite things; absent where none is
 */

/**
 * @typedef {object} Colouring
 * @property {string} title
 * @property {string[]} needs arrays without which it can't be
 * @property {(arrays: Arrays) => Coloured} make
 */

/** One side gives a token at least this probability and the other at most that, as `confident.py` of the mismatch has it. */
const [SURE, UNLIKELY] = [0.5, 0.05];

/** Differences that are smaller than this part of the scale have no colour: noise is no news. */
const QUIET = 0.06;

/**
 * Training minus rollout, of each token.
 * @param {Arrays} arrays
 */
export function differences({ log_probs: train, rollout_log_probs: rollout }) {
  return train.map((value, at) => value - rollout[at]);
}

/**
 * The same where it means something: 0 for a token outside the loss that the engine told nothing of, as what a tool said.
 * @param {Arrays} arrays
 */
function compared(arrays) {
  const { mask, rollout_log_probs: rollout } = arrays;
  return differences(arrays).map((value, at) => (mask && mask[at] === 0 && rollout[at] === 0 ? 0 : value));
}

/**
 * Whether rollout and training disagree confidently about a token that the loss counts.
 * @param {Arrays} arrays
 * @param {number} at
 */
export function confidentAt({ mask, log_probs: train, rollout_log_probs: rollout }, at) {
  if (!train || !rollout || mask?.[at] === 0) return false;
  const [low, high] = train[at] < rollout[at] ? [train[at], rollout[at]] : [rollout[at], train[at]];
  return Number.isFinite(low) && high >= Math.log(SURE) && low <= Math.log(UNLIKELY);
}

/**
 * The colours of a comparison, and the dots of tokens on which it is a confident disagreement.
 * @param {Arrays} arrays
 * @param {Coloured} coloured
 * @returns {Coloured}
 */
function dottedWhere(arrays, coloured) {
  /** @param {number} at */
  const dotted = (at) => confidentAt(arrays, at);
  return arrays.log_probs.some((_, at) => dotted(at)) ? { ...coloured, dotted } : coloured;
}

/**
 * The size below which a part of the values is; NaN are left out.
 * @param {Float32Array} values
 * @param {number} part
 */
export function sizeAt(values, part) {
  const sizes = values.map(Math.abs).filter((value) => !Number.isNaN(value)).sort();
  return sizes.length ? sizes[Math.min(Math.floor(part * sizes.length), sizes.length - 1)] : 0;
}

/**
 * @param {number} value
 * @param {number} most
 */
const written = (value, most = 3) => Number(value.toPrecision(most)).toString().replace("-", "−");

/**
 * Around nothing in two directions.
 * @param {Float32Array} values
 * @param {{least: number, less: string, more: string, unit: string, spell?: (value: number) => string}} of `least`: the
 *   smallest scale that there is
 * @returns {Coloured}
 */
function signed(values, { least, less, more, unit, spell = written }) {
  const most = Math.max(sizeAt(values, 0.99), least);
  const quiet = QUIET * most;
  return {
    of: (at) => {
      const value = values[at];
      if (Number.isNaN(value)) return ["broken", 1];
      const size = Math.abs(value);
      return size < quiet ? ["nothing", 0] : [value < 0 ? "less" : "more", Math.min(size / most, 1)];
    },
    less, more,
    scale: `${spell(-most)} … ${spell(0)} … ${spell(most)}${unit}; no colour between ${spell(-quiet)} and ${spell(quiet)}`,
  };
}

/** @type {Record<string, Colouring>} */
export const COLOURINGS = {
  difference: {
    title: "log-prob difference",
    needs: ["log_probs", "rollout_log_probs"],
    make: (arrays) => dottedWhere(arrays, signed(compared(arrays), { least: 0.5, less: "training finds it less likely", more: "more likely", unit: " nats" })),
  },
  entropy: {
    title: "entropy",
    needs: ["entropies"],
    make: ({ entropies }) => ({ ...signed(entropies, { least: 0.1, less: "", more: "the model was unsure", unit: "" }), scale: `0 … ${written(Math.max(sizeAt(entropies, 0.99), 0.1))} nats` }),
  },
  advantage: {
    title: "advantage",
    needs: ["advantages"],
    make: ({ advantages }) => signed(advantages, { least: 1e-6, less: "made less likely", more: "made more likely", unit: "" }),
  },
  ratio: {
    title: "ratio",
    needs: ["log_probs", "rollout_log_probs"],
    make: (arrays) => dottedWhere(arrays, signed(compared(arrays), { least: Math.log(1.2), less: "training ÷ rollout below 1", more: "above 1", unit: "", spell: (value) => `×${written(Math.exp(value))}` })),
  },
  mask: {
    title: "mask and clipping",
    needs: ["mask"],
    make: ({ mask, clipped_passes: clipped }) => ({
      of: (at) => (mask[at] === 0 ? ["out", 1] : clipped && clipped[at] > 0 ? ["held", 1] : ["nothing", 0]),
      less: "", more: "",
      scale: `low and grey: the loss doesn't count it${clipped ? "; amber: clipped in a pass" : ""}`,
    }),
  },
};

/**
 * The colourings that these arrays allow.
 * @param {Arrays} arrays
 */
export function colouringsOf(arrays) {
  return Object.keys(COLOURINGS).filter((name) => COLOURINGS[name].needs.every((one) => Object.hasOwn(arrays, one)));
}

/**
 * The turn of each token: a turn begins where the loss begins to count. Null where nothing is left out.
 * @param {Float32Array | undefined} mask
 * @returns {Uint16Array | null} from 1; 0 before the first
 */
export function turnsOf(mask) {
  if (!mask || mask.every((value) => value !== 0)) return null;
  let turn = 0;
  return Uint16Array.from(mask, (value, at) => {
    if (value !== 0 && (at === 0 || mask[at - 1] === 0)) turn += 1;
    return turn;
  });
}

/**
 * Numbers from base64, 4 bytes each, little-endian.
 * @param {string} text
 */
export function numbersOf(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}
