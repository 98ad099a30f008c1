// Rows that are drawn anew again and again, while somebody moves in them.

/**
 * Make `rows` the children of `list`, in their order. What has the focus keeps it.
 * @param {Element} list
 * @param {Element[]} rows
 */
export function arrange(list, rows) {
  const focused = list.contains(document.activeElement) ? document.activeElement : null;
  for (const one of [...list.children]) if (!rows.includes(one)) one.remove();
  rows.forEach((one, at) => {
    if (list.children[at] !== one) list.insertBefore(one, list.children[at] ?? null);
  });
  if (focused instanceof HTMLElement && focused !== document.activeElement && focused.isConnected) focused.focus();
}

/**
 * The arrow keys, Home and End go through the names in `list`.
 * @param {HTMLElement} list
 * @param {string} name selector of what takes the focus in a row
 */
export function arrowKeys(list, name) {
  list.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity }[event.key];
    if (!step) return;
    const names = [...list.querySelectorAll(name)];
    const at = names.findIndex((one) => one.closest("li")?.contains(document.activeElement));
    /** @type {HTMLElement | undefined} */ (names[Math.min(Math.max(at + step, 0), names.length - 1)])?.focus();
    event.preventDefault();
  });
}
