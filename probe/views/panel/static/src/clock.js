// When each step began and ended.

/** When each step began and ended, in seconds since the run's start; and the steps in order. */
export class Clock {
  constructor() {
    this.clear();
  }

  clear() {
    this.spans = new Map();
    this.steps = [];
    this.end = 0;
    this.begin = NaN;
  }

  /** A row of `step` covers begin … end (NaN: not known). */
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

  _insert(step) {
    let at = this.steps.length;
    while (at > 0 && this.steps[at - 1] > step) at -= 1;
    this.steps.splice(at, 0, step);
  }

  get newest() {
    return this.steps.length ? this.steps[this.steps.length - 1] : null;
  }

  /** The index in `steps` of `step`, or of the one before it. */
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

  /** The step that runs at a time: the last one begun before it. */
  stepAt(time) {
    let low = 0;
    let high = this.steps.length - 1;
    while (low <= high) {
      const middle = (low + high) >> 1;
      if (this.spans.get(this.steps[middle])[0] <= time) low = middle + 1;
      else high = middle - 1;
    }
    return high < 0 ? this.steps[0] ?? null : this.steps[high];
  }

  /** Begin and end of a step, NaN where not known. */
  span(step) {
    return this.spans.get(step) || [NaN, NaN];
  }
}
