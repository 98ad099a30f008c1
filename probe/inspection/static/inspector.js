// The inspector's form, which asks the kernel for values; it stands below the static picture that the kernel made.
// Every answer was escaped in the kernel; nothing else is put in as HTML.

const BUSY_MS = 400;
let forms = 0;

/** @typedef {{columns: [key: string, shape: string][], start: number, stop: number, decodes: boolean}} About the batch */
/** @typedef {{id: string, html?: string, error?: string}} Answer of the kernel */
/**
 * @typedef {object} Model of the widget, as anywidget gives it
 * @property {(name: "about") => About} get
 * @property {(event: string, callback: (content: Answer | null) => void) => void} on
 * @property {(event: string, callback: (content: Answer | null) => void) => void} off
 * @property {(content: object) => void} send
 */

/**
 * A DOM node; strings among the children become text nodes.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {Record<string, string>} attributes
 * @param {...(Node | string)} children
 * @returns {HTMLElementTagNameMap[T]}
 */
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/**
 * @param {string} label
 * @param {number} value
 * @param {string} name
 */
function numberField(label, value, name) {
  const input = element("input", { type: "number", min: "0", step: "1", value: String(value), name, style: "width:6.5em" });
  return element("label", {}, `${label} `, input);
}

/** @param {About} about */
function form(about) {
  const select = element("select", { name: "key", style: "max-width:22em" });
  for (const [key, shape] of about.columns) select.append(element("option", { value: key }, `${key} ${shape}`));
  const fields = element("form", { class: "probe-ask", style: "display:flex;flex-wrap:wrap;gap:6px 12px;align-items:center;margin:8px 0" });
  fields.append(
    element("label", {}, "column ", select),
    numberField("rows from", about.start, "first"),
    numberField("up to, not including", Math.min(about.stop, about.start + 4), "last"),
    numberField("positions from", 0, "left"),
    numberField("up to", 32, "right"),
  );
  const kinds = [["values", "Show values"], ["tokens", "Show tokens"]];
  if (about.decodes) kinds.push(["text", "Show text"]);
  for (const [ask, label] of kinds) fields.append(element("button", { type: "submit", value: ask }, label));
  return fields;
}

/**
 * What the kernel is asked.
 * @param {HTMLFormElement} fields
 * @param {string} ask
 * @param {string} id
 */
function question(fields, ask, id) {
  const given = new FormData(fields);
  /** @param {string} name */
  const at = (name) => Math.max(0, Math.trunc(Number(given.get(name)) || 0));
  const rows = [at("first"), at("last")];
  return { v: 1, id, ask, key: given.get("key"), rows, positions: [at("left"), at("right")] };
}

/** @param {{model: Model, el: HTMLElement}} host */
function render({ model, el }) {
  const root = element("div", { class: "probe-batch", role: "region", "aria-label": "Values on demand" });
  el.append(root);
  const fields = form(model.get("about"));
  const status = element("p", { class: "soft", role: "status", "aria-live": "polite" });
  const result = element("div", { class: "probe-answer", tabindex: "-1" });
  root.append(element("h4", {}, "Values on demand"), fields, status, result);

  const view = ++forms;
  let number = 0;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  /** @param {string} text */
  const say = (text) => { status.textContent = text; };
  /** @param {Answer | null} content */
  const answered = (content) => {
    if (!content || content.id !== `${view}.${number}`) return; // of another view, or of a question asked before
    clearTimeout(timer);
    say(content.error || "");
    if (content.error) result.replaceChildren();
    else result.innerHTML = content.html ?? "";
  };
  fields.addEventListener("submit", (event) => {
    event.preventDefault();
    number += 1;
    clearTimeout(timer);
    say("Asked the kernel …");
    timer = setTimeout(() => say("The kernel is busy. The answer comes when its cell has ended."), BUSY_MS);
    try {
      model.send(question(fields, event.submitter?.getAttribute("value") || "values", `${view}.${number}`));
    } catch {
      clearTimeout(timer);
      say("There is no kernel to ask. Run the cell again.");
    }
  });
  model.on("msg:custom", answered);
  return () => {
    clearTimeout(timer);
    model.off("msg:custom", answered);
    root.remove();
  };
}

export default { render };
