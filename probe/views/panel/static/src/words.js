// Numbers and names as a person reads them; every text of a run that plotly would read as markup goes through
// `plain`.

export const UNITS_OF_BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/**
 * A number with about three digits, without a trail of zeros.
 * @param {number} value
 * @param {number} [most]
 */
export function digits(value, most = 3) {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "–" : value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.floor(Math.log10(Math.abs(value)));
  if (size < -4) return value.toExponential(1).replaceAll("-", "−");
  const text = value.toFixed(Math.min(Math.max(most - 1 - size, 0), 8));
  const trimmed = text.includes(".") ? text.replace(/\.?0+$/, "") : text;
  return (trimmed === "-0" ? "0" : trimmed).replace("-", "−");
}

/**
 * Bytes in the largest binary unit that leaves at least 1.
 * @param {number} value
 */
export function bytes(value) {
  if (!Number.isFinite(value)) return digits(value);
  let size = Math.abs(value);
  let unit = 0;
  while (size >= 1024 && unit < UNITS_OF_BYTES.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${digits(Math.sign(value) * size)} ${UNITS_OF_BYTES[unit]}`;
}

/**
 * What answers this panel, by its host's word, and when it does where it is busy.
 * @param {{asks?: string}} config
 */
export function answerer({ asks = "kernel" }) {
  return { name: asks, when: asks === "kernel" ? "when its cell ends" : "as soon as it can" };
}

/**
 * Counts: whole below ten thousand, then k, M, G, T.
 * @param {number} value
 */
export function count(value) {
  if (!Number.isFinite(value)) return digits(value);
  const size = Math.abs(value);
  if (size < 1e4) return digits(value, size >= 1000 ? 4 : 3);
  const names = ["k", "M", "G", "T"];
  let power = Math.min(Math.floor(Math.log10(size) / 3), names.length);
  // 999 950 is a million in three digits, not 1000 thousand.
  if (power < names.length && Number((size / 1000 ** power).toPrecision(3)) >= 1000) power += 1;
  return `${digits(value / 1000 ** power)} ${names[power - 1]}`;
}

/**
 * Seconds, from nanoseconds to days.
 * @param {number} value
 */
export function seconds(value) {
  if (!Number.isFinite(value)) return digits(value);
  const size = Math.abs(value);
  if (size === 0) return "0 s";
  if (size < 1e-6) return `${digits(value * 1e9)} ns`;
  if (size < 1e-3) return `${digits(value * 1e6)} µs`;
  if (size < 1) return `${digits(value * 1e3)} ms`;
  if (size < 120) return `${digits(value)} s`;
  const whole = Math.round(size);
  const [days, hours, minutes] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60];
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return `${minutes} min ${whole % 60} s`;
}

/**
 * Which attempt is shown, in a list that is empty where there is one alone.
 * @param {import("./message_types.js").RunState} state
 * @returns {string[]}
 */
export function attemptOf({ attempts = [], attempt = null }) {
  const shown = attempts.find(([number]) => number === attempt) ?? attempts.at(-1);
  if (!shown) return [];
  const [number, first, last] = shown;
  return [attempt === null ? `attempt ${number} (from step ${first})` : `attempt ${number}: steps ${first} to ${last}`];
}

/** @type {[unit: string, seconds: number][]} */
const AGES = [["d", 86400], ["h", 3600], ["min", 60]];

/**
 * A time that has gone by, in its largest unit.
 * @param {number} value
 */
export function ago(value) {
  for (const [unit, length] of AGES) if (value >= length) return `${Math.floor(value / length)} ${unit}`;
  return `${Math.floor(value)} s`;
}

/**
 * A wall-clock time as the person's own clock says it; with its day where it was `past` seconds ago, more than a day.
 * @param {number} at
 * @param {number} past
 */
export function timeOfDay(at, past) {
  /** @type {Intl.DateTimeFormatOptions} */
  const day = past < 86400 ? {} : { year: "numeric", month: "2-digit", day: "2-digit" };
  return new Date(at * 1000).toLocaleString([], { ...day, hour: "2-digit", minute: "2-digit", hour12: false });
}

/** How a value is written, by its unit. @type {Record<string, (value: number) => string>} */
const SPELLINGS = {
  bytes,
  tokens: count,
  count,
  s: seconds,
  ratio: (value) => digits(value),
  percent: (value) => (Number.isFinite(value) ? `${digits(value * 100)} %` : digits(value)),
  "tokens/s": count,
  number: (value) => (Math.abs(value) >= 1e4 ? count(value) : digits(value, 4)),
};

/**
 * A value in its unit; a missing one is a dash.
 * @param {number | null | undefined} value
 * @param {string | undefined} unit
 */
export function spell(value, unit) {
  if (value === null || value === undefined) return "–";
  return (SPELLINGS[unit ?? ""] || SPELLINGS.number)(value);
}

/** @type {Record<string, string>} */
const UNIT_WORDS = { tokens: "tokens", "tokens/s": "tokens/s", ratio: "×" };

/**
 * The unit's word behind a number, where `spell` hasn't said it.
 * @param {string | undefined} unit
 */
export function unitWord(unit) {
  return UNIT_WORDS[unit ?? ""] ?? "";
}

/**
 * A user's text for plotly, which reads some markup: one line, not too long, no markup.
 * @param {unknown} text
 * @param {number} [length]
 */
export function plain(text, length = 60) {
  const line = shorten(text, length);
  return line.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

/**
 * One line of at most `length` characters.
 * @param {unknown} text
 * @param {number} [length]
 */
export function shorten(text, length = 60) {
  const line = String(text ?? "").split(/\s+/).join(" ").trim();
  return line.length <= length ? line : `${line.slice(0, length - 1)}…`;
}

/**
 * A number of things: "1 row", "3 rows".
 * @param {number} number
 * @param {string} one
 * @param {string} [more]
 */
export function many(number, one, more = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : more}`;
}
