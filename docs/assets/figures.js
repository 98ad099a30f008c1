// Draws the figure of a panel's page, in the colours of the page, and again when these change.
(function () {
  "use strict";

  function template() {
    const dark = document.body.getAttribute("data-md-color-scheme") === "slate";
    return window.probeTemplates[dark ? "dark" : "light"];
  }

  function draw() {
    document.querySelectorAll(".probe-figure").forEach(function (place) {
      const figure = (window.probeFigures || {})[place.id.replace(/^figure-/, "")];
      if (!figure || !window.Plotly) return;
      if (!place.dataset.drawn) place.textContent = "";
      place.dataset.drawn = "yes";
      place.style.height = figure.layout.height + "px"; // the page keeps the room that the figure takes
      const layout = Object.assign({}, figure.layout, { template: template(), autosize: true });
      window.Plotly.react(place, figure.data, layout, { responsive: true, displaylogo: false });
    });
  }

  document.addEventListener("DOMContentLoaded", function () {
    draw();
    new MutationObserver(draw).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
  });
})();
