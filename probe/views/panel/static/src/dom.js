// The only ways in which this panel makes DOM nodes: every text that comes from a run goes through textContent.

/**
 * A DOM node. Strings among the children become text nodes, never markup.
 * @param {string} tag
 * @param {Object} attributes `class`, `text`, `on: {event: function}`, any attribute; false and null leave one out
 * @param {...(Node|string|null)} children
 */
export function node(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name === "text") made.textContent = value;
    else if (name === "on") for (const [event, listener] of Object.entries(value)) made.addEventListener(event, listener);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

/** An SVG node. */
export function drawn(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Write a text only where it differs: an unchanged node costs no layout. */
export function say(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

let lastId = 0;

/** An id for `aria-labelledby` and its like, unique in the page. */
export function freshId(prefix) {
  lastId += 1;
  return `probe-${prefix}-${lastId}-${Math.random().toString(36).slice(2, 7)}`;
}
