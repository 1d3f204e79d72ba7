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
  const aligned = ({ lines, marks }) => {
    const places = [...new Set([...marks, ...lines.flatMap(([, points]) => points)].map(([x]) => x))].sort((a, b) => a - b);
    return [places, ...lines.map(([, points]) => {
      const known = new Map(points);
      return places.map((x) => known.get(x) ?? null);
    })];
  };

  // Each line in pieces, from mark to mark.
  const pieces = (plot, line, first, last) => {
    const stroke = new Path2D(), linear = window.uPlot.paths.linear();
    const cuts = plot.said.marks.map(([x]) => plot.data[0].indexOf(x)).filter((at) => at > first && at < last);
    [first, ...cuts].forEach((begin, n) => {
      const end = cuts[n] ?? last;
      if (plot.data[line].slice(begin, end + 1).some((value) => value != null)) stroke.addPath(linear(plot, line, begin, end).stroke);
    });
    return { stroke, fill: null, clip: null, band: null, gaps: null, flags: 1 };
  };

  const marked = (plot) => {
    const { ctx, bbox, said } = plot;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = colour("--quiet");
    ctx.font = `${12 * devicePixelRatio}px system-ui`;
    for (const [x, name] of said.marks) {
      const at = plot.valToPos(x, "x", true);
      if (at < bbox.left || at > bbox.left + bbox.width) continue;
      ctx.setLineDash([4, 4]);
      ctx.beginPath();
      ctx.moveTo(at, bbox.top);
      ctx.lineTo(at, bbox.top + bbox.height);
      ctx.stroke();
      // Away from a line that begins high there.
      const begins = plot.data.slice(1).map((line) => line.find((value, n) => value != null && plot.data[0][n] >= x));
      const low = begins.some((value) => plot.valToPos(value, "y", true) < bbox.top + bbox.height / 2);
      ctx.textAlign = low ? "left" : "right";
      ctx.setTransform(0, -1, 1, 0, at + 12 * devicePixelRatio, bbox.top + (low ? bbox.height - 4 * devicePixelRatio : 0));
      ctx.fillText(name, 0, 0);
      ctx.resetTransform();
    }
    ctx.restore();
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
    const alone = (plot, line) => plot.data[line].filter((each) => each != null).length === 1; // no line shows it
    const options = {
      width: Math.max(box.clientWidth, 240), height: HEIGHT, cursor: { y: false },
      scales: { x: { time: false }, y: { range: (plot) => plot.said.range } },
      axes: [{ ...axis(said.x), size: 34 }, axis(said.y)],
      series: [{ label: said.x, value: number }, ...said.lines.map(([name], n) => ({
        label: name, value: number, stroke: colour(`--line-${n % 4}`), width: 2, points: { show: alone },
        spanGaps: true, paths: pieces,
      }))],
      hooks: { init: [(plot) => { plot.said = said; }], draw: [marked] },
    };
    const plot = new window.uPlot(options, aligned(said));
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
        known.plot.said = said;
        known.plot.setData(aligned(said));
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
