// What a step would have come to under other settings. The page packs verl's and fixed rows itself, so that it answers
// while a cell runs; everything else is asked of whoever reads the run, in pieces, so that it can be ended.

import { chooser } from "./chooser.js";
import { copyBy, freshId, node, say } from "./dom.js";
import { Refused } from "./packing.js";
import { SettingControl, percent, spelled } from "./what_if_controls.js";
import { linesFor } from "./what_if_lines.js";
import { answered, cutOf, lengthsOf } from "./what_if_numbers.js";
import { changesOf, counts, linesOf, overridesOf } from "./what_if_settings.js";
import { answerer } from "./words.js";

/** @import { Answered, CapLimit, WhatIfBatches, WhatIfPhase } from "./what_if_types.js" */
/** @import { Value } from "./what_if_settings.js" */
/** @import { Panel } from "./view.js" */

/** The view that it stands in. */
const VIEW = "what_if";

const SETTLED = 200; //  ms after the last turn until somebody else is asked
const BUSY = 1500; //  ms after which who is asked counts as busy
const SEVERAL = 20; //  steps that are replayed where it isn't the one alone
const COPY = "Copy the change";

/** What a page answers for. @type {ReadonlySet<string>} */
const OWN = new Set(["cap_tokens", "rows_each", "dynamic"]);

/** @param {WhatIfPhase} phase */
const nameOf = ({ role, phase }) => [role, phase].filter(Boolean).join(" · ") || "no phase";

/** The view. */
export class WhatIf {
  /** @param {Panel} panel */
  constructor(panel) {
    this.panel = panel;
    this.store = panel.store;
    /** What is shown. @type {WhatIfBatches | null} */
    this.told = null;
    /** What was asked for, by attempt and step. @type {{of: string, told: WhatIfBatches} | null} */
    this.fetched = null;
    this.wanted = "";
    this.key = "";
    this.asked = ""; //  what was answered last
    this.text = ""; //  the change, as it is copied
    this.apart = ""; //  what a saved copy can't answer
    /** Lengths of the phase that is shown, once they are unpacked. @type {number[][][] | null} */
    this.lengths = null;
    /** @type {SettingControl[]} */
    this.controls = [];
    /** What memory allows of the cap. @type {CapLimit | null} */
    this.limit = null;
    this.generation = 0;
    this.frame = 0;
    /** @type {Record<"ask" | "busy", ReturnType<typeof setTimeout> | undefined>} */
    this.timers = { ask: undefined, busy: undefined };
    const heading = freshId("what-if");
    this.title = node("h3", { id: heading, text: "What if" });
    this.sentence = node("p", { class: "pp-sentence" });
    this.phase = chooser("Batches of", [], (value) => this._choose({ where: value, changes: {} }));
    this.steps = chooser("Steps", [["1", "this one"], [String(SEVERAL), `the last ${SEVERAL}`]], (value) => this._choose({ steps: Number(value) }));
    this.note = node("p", { class: "pp-read", role: "status" });
    this.progress = node("progress", { "aria-label": "Steps replayed" });
    this.cancel = node("button", { type: "button", class: "pp-button", text: "Cancel", on: { click: () => this._cancel() } });
    this.going = node("div", { class: "pp-going", hidden: true }, this.progress, this.cancel);
    this.back = node("button", { type: "button", class: "pp-button", text: "Back to the recorded", on: { click: () => this._choose({ changes: {} }) } });
    this.best = node("button", { type: "button", class: "pp-plain", text: "Best within the risk", hidden: true, on: { click: () => this._best() } });
    this.settings = node("div", { class: "pp-settings", role: "group", "aria-label": "Settings" });
    this.body = node("tbody");
    this.then = node("th", { scope: "col", class: "pp-number", text: "Recorded" });
    const head = node("thead", {}, node("tr", {}, node("td"), this.then, node("td", { class: "pp-scale" }, node("span", { class: "pp-keys", "aria-hidden": "true" }, node("i", { class: "pp-then" }), "recorded", node("i", { class: "pp-now" }), "what if")), node("th", { scope: "col", class: "pp-number", text: "What if" })));
    this.table = node("table", { class: "pp-lines", "aria-labelledby": heading }, head, this.body);
    this.read = node("div", { class: "pp-read" });
    this.diff = node("pre", { class: "pp-patch", tabindex: "0", role: "region", "aria-label": "The change to your configuration" });
    this.copy = node("button", { type: "button", class: "pp-button", text: COPY, on: { click: () => this._copy() } });
    this.change = node("section", { class: "pp-change", "aria-label": "The change", hidden: true }, node("header", {}, node("h3", { text: "The change to your configuration" }), node("p", { class: "pp-sentence", text: "Nothing is changed for you." }), this.copy), this.diff);
    this.parts = node("div", { class: "pp-what-if-parts" }, this.settings, node("div", {}, this.table));
    this.root = node("section", { class: "pp-what-if", "aria-labelledby": heading, hidden: true }, node("header", {}, this.title, this.sentence), node("div", { class: "pp-what-if-tools" }, this.phase.root, this.steps.root, this.back, this.best, this.going), this.note, this.parts, this.read, this.change);
  }

  destroy() {
    this.generation += 1;
    cancelAnimationFrame(this.frame);
    for (const timer of Object.values(this.timers)) clearTimeout(timer);
  }

  /** @returns {{where: string | null, changes: Record<string, Value>, steps: number}} */
  get chosen() {
    return { where: null, changes: {}, steps: 1, ...this.store.ui.what_if };
  }

  /** @param {Partial<WhatIf["chosen"]>} change */
  _choose(change) {
    this.store.choose({ what_if: { ...this.chosen, ...change } });
  }

  // ---- whose batches

  draw() {
    this.root.hidden = this.panel.tabs.chosen?.id !== VIEW;
    if (this.root.hidden) return;
    const told = this._batches();
    if (told) this._show(told);
    else this._empty();
  }

  /** The batches to show: those of the chosen step, which are asked for where they aren't here; until then others. */
  _batches() {
    const { ui, followed, state } = this.store;
    const known = state.what_if ?? null;
    if (known !== null && (ui.step === null || ui.step === known.step)) return known;
    const step = ui.step ?? followed;
    if (this.fetched?.of === this._of(step)) return this.fetched.told;
    this._fetch(step);
    return this.told ?? known;
  }

  /** @param {number | null} step */
  _of(step) {
    return JSON.stringify([this.store.state.attempt ?? null, step]);
  }

  /** Nothing is here yet. */
  _empty() {
    const { step, answers } = this.store;
    this.parts.hidden = true;
    this.change.hidden = true;
    this.phase.root.hidden = true;
    this.steps.root.hidden = true;
    this.back.hidden = true;
    this.best.hidden = true;
    const waits = step === null ? "No step has ended yet." : "Waiting for the batches of this step.";
    if (!answers || step === null || !this.wanted) this._say(answers || step === null ? waits : "This saved copy has no batches. Open the run with probe open to see them.");
  }

  /**
   * Ask for the batches of a step, once.
   * @param {number | null} step
   */
  _fetch(step) {
    const { store } = this;
    const wanted = this._of(step);
    if (step === null || !store.answers || this.wanted === wanted) return;
    this.wanted = wanted;
    this._ask({ of: "batches", step }, (answer) => {
      if (this.wanted !== wanted) return;
      this.fetched = { of: wanted, told: answer };
      this.wanted = "";
      if (answer.phases.length) this.draw();
      else this._say(`Nothing was cut into micro-batches in step ${step}.`);
    });
  }

  /** @param {WhatIfBatches} told */
  _show(told) {
    if (!told.phases.length) {
      this._empty();
      this._say(`Nothing was cut into micro-batches in step ${told.step}.`);
      return;
    }
    const { where, changes, steps } = this.chosen;
    const names = told.phases.map(nameOf);
    const phase = told.phases[Math.max(where === null ? largest(told.phases) : names.indexOf(where), 0)];
    const key = JSON.stringify([told.step, nameOf(phase), phase.lengths, phase.before, phase.settings]);
    const other = key !== this.key;
    if (other) this._begin(told, phase, key, names);
    this.phase.select.value = nameOf(phase);
    this.steps.select.value = String(steps);
    const { answers } = this.store;
    this.steps.root.hidden = !answers;
    this.apart = answers ? "" : `Saved copy of step ${told.step}: it answers for caps and fixed rows of verl alone; what is greyed needs the run (probe open).`;
    this.back.hidden = !Object.keys(changesOf(phase.settings, changes)).length;
    this._allow(phase);
    for (const one of this.controls) one.draw(changes, counts(one.setting, phase.settings, changes) && (answers || (phase.in_page && OWN.has(one.setting.name))));
    this._change(phase);
    const asked = JSON.stringify([key, changesOf(phase.settings, changes), steps, answers, this.lengths !== null, this.limit]);
    if (asked === this.asked) return;
    this.asked = asked;
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this._answer(told, phase));
  }

  /**
   * Another phase or step.
   * @param {WhatIfBatches} told
   * @param {WhatIfPhase} phase
   * @param {string} key
   * @param {string[]} names
   */
  _begin(told, phase, key, names) {
    this.told = told;
    this.key = key;
    this.lengths = null;
    this.parts.hidden = false;
    this.phase.root.hidden = names.length < 2;
    this.phase.select.replaceChildren(...names.map((text) => node("option", { value: text, text })));
    const same = JSON.stringify(phase.settings) === JSON.stringify(this.controls.map(({ setting }) => setting));
    if (!same || !this.controls.length) {
      this.controls = phase.settings.map((setting) => new SettingControl(setting, (value) => this._choose({ changes: { ...this.chosen.changes, [setting.name]: value } })));
      this.settings.replaceChildren(...(this.controls.length ? this.controls.map(({ root }) => root) : [node("p", { text: phase.why || "None of your configuration's settings is known to change these batches." })]));
    }
    if (!phase.lengths) return;
    lengthsOf(phase.lengths).then((lengths) => {
      if (this.key !== key) return;
      this.lengths = lengths;
      this.draw();
    }, () => this._say("The lengths of this step can't be read here."));
  }

  /**
   * What memory allows of the cap, as who reads the run has worked it out for this phase.
   * @param {WhatIfPhase} phase
   */
  _allow(phase) {
    const known = this.store.state.what_if?.phases.find((one) => nameOf(one) === nameOf(phase))?.caps;
    this.limit = phase.caps ?? known ?? null;
    const cap = this.controls.find(({ setting }) => setting.name === "cap_tokens");
    cap?.allow(this.limit);
    const { best, risk } = this.limit ?? { best: null, risk: 0 };
    this.best.hidden = !cap || best === null || !counts(cap.setting, phase.settings, this.chosen.changes);
    if (best !== null) say(this.best, `Best within ${percent(risk)} risk`);
  }

  _best() {
    const best = this.limit?.best;
    if (best) this._choose({ changes: { ...this.chosen.changes, cap_tokens: best } });
  }

  // ---- the answer

  /**
   * @param {WhatIfBatches} told
   * @param {WhatIfPhase} phase
   */
  _answer(told, phase) {
    const { changes: chosen, steps } = this.chosen;
    const changes = changesOf(phase.settings, chosen);
    this.generation += 1;
    clearTimeout(this.timers.ask);
    this.going.hidden = true;
    say(this.title, `What if: ${nameOf(phase)}, ${steps === 1 ? `step ${told.step}` : `${SEVERAL} steps up to ${told.step}`}`);
    if (steps === 1 && !Object.keys(changes).length) {
      this._told(phase, { ...AS_IT_WAS, before: phase.before, after: phase.before, modelled: phase.modelled, compared: phase.compared }, "As it was recorded. Change a setting to see what it would have done.");
      return;
    }
    const cut = steps === 1 ? cutOf(phase, changes) : null;
    if (cut && this.lengths) {
      try {
        this._told(phase, answered(phase, this.lengths, cut), "Packed again in this page.");
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
        this._told(phase, null, `The rows can't be packed with these settings: ${error.message}`);
      }
    } else if (!cut || !phase.lengths) this._further(told, phase, changes);
  }

  /**
   * What the page can't work out is asked for.
   * @param {WhatIfBatches} told
   * @param {WhatIfPhase} phase
   * @param {Record<string, Value | string>} changes
   */
  _further(told, phase, changes) {
    if (!this.store.answers) {
      this._told(phase, null, "A saved page can't work this out: it needs the run. Open the run with probe open.");
      return;
    }
    const { generation } = this;
    const question = { of: "what_if", step: told.step, where: [phase.role, phase.phase], changes, steps: this.chosen.steps };
    const go = () => this._ask(question, (answer) => {
      if (generation !== this.generation) return;
      this.going.hidden = answer.done >= answer.total;
      this.progress.max = answer.total;
      this.progress.value = answer.done;
      if (answer.done < answer.total) go();
      else this._told(phase, answer, `Worked out from the run${answer.total > 1 ? `, over ${answer.total} steps` : ""}.`);
    }, (refused) => {
      if (generation === this.generation) this._told(phase, null, refused);
    });
    this.root.toggleAttribute("data-waiting", true);
    this.timers.ask = setTimeout(go, SETTLED);
  }

  _cancel() {
    this.generation += 1;
    this.going.hidden = true;
    this.root.toggleAttribute("data-waiting", false);
    this._say("Cancelled: the numbers are those of the question before.");
    this.panel.announce("Cancelled.", true);
    this.back.focus();
  }

  /**
   * Ask whoever reads the run.
   * @param {Record<string, unknown>} question
   * @param {(answer: any) => void} done
   * @param {(why: string) => void} [refused]
   */
  _ask(question, done, refused = (why) => this._say(why)) {
    const { store } = this;
    clearTimeout(this.timers.busy);
    this.timers.busy = setTimeout(() => {
      const { name, when } = answerer(store.config);
      this._say(`The ${name} is busy: it answers ${when}.`);
    }, BUSY);
    store.inquire(this.panel.model, question, (answer) => {
      clearTimeout(this.timers.busy);
      this._say("");
      if (answer.refused) refused(answer.refused);
      else done(answer);
    });
  }

  /**
   * @param {WhatIfPhase} phase
   * @param {Answered | null} answer
   * @param {string} sentence
   */
  _told(phase, answer, sentence) {
    this.root.toggleAttribute("data-waiting", false);
    say(this.sentence, sentence);
    this.sentence.toggleAttribute("data-refused", answer === null);
    this._say("");
    const shown = answer ?? { ...AS_IT_WAS, before: phase.before, modelled: phase.modelled };
    this.body.replaceChildren(...linesFor(shown, phase.memory?.room_bytes ?? null));
    const lines = [...phase.unknown, ...shown.notes];
    const beyond = Number(shown.after.largest_tokens) > (phase.memory?.largest_tokens ?? Infinity);
    if (beyond) lines.push(`No micro-batch above ${spelled(phase.memory?.largest_tokens ?? 0)} tokens was seen: beyond them the peak is extrapolated.`);
    if (this.limit) lines.push(...limitTold(this.limit));
    if (phase.memory || phase.seconds) lines.push("Recorded times and peaks were measured. Those of what if are estimates with a 95 % interval; every other number is exact.");
    this.read.replaceChildren(...lines.map((text) => node("p", { text })));
  }

  /** @param {WhatIfPhase} phase */
  _change(phase) {
    const lines = linesOf(phase.settings, this.chosen.changes);
    this.change.hidden = !lines.length;
    const text = overridesOf(lines);
    if (text === this.text) return;
    this.text = text;
    say(this.copy, COPY);
    this.diff.replaceChildren(...lines.flatMap(({ key, was, now }) => [node("del", { text: `- ${key}: ${was === null ? "(not set)" : was}\n` }), node("ins", { text: `+ ${key}: ${now}\n` })]));
  }

  _copy() {
    copyBy(this.copy, this.text);
  }

  /** @param {string} text */
  _say(text) {
    say(this.note, text || this.apart);
    this.note.hidden = !this.note.textContent;
  }
}

/**
 * What the signs at a slider mean.
 * @param {CapLimit} limit
 */
function limitTold({ best, risky, risk }) {
  const hatched = risky === null ? [] : [`Hatched: the risk of running out of memory within 1,000 steps is above ${percent(risk)}.`];
  const marked = best === null ? [] : [`The triangle marks the largest cap within ${percent(risk)} risk that the recorded micro-batches can predict.`];
  return [[...hatched, ...marked].join(" ")].filter(Boolean);
}

/** Nothing but what was. @type {Answered} */
const AS_IT_WAS = { before: {}, after: {}, low: {}, high: {}, modelled: {}, saved: null, notes: [], compared: true };

/**
 * The place of the phase that is shown first: of those with a setting the one that computes most.
 * @param {WhatIfPhase[]} phases
 */
function largest(phases) {
  const work = phases.map(({ settings, work: [, computed] }) => (settings.length ? computed : -1));
  return work.indexOf(Math.max(...work));
}
