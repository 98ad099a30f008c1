(async () => {
  "use strict";
  const nonce = document.currentScript.nonce;
  const { templates, panels } = JSON.parse(document.getElementById("data").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const charts = [...document.querySelectorAll("[data-panel]")];

  const say = (words) => charts.forEach((chart) => {
    if (!chart.dataset.drawn) chart.querySelector("p").textContent = words;
  });

  async function unpack() {
    if (typeof DecompressionStream === "undefined") {
      throw new Error("this browser is too old to draw (it lacks DecompressionStream)");
    }
    const packed = atob(document.getElementById("plotly").textContent);
    const bytes = Uint8Array.from(packed, (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.nonce = nonce;
    script.textContent = await new Response(stream).text();
    document.head.append(script);
    if (!window.Plotly) throw new Error("plotly.js did not start");
  }

  function layoutOf(figure, width) {
    const layout = structuredClone(figure.layout);
    layout.template = templates[dark.matches ? "dark" : "light"];
    layout.autosize = true;
    if (width < 560) {
      layout.font = { ...layout.font, size: 11 };
      layout.margin = { ...layout.margin, l: 4, r: 4 };
      layout.modebar = { remove: ["zoom", "pan", "zoomIn", "zoomOut", "autoScale", "resetScale", "toImage"] };
    }
    return layout;
  }

  function dataOf(figure, width) {
    const data = structuredClone(figure.data);
    // Numbers in the cells of a narrow heat map would only cover each other.
    if (width < 560) data.filter((trace) => trace.type === "heatmap").forEach((trace) => { delete trace.texttemplate; });
    return data;
  }

  function draw(chart) {
    const select = document.querySelector(`select[data-for="${chart.id}"]`);
    const { figure } = panels[chart.dataset.panel][select ? Number(select.value) : 0];
    const width = chart.clientWidth;
    const config = {
      responsive: true, displaylogo: false,
      modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
      toImageButtonOptions: { filename: chart.id, scale: 2 },
    };
    if (!chart.dataset.drawn) chart.replaceChildren();
    chart.style.minHeight = `${figure.layout.height || 320}px`;
    return window.Plotly.react(chart, dataOf(figure, width), layoutOf(figure, width), config)
      .then(() => { chart.dataset.drawn = "yes"; });
  }

  async function drawAll() {
    for (const chart of charts) {
      try { await draw(chart); } catch (error) {
        chart.textContent = `This figure can't be drawn (${error.message}). The table below holds its numbers.`;
      }
      await new Promise((resume) => setTimeout(resume)); // let the page breathe
    }
    document.documentElement.dataset.ready = "yes";
  }

  try {
    await unpack();
  } catch (error) {
    say(`The figures can't be drawn: ${error.message}. The tables hold the same numbers.`);
    return;
  }
  document.querySelectorAll("select[data-for]").forEach((select) => {
    select.addEventListener("change", () => draw(document.getElementById(select.dataset.for)));
  });
  await drawAll();
  dark.addEventListener("change", drawAll);
})();
