// Draws the figure of a panel's page, in the colours of the page, and again when these change.
(function () {
  "use strict";

  function isDark() {
    return document.body.getAttribute("data-md-color-scheme") === "slate";
  }

  // A part of a figure in the colours of the page; figures come in those of the light theme.
  function themed(part, coloured) {
    if (typeof part === "string") return (coloured && isDark() && window.probeDark[part]) || part;
    if (Array.isArray(part)) return part.map(function (one) { return themed(one, coloured); });
    if (part === null || typeof part !== "object") return part;
    return Object.fromEntries(Object.entries(part).map(function (pair) {
      return [pair[0], themed(pair[1], /color$/.test(pair[0]))];
    }));
  }

  function draw() {
    document.querySelectorAll(".probe-figure").forEach(function (place) {
      const figure = (window.probeFigures || {})[place.id.replace(/^figure-/, "")];
      if (!figure || !window.Plotly) return;
      if (!place.dataset.drawn) place.textContent = "";
      place.dataset.drawn = "yes";
      place.style.height = figure.layout.height + "px"; // the page keeps the room that the figure takes
      const layout = Object.assign(themed(figure.layout), { template: window.probeTemplates[isDark() ? "dark" : "light"], autosize: true });
      window.Plotly.react(place, themed(figure.data), layout, { responsive: true, displaylogo: false });
    });
  }

  document.addEventListener("DOMContentLoaded", function () {
    draw();
    new MutationObserver(draw).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
  });
})();
