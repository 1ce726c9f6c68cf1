// Draws every .canvas of a page from the JSON beside it: light or dark, wide or narrow, on paper. The report and the site share it.
"use strict";
(() => {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 640px)");
  const plots = [...document.querySelectorAll(".canvas")].map((div) => {
    const id = div.id.slice(5);
    return { div, id, source: document.getElementById("data-" + id).textContent, shown: null };
  });

  // Lines and bars drawn for white paper, lifted towards white for dark paper; order of lightness stays.
  function lift(colour) {
    let rgb = null;
    if (/^#[0-9a-f]{6}$/i.test(colour)) rgb = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
    const match = /^rgb\((\d+), ?(\d+), ?(\d+)\)$/.exec(colour);
    if (match) rgb = match.slice(1, 4).map(Number);
    return rgb ? "rgb(" + rgb.map((c) => Math.round(c * 0.58 + 255 * 0.42)).join(",") + ")" : colour;
  }
  const each = (value, f) => Array.isArray(value) ? value.map((v) => each(v, f)) : typeof value === "string" ? f(value) : value;

  function set(target, path, value) {
    const keys = path.replace(/\[(\d+)\]/g, ".$1").split(".");
    const last = keys.pop();
    let at = target;
    for (const key of keys) at = at[key] ??= {};
    at[last] = value;
  }

  function build(plot, paper) {
    const { data, layout, frames } = JSON.parse(plot.source);
    const meta = layout.meta || {};
    const small = narrow.matches && !paper;
    layout.paper_bgcolor = "rgba(0,0,0,0)";
    layout.dragmode = false;
    if (paper) Object.assign(layout, { width: 670, autosize: false });
    if (small) {
      for (const [path, value] of Object.entries(meta.narrow || {})) set(layout, path, value);
      for (const i of meta.narrow_hide || []) data[i].visible = false;
      if (meta.narrow_height) layout.height += meta.narrow_height;
      // Values do not fit the cells of a wide map: the sign of those that count stays.
      for (const trace of data) {
        if (trace.type !== "heatmap" || !trace.text || trace.x.length <= 8) continue;
        const sign = (t) => Math.abs(parseFloat(t.replace("−", "-"))) < 0.15 * trace.zmax ? "" : t.slice(0, 1);
        trace.text = trace.text.map((row) => row.map(sign));
        trace.textfont.size = 9;
      }
    }
    if (dark.matches && !paper) {
      layout.font.color = "#d7dde3";
      layout.plot_bgcolor = "rgba(0,0,0,0)";
      for (const key of Object.keys(layout)) {
        if (/^[xy]axis/.test(key)) Object.assign(layout[key], { gridcolor: "#2b3138", linecolor: "#6e7781", zerolinecolor: "#6e7781" });
      }
      for (const trace of data) {
        if (trace.type === "heatmap") continue;
        if (trace.line && trace.line.color) trace.line.color = lift(trace.line.color);
        if (trace.marker && trace.marker.color) trace.marker.color = each(trace.marker.color, lift);
        if (trace.marker && trace.marker.line && trace.marker.line.color) trace.marker.line.color = each(trace.marker.line.color, lift);
      }
      layout.hoverlabel = { ...layout.hoverlabel, bgcolor: "#22282f", bordercolor: "#6e7781" };
      layout.hoverlabel.font = { ...layout.hoverlabel.font, color: "#e6edf3" };
    } else {
      layout.plot_bgcolor = layout.plot_bgcolor === "white" ? "rgba(0,0,0,0)" : layout.plot_bgcolor;
    }
    const config = { displaylogo: false, responsive: true, displayModeBar: false };
    return { data, layout, config, frames };
  }

  // The legend wraps by width, which only the browser knows: the plot is made taller by what it needs.
  function missing(plot) {
    const legend = plot.div.querySelector(".legend .bg");
    return legend ? Math.max(0, 64 + legend.getBoundingClientRect().height - plot.div.layout.margin.b) : 0;
  }

  const animation = { mode: "immediate", frame: { duration: 0, redraw: true }, transition: { duration: 0 } };
  async function draw(plot, paper) {
    let parts = build(plot, paper);
    plot.div.style.height = parts.layout.height + "px";
    await Plotly.newPlot(plot.div, parts);
    const more = missing(plot);
    if (more) {
      parts = build(plot, paper);
      parts.layout.height += more;
      parts.layout.margin.b += more;
      plot.div.style.height = parts.layout.height + "px";
      await Plotly.newPlot(plot.div, parts);
    }
    if (plot.shown) await Plotly.animate(plot.div, [plot.shown], animation);
    const select = document.querySelector(`select[data-for="${plot.id}"]`);
    if (!select) return;
    plot.div.on("plotly_click", (event) => {
      const name = event.points[0] && event.points[0].customdata;
      if ([...select.options].some((o) => o.value === name)) { select.value = name; select.dispatchEvent(new Event("change")); }
    });
  }
  async function drawAll(paper) {
    for (const plot of plots) {
      await draw(plot, paper);
      await new Promise((next) => setTimeout(next, 0));
    }
    document.documentElement.dataset.drawn = "yes";
  }
  for (const select of document.querySelectorAll("select[data-for]")) {
    const plot = plots.find((p) => p.id === select.dataset.for);
    select.addEventListener("change", () => { plot.shown = select.value; Plotly.animate(plot.div, [plot.shown], animation); });
  }
  dark.addEventListener("change", () => drawAll(false));
  narrow.addEventListener("change", () => drawAll(false));
  // Paper is white and has a width of its own. All plots are drawn at once, since printing does not wait for promises.
  window.addEventListener("beforeprint", () => plots.forEach((plot) => draw(plot, true)));
  window.addEventListener("afterprint", () => drawAll(false));
  drawAll(false);
})();
