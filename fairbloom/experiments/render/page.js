"use strict";
// Draws the charts, emphasises what a legend's button names, saves a chart as SVG, and unfolds all before printing.
(function () {
  const parse = (id) => JSON.parse(document.getElementById(id).textContent);
  const config = parse("chart-config");
  const views = new Map();
  const options = {
    ast: true, // expressions are interpreted, as the page's policy forbids to make code of text
    renderer: "svg", // whose colours are the style sheet's
    actions: false,
    defaultStyle: false,
    tooltip: { disableDefaultStyle: true },
  };

  async function draw(plot) {
    const name = plot.id.slice("chart-".length);
    const fallback = plot.textContent;
    const axis = { ...config.axis, labelLimit: Math.max(96, Math.round(0.4 * plot.clientWidth)) };
    const inside = document.createElement("div");
    inside.setAttribute("aria-hidden", "true"); // the plot itself is described as a whole
    plot.replaceChildren(inside);
    try {
      const { view } = await vegaEmbed(inside, parse("spec-" + name), { ...options, config: { ...config, axis } });
      views.set(name, view);
      plot.dataset.drawn = "yes";
    } catch (error) {
      plot.textContent = "This chart could not be drawn: " + error + " " + fallback;
      plot.dataset.drawn = "no";
    }
  }

  function emphasise(label) {
    for (const button of document.querySelectorAll(".legend button"))
      button.setAttribute("aria-pressed", String(button.dataset.label === label));
    for (const view of views.values()) if ("picked" in view.getState().signals) view.signal("picked", label).runAsync();
  }

  // The page has one legend for all charts; a chart that is saved brings its own.
  function withLegend(spec) {
    const legend = { orient: "bottom", title: null, columns: 3, symbolLimit: 0, labelLimit: 300 };
    for (const channel of spec.layer.flatMap((layer) => Object.values(layer.encoding)))
      if (channel.legend === null) channel.legend = legend;
    return spec;
  }

  async function save(name) {
    const style = getComputedStyle(document.documentElement);
    const spec = { ...withLegend(parse("spec-" + name)), width: views.get(name).container().clientWidth };
    const { view } = await vegaEmbed(document.createElement("div"), spec, { ...options, config });
    const svg = (await view.toSVG()).replace(/var\((--[a-z0-9-]+)\)/g, (_, key) => style.getPropertyValue(key).trim());
    view.finalize();
    const link = document.createElement("a");
    link.href = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(svg);
    link.download = name + ".svg";
    link.click();
  }

  const wide = matchMedia("(min-width: 70rem)");
  const fold = () => { document.querySelector(".contents").open = wide.matches; };
  wide.addEventListener("change", fold);

  async function show() {
    for (const button of document.querySelectorAll(".legend button"))
      button.addEventListener("click", () => emphasise(button.getAttribute("aria-pressed") === "true" ? "" : button.dataset.label));
    for (const button of document.querySelectorAll(".save")) {
      button.hidden = false;
      button.addEventListener("click", () => save(button.dataset.chart));
    }
    fold();
    for (const plot of document.querySelectorAll(".plot")) await draw(plot);
  }

  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const details of opened) details.open = true;
  });
  addEventListener("afterprint", () => { for (const details of opened) details.open = false; });

  window.drawn = show();
})();
