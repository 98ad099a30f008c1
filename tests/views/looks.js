// What the tests of the panel's layout look at in the page. Each is called there by its name.

globalThis.__look = {
  /** The luminance of colours of the panel, by their custom properties. */
  luminances(names) {
      const look = getComputedStyle(document.querySelector(".probe-panel"));
      const part = (value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
      return Object.fromEntries(names.map((name) => {
          const raw = look.getPropertyValue(name).trim();
          const [r, g, b] = [1, 3, 5].map((at) => part(parseInt(raw.slice(at, at + 2), 16) / 255));
          return [name, 0.2126 * r + 0.7152 * g + 0.0722 * b];
      }));
  },
  /** Of every text that is shown: how it begins, its size in px, and its contrast with what is behind it. */
  texts() {
      const part = (value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
      const parsed = (text) => (text.match(/[\d.]+/g) ?? []).map(Number);
      const light = ([r, g, b]) => 0.2126 * part(r / 255) + 0.7152 * part(g / 255) + 0.0722 * part(b / 255);
      const ground = (one) => {
          for (let at = one; at; at = at.parentElement) {
              const [r, g, b, alpha = 1] = parsed(getComputedStyle(at).backgroundColor);
              if (alpha > 0.9) return [r, g, b];
          }
          return [255, 255, 255];
      };
      const found = [];
      const walker = document.createTreeWalker(document.querySelector(".probe-panel"), NodeFilter.SHOW_TEXT);
      while (walker.nextNode()) {
          const one = walker.currentNode.parentElement;
          const text = walker.currentNode.textContent.trim();
          if (!text || one.closest("svg, option, .pp-unseen, details:not([open]) > div") || !one.getClientRects().length || one.closest(":disabled")) continue;
          const look = getComputedStyle(one);
          const [a, b] = [light(parsed(look.color)), light(ground(one))];
          found.push([text.slice(0, 40), parseFloat(look.fontSize), (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)]);
      }
      return found;
  },
  /** What is cut off, or hangs out of the panel. */
  overflows() {
      const { right } = document.querySelector(".probe-panel").getBoundingClientRect();
      const cut = (one) => one.scrollWidth > one.clientWidth + 1 && !["auto", "scroll"].includes(getComputedStyle(one).overflowX);
      const shown = [...document.querySelectorAll(".probe-panel :is(p, h2, h3, h4, button, span, div, dt, dd, li, select, output, figcaption, footer)")]
          .filter((one) => one.getClientRects().length && !one.closest("details:not([open]) > div, .pp-unseen, .pp-scroll, .pp-tabs, .pp-stage, .pp-plot, .pp-legend, .pp-map"));
      return shown.filter((one) => cut(one) || one.getBoundingClientRect().right > right + 0.5)
          .map((one) => `${one.className || one.tagName}: ${one.textContent.slice(0, 40)}`);
  },
  /** What axe calls nested-interactive, aria-hidden-focus, aria-required-children, duplicate ids and missing names. */
  nesting() {
    const panel = document.querySelector(".probe-panel");
    const all = (path, root = panel) => [...root.querySelectorAll(path)];
    const focusable = "button, a[href], input, select, textarea, summary, [tabindex]:not([tabindex='-1'])";
    const named = (one) => ["aria-label", "aria-labelledby", "title"].some((name) => one.getAttribute(name)) || one.textContent.trim() || one.labels?.length;
    const known = (one, name) => document.getElementById(one.getAttribute(name)) !== null;
    const children = (role) => (one) => [...one.children].some((child) => child.getAttribute("role") !== role);
    const ids = all("[id]", document).map((one) => one.id);
    const wrong = {
      nested: all("button, summary, [role=img], [role=tab], [role=slider]").filter((one) => all(focusable, one).length),
      hidden: all(focusable).filter((one) => one.closest("[aria-hidden=true]")),
      list: all("[role=list]").filter(children("listitem")),
      tablist: all("[role=tablist]").filter(children("tab")),
      ul: all("ul").filter((one) => [...one.children].some((child) => child.tagName !== "LI")),
      named: all(`${focusable}, [role=img], [role=group], [role=region]`).filter((one) => !named(one)),
      svg: all("svg").filter((one) => !one.closest("[role=img], [aria-hidden=true]")),
      labelledby: all("[aria-labelledby]").filter((one) => !known(one, "aria-labelledby")),
      controls: all("[aria-controls]").filter((one) => !known(one, "aria-controls")),
      ids: all("[id]", document).filter((one, at) => ids.indexOf(one.id) !== at),
    };
    return Object.entries(wrong).flatMap(([kind, ones]) => ones.map((one) => `${kind}: ${one.outerHTML.slice(0, 90)}`));
  },
};
