// What the tests of the plugin's looks ask of the page. Each is called there by its name.

globalThis.__looks = {
  /** Texts and controls below `place` that are shown, with where they are. */
  parts(place) {
    const shown = [...document.querySelectorAll(`${place} *`)].filter((one) => one.checkVisibility({ opacityProperty: true, visibilityProperty: true }));
    const found = [];
    for (const one of shown) {
      if (one.closest("svg, .pp-unseen, option")) continue;
      const rects = one.matches("input, select, button")
        ? [one.getBoundingClientRect()]
        : [...one.childNodes].filter((child) => child.nodeType === Node.TEXT_NODE && child.textContent.trim()).flatMap((child) => {
            const range = document.createRange();
            range.selectNodeContents(child);
            return [...range.getClientRects()];
          });
      for (const rect of rects) if (rect.width && rect.height) found.push({ one, rect });
    }
    return found;
  },
  told: ({ one, rect }) => `${one.className || one.tagName} "${one.textContent.trim().slice(0, 30)}" at ${Math.round(rect.left)},${Math.round(rect.top)} ${Math.round(rect.width)}x${Math.round(rect.height)}`,
  /** What a part scrolls in; the page itself where nothing does. */
  scroller(one) {
    for (let at = one.parentElement; at; at = at.parentElement) if (["auto", "scroll"].includes(getComputedStyle(at).overflowY)) return at;
    return document.documentElement;
  },
  /** As much of a part as isn't scrolled out of sight. */
  sight({ rect, scroller }) {
    const { left, right, top, bottom } = scroller.getBoundingClientRect();
    return { left: Math.max(rect.left, left), right: Math.min(rect.right, right), top: Math.max(rect.top, top), bottom: Math.min(rect.bottom, bottom) };
  },
  /** Those that lie on each other; of two that scroll in different places, where both are in sight. */
  overlaps(place) {
    const parts = this.parts(place).map((part) => ({ ...part, scroller: this.scroller(part.one) }));
    const wrong = [];
    parts.forEach((a, at) => {
      for (const b of parts.slice(at + 1)) {
        if (a.one === b.one || a.one.contains(b.one) || b.one.contains(a.one)) continue;
        const [c, d] = a.scroller === b.scroller ? [a.rect, b.rect] : [this.sight(a), this.sight(b)];
        const wide = Math.min(c.right, d.right) - Math.max(c.left, d.left);
        const high = Math.min(c.bottom, d.bottom) - Math.max(c.top, d.top);
        if (wide > 1 && high > 2) wrong.push(`${this.told(a)} and ${this.told(b)}`);
      }
    });
    return wrong;
  },
  /** Those that are cut off, or reach out of `place` where nobody can scroll to them. */
  cuts(place) {
    return [...document.querySelectorAll(place)].flatMap((root) => [...this.wide(root), ...this.outside(root, place)]).concat(this.hidden(place), this.labels(place));
  },
  /** Labels of charts that reach out of their picture. */
  labels(place) {
    const wrong = [];
    for (const one of document.querySelectorAll(`${place} svg text`)) {
      const rect = one.getBoundingClientRect();
      const picture = (one.closest(".pp-body") ?? one.ownerSVGElement).getBoundingClientRect();
      if (rect.width && (rect.right > picture.right + 2 || rect.left < picture.left - 2)) wrong.push(`label: ${this.told({ one: { className: "", tagName: "text", textContent: one.textContent }, rect })}`);
    }
    return wrong;
  },
  wide: (root) => (root.scrollWidth > root.clientWidth + 1 ? [`${root.className} is ${root.scrollWidth} wide in ${root.clientWidth}`] : []),
  outside(root, place) {
    const { left, right } = root.getBoundingClientRect();
    const scrolled = (one) => {
      for (let at = one; at && at !== root; at = at.parentElement) if (["auto", "scroll"].includes(getComputedStyle(at).overflowX)) return true;
      return false;
    };
    const out = ({ one, rect }) => (rect.left < left - 1 || rect.right > right + 1) && !scrolled(one);
    return this.parts(place).filter((part) => root.contains(part.one) && out(part)).map((part) => `out of it: ${this.told(part)}`);
  },
  hidden(place) {
    const hides = (one) => [getComputedStyle(one).overflowX, getComputedStyle(one).overflowY].some((how) => how === "hidden" || how === "clip");
    const more = (one) => one.scrollWidth > one.clientWidth + 1 || one.scrollHeight > one.clientHeight + 2;
    return this.parts(place).filter(({ one }) => hides(one) && more(one)).map((part) => `cut: ${this.told(part)}`);
  },
};
