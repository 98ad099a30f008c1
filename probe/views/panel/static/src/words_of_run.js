// The texts of a run by their codes: a column of texts holds codes.

/** The words of a run. */
export class RunWords {
  constructor() {
    /** @type {(string | null)[]} */
    this.list = [];
    /** @type {Map<string, number>} */
    this.codes = new Map();
  }

  /**
   * Add new words.
   * @param {string[]} words
   * @param {number} from the code of the first
   * @returns {boolean} false where some before them are missing
   */
  learn(words, from) {
    const whole = from <= this.list.length;
    while (this.list.length < from) this.list.push(null);
    words.forEach((word, index) => {
      this.list[from + index] = word;
      if (!this.codes.has(word)) this.codes.set(word, from + index);
    });
    return whole;
  }

  /** @param {number | undefined} code */
  text(code) {
    return code === undefined || code < 0 ? "" : (this.list[code] ?? "…");
  }
}
