// Curves that answer the pointer: values under it, a stretch enlarged by dragging, the whole again by a double click.
// The receiver's own drawing stands there first, and stays where this does not run.
"use strict";

(() => {
  const HEIGHT = 260;
  const main = document.getElementById("main");
  const plots = new Map(); // by the place of a chart on the page
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // Lines with their own points, as uPlot wants them: all places on x, and each line's value there or none.
  const aligned = (lines) => {
    const places = [...new Set(lines.flatMap(([, points]) => points.map(([x]) => x)))].sort((a, b) => a - b);
    return [places, ...lines.map(([, points]) => {
      const known = new Map(points);
      return places.map((x) => known.get(x) ?? null);
    })];
  };

  const axis = (label) => ({
    label, labelSize: 22, size: 46, font: "12px system-ui", labelFont: "12px system-ui",
    values: (_, splits) => splits.map((value) => (value == null ? "" : Number(value.toPrecision(6)).toString())),
    stroke: colour("--quiet"), grid: { stroke: colour("--track"), width: 1 }, ticks: { show: false },
  });

  const made = (box, said) => {
    // Away from the pointer the legend has each line's last value.
    const number = (plot, value, line, index) => {
      const shown = index == null ? plot.data[line].findLast((each) => each != null) : value;
      return shown == null ? "–" : Number(shown.toPrecision(4)).toString();
    };
    const least = { pad: 0.05, soft: 0, mode: said.zero ? 1 : 0 };
    const options = {
      width: Math.max(box.clientWidth, 240), height: HEIGHT, cursor: { y: false },
      scales: { x: { time: false }, y: { range: { min: least, max: { pad: 0.05, soft: 0, mode: 0 } } } },
      axes: [{ ...axis(said.x), size: 34 }, axis(said.y)],
      series: [{ label: said.x, value: number }, ...said.lines.map(([name], n) => ({
        label: name, value: number, stroke: colour(`--line-${n % 4}`), width: 2, spanGaps: true, points: { show: false },
      }))],
    };
    const plot = new window.uPlot(options, aligned(said.lines));
    plot.root.setAttribute("role", "img");
    plot.root.setAttribute("aria-label", box.querySelector("svg")?.getAttribute("aria-label") ?? said.y);
    return plot;
  };

  // Parts of the page come anew when something has happened: each chart gets back what it had, with the new points.
  const draw = () => {
    const seen = new Set();
    main.querySelectorAll("[data-plot]").forEach((box, place) => {
      const text = box.dataset.plot;
      const said = JSON.parse(text);
      const shape = JSON.stringify([said.x, said.y, said.lines.map(([name]) => name)]);
      let known = plots.get(place);
      if (known?.shape !== shape) {
        known?.plot.destroy();
        known = { plot: made(box, said), shape, text };
        plots.set(place, known);
      } else if (known.text !== text) {
        known.plot.setData(aligned(said.lines));
        known.text = text;
      }
      if (known.plot.root.parentNode !== box) box.append(known.plot.root);
      if (!box.classList.contains("drawn")) box.classList.add("drawn");
      seen.add(place);
    });
    for (const [place, { plot }] of plots) {
      if (!seen.has(place)) {
        plot.destroy();
        plots.delete(place);
      }
    }
  };

  const anew = () => {
    for (const { plot } of plots.values()) plot.destroy();
    plots.clear();
    draw();
  };

  draw();
  new MutationObserver(draw).observe(main, { childList: true, subtree: true, attributeFilter: ["class", "data-plot"] });
  dark.addEventListener("change", anew);
  let width = main.clientWidth;
  new ResizeObserver(() => {
    if (main.clientWidth === width) return;
    width = main.clientWidth;
    for (const { plot } of plots.values()) {
      plot.setSize({ width: Math.max(plot.root.parentNode.clientWidth, 240), height: HEIGHT });
    }
  }).observe(main);
})();
