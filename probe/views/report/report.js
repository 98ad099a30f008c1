// The report's figures: plotly.js out of the page itself, a theme by the person's system, a layout by the width.

/** @typedef {{data: Record<string, any>[], layout: Record<string, any>}} Figure of plotly's */
/** @typedef {{react(chart: Element, data: object[], layout: object, config: object): Promise<void>}} Plotly */

(async () => {
  "use strict";
  const nonce = document.currentScript?.nonce ?? "";
  /** @param {string} id */
  const textOf = (id) => document.getElementById(id)?.textContent ?? "";
  /** @type {{templates: Record<string, object>, dark: Record<string, string>, panels: Record<string, {figure: Figure}[]>}} */
  const { templates, dark: darkOf, panels } = JSON.parse(textOf("data"));
  const page = /** @type {{Plotly?: Plotly}} */ (window);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  /** @type {HTMLElement[]} */
  const charts = [...document.querySelectorAll("[data-panel]")].filter((one) => one instanceof HTMLElement);

  /** @param {string} words */
  const say = (words) => charts.forEach((chart) => {
    const place = chart.querySelector("p");
    if (!chart.dataset.drawn && place) place.textContent = words;
  });

  async function unpack() {
    if (typeof DecompressionStream === "undefined") {
      throw new Error("this browser is too old to draw (it lacks DecompressionStream)");
    }
    const packed = atob(textOf("plotly"));
    const bytes = Uint8Array.from(packed, (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.nonce = nonce;
    script.textContent = await new Response(stream).text();
    document.head.append(script);
    if (!page.Plotly) throw new Error("plotly.js did not start");
  }

  /**
   * A part of a figure in the colours of the person's theme; figures come in those of the light one.
   * @param {any} part
   * @param {boolean} [coloured] whether its texts are colours
   * @returns {any}
   */
  function themed(part, coloured = false) {
    if (typeof part === "string") return coloured && dark.matches ? darkOf[part] ?? part : part;
    if (Array.isArray(part)) return part.map((one) => themed(one, coloured));
    if (part === null || typeof part !== "object") return part;
    return Object.fromEntries(Object.entries(part).map(([name, one]) => [name, themed(one, /color$/.test(name))]));
  }

  /**
   * @param {Figure} figure
   * @param {number} width
   */
  function layoutOf(figure, width) {
    const layout = themed(figure.layout);
    layout.template = templates[dark.matches ? "dark" : "light"];
    layout.autosize = true;
    const named = layout.annotations?.some((/** @type {{name?: string}} */ one) => one.name === "end");
    const beside = named && document.documentElement.clientWidth >= 640 && width >= 420;
    if (named && !beside) {
      // No room for names beside the lines: the legend has them.
      layout.annotations = layout.annotations.filter((/** @type {{name?: string}} */ one) => one.name !== "end");
      Object.assign(layout, { showlegend: true, margin: { ...layout.margin, r: 8, t: 34 } });
    }
    if (width < 560) {
      layout.font = { ...layout.font, size: 11 };
      layout.margin = { ...layout.margin, l: 4, r: beside ? layout.margin.r : 4 };
      layout.modebar = { remove: ["zoom", "pan", "zoomIn", "zoomOut", "autoScale", "resetScale", "toImage"] };
    }
    return layout;
  }

  /**
   * @param {Figure} figure
   * @param {number} width
   */
  function dataOf(figure, width) {
    /** @type {Record<string, any>[]} */
    const data = themed(figure.data);
    // Numbers in the cells of a narrow heat map would only cover each other.
    if (width < 560) data.filter((trace) => trace.type === "heatmap").forEach((trace) => { delete trace.texttemplate; });
    return data;
  }

  /** @param {HTMLElement} chart */
  async function draw(chart) {
    /** @type {HTMLSelectElement | null} */
    const select = document.querySelector(`select[data-for="${chart.id}"]`);
    const { figure } = panels[chart.dataset.panel ?? ""][select ? Number(select.value) : 0];
    const width = chart.clientWidth;
    const config = {
      responsive: true, displaylogo: false,
      modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
      toImageButtonOptions: { filename: chart.id, scale: 2 },
    };
    if (!chart.dataset.drawn) chart.replaceChildren();
    chart.style.minHeight = `${figure.layout.height || 320}px`;
    await page.Plotly?.react(chart, dataOf(figure, width), layoutOf(figure, width), config);
    chart.dataset.drawn = "yes";
  }

  async function drawAll() {
    for (const chart of charts) {
      try { await draw(chart); } catch (error) {
        chart.textContent = `This figure can't be drawn (${error instanceof Error ? error.message : error}). The table below holds its numbers.`;
      }
      await new Promise((resume) => setTimeout(resume)); // let the page breathe
    }
    document.documentElement.dataset.ready = "yes";
  }

  /** @param {HTMLButtonElement} button */
  async function copy(button) {
    const from = document.getElementById(button.dataset.copy ?? "");
    if (!from) return;
    try {
      await navigator.clipboard.writeText(from.textContent ?? "");
      button.textContent = "Copied";
    } catch { // a page from the disk may not be allowed to: what is marked can be copied by hand
      getSelection()?.selectAllChildren(from);
      button.textContent = "Marked";
    }
  }
  for (const button of document.querySelectorAll("button[data-copy]")) {
    if (button instanceof HTMLButtonElement) button.addEventListener("click", () => copy(button));
  }

  try {
    await unpack();
  } catch (error) {
    say(`The figures can't be drawn: ${error instanceof Error ? error.message : error}. The tables hold the same numbers.`);
    return;
  }
  for (const chart of charts) {
    document.querySelector(`select[data-for="${chart.id}"]`)?.addEventListener("change", () => draw(chart));
  }
  await drawAll();
  dark.addEventListener("change", drawAll);
})();
