// When each step began and ended.

/** When each step began and ended, in seconds since the run's start; and the steps in order. */
export class Clock {
  constructor() {
    /** @type {Map<number, [begin: number, end: number]>} */
    this.spans = new Map();
    /** @type {number[]} */
    this.steps = [];
    this.end = 0;
    this.begin = NaN;
  }

  clear() {
    this.spans.clear();
    this.steps = [];
    this.end = 0;
    this.begin = NaN;
  }

  /**
   * A row of `step` covers begin … end (NaN: not known).
   * @param {number} step
   * @param {number} begin
   * @param {number} end
   */
  note(step, begin, end) {
    const last = Number.isNaN(end) ? begin : end;
    if (last > this.end) this.end = last;
    if (!(begin >= this.begin)) this.begin = Number.isNaN(begin) ? this.begin : begin;
    if (step < 0) return;
    const span = this.spans.get(step);
    if (!span) {
      this.spans.set(step, [begin, last]);
      this._insert(step);
      return;
    }
    if (!(span[0] <= begin) && !Number.isNaN(begin)) span[0] = begin;
    if (!(span[1] >= last) && !Number.isNaN(last)) span[1] = last;
  }

  /**
   * When all steps began and ended.
   * @param {number[]} steps
   * @param {ArrayLike<number>} begins
   * @param {ArrayLike<number>} ends
   */
  fill(steps, begins, ends) {
    steps.forEach((step, at) => {
      const [begin, end] = this.span(step);
      this.spans.set(step, [begin < begins[at] ? begin : begins[at], end > ends[at] ? end : ends[at]]);
    });
    this.steps = [...this.spans.keys()].sort((a, b) => a - b);
  }

  /** @param {number} step */
  _insert(step) {
    let at = this.steps.length;
    while (at > 0 && this.steps[at - 1] > step) at -= 1;
    this.steps.splice(at, 0, step);
  }

  /** @returns {number | null} */
  get newest() {
    return this.steps.length ? this.steps[this.steps.length - 1] : null;
  }

  /**
   * The index in `steps` of `step`, or of the one before it.
   * @param {number} step
   */
  indexOf(step) {
    let low = 0;
    let high = this.steps.length - 1;
    while (low <= high) {
      const middle = (low + high) >> 1;
      if (this.steps[middle] <= step) low = middle + 1;
      else high = middle - 1;
    }
    return Math.max(high, 0);
  }

  /**
   * The step that runs at a time: the last one begun before it.
   * @param {number} time
   * @returns {number | null}
   */
  stepAt(time) {
    let low = 0;
    let high = this.steps.length - 1;
    while (low <= high) {
      const middle = (low + high) >> 1;
      if (this.span(this.steps[middle])[0] <= time) low = middle + 1;
      else high = middle - 1;
    }
    return high < 0 ? this.steps[0] ?? null : this.steps[high];
  }

  /**
   * Begin and end of a step, NaN where not known.
   * @param {number} step
   * @returns {[begin: number, end: number]}
   */
  span(step) {
    return this.spans.get(step) || [NaN, NaN];
  }
}
