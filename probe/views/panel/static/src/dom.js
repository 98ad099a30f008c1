// The only ways in which this panel makes DOM nodes: every text that comes from a run goes through textContent.

const SVG = "http://www.w3.org/2000/svg";

let lastId = 0;

/**
 * A DOM node. Strings among the children become text nodes, never markup.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {{text?: string, on?: Record<string, (event: any) => void>, [name: string]: any}} attributes any attribute;
 *   false and null leave one out
 * @param {...(Node | string | null | undefined)} children
 * @returns {HTMLElementTagNameMap[T]}
 */
export function node(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name === "text") made.textContent = value;
    else if (name === "on") for (const [event, listener] of Object.entries(attributes.on ?? {})) made.addEventListener(event, listener);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/**
 * An SVG node.
 * @template {keyof SVGElementTagNameMap} T
 * @param {T} tag
 * @param {Record<string, string>} attributes
 * @param {...Node} children
 * @returns {SVGElementTagNameMap[T]}
 */
export function drawn(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/**
 * Write a text only where it differs: an unchanged node costs no layout.
 * @param {Node} target
 * @param {string} text
 */
export function say(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

/**
 * Put a text where it can be pasted from, and say on the button whether that was done.
 * @param {string} text
 * @param {HTMLElement} button
 */
export function copyBy(button, text) {
  const failed = "Can't be copied here";
  copied(text).then((done) => say(button, done ? "Copied" : failed), () => say(button, failed));
}

/**
 * An id for `aria-labelledby` and its like, unique in the page.
 * @param {string} prefix
 */
export function freshId(prefix) {
  lastId += 1;
  return `probe-${prefix}-${lastId}-${Math.random().toString(36).slice(2, 7)}`;
}

/**
 * Put a text where it can be pasted from.
 * @param {string} text
 * @returns {Promise<boolean>} whether that was allowed
 */
export async function copied(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => copiedByHand(text));
  return copiedByHand(text);
}

/**
 * As pages do it that aren't served over https.
 * @param {string} text
 */
function copiedByHand(text) {
  const field = node("textarea", { class: "pp-unseen", "aria-hidden": "true" });
  field.value = text;
  field.style.position = "fixed"; //  so that nothing scrolls
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  return done;
}

/**
 * Keys and what they do, as a line of hints.
 * @param {[keys: string[], does: string][]} keys
 * @returns {(Node | string)[]}
 */
export const keyHints = (keys) => keys.flatMap(([names, does], at) => [at ? " · " : "", node("span", {}, ...names.flatMap((name) => [node("kbd", { text: name }), " "]), does)]);
