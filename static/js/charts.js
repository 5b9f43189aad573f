// Live charts of one job: new points are fetched after each nudge and added to what is drawn.

import { call } from "./api.js";

const POLL = 5000;
const ACTIVE = ["queued", "loading", "training", "gating", "deploying"];

const root = document.getElementById("charts");
const figures = JSON.parse(document.getElementById("figures-data").textContent);
const points = JSON.parse(document.getElementById("points-data").textContent);
const table = document.querySelector("#points-table tbody");
const columns = [...document.querySelectorAll("#points-table th[data-key]")];
const plots = [...root.querySelectorAll("figure")].map((figure) => ({
  key: figure.dataset.key,
  digits: Number(figure.dataset.digits),
  box: figure.querySelector(".plot"),
  empty: figure.querySelector(".plot-empty"),
  summary: figure.querySelector(".summary"),
  drawn: false,
}));

function colour(name) {
  // light-dark() resolves only where it is used as a colour
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  root.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

function themed() {
  const line = colour("--line");
  const quiet = colour("--quiet");
  const axis = { gridcolor: line, linecolor: line, zerolinecolor: quiet };
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: quiet, family: getComputedStyle(document.body).fontFamily, size: 12 }, axis,
    hoverlabel: { bgcolor: colour("--surface"), bordercolor: quiet, font: { color: colour("--ink") } },
  };
}

function has(plot) {
  return points.some((point) => plot.key in point);
}

async function draw(plot) {
  const measured = has(plot);
  plot.empty.hidden = measured;
  plot.box.hidden = !measured;
  if (!measured) return;
  const { data, layout } = figures[plot.key];
  const rows = points.filter((point) => plot.key in point);
  const { axis, ...theme } = themed();
  const trace = {
    ...data[0], x: rows.map((row) => row.step), y: rows.map((row) => row[plot.key]),
    line: { color: colour("--chart"), width: 2 }, marker: { color: colour("--chart"), size: 7 },
  };
  plot.drawn = true;
  await Plotly.react(plot.box, [trace], {
    ...layout, ...theme, shapes: restarts(),
    xaxis: { ...layout.xaxis, ...axis, ...stepsAxis() }, yaxis: { ...layout.yaxis, ...axis },
  }, { responsive: true, displaylogo: false, displayModeBar: false });
}

function stepsAxis() {
  const last = Math.max(points.at(-1)?.step ?? 0, 4);
  return { range: [0, last + 0.4], dtick: last <= 12 ? 1 : null };
}

function restarts() {
  const color = colour("--warn");
  return points.slice(1).flatMap((point, i) => {
    if (point.attempt === points[i].attempt) return [];
    const at = (point.step + points[i].step) / 2;
    const line = { dash: "dot", width: 1, color };
    return [{ type: "line", xref: "x", yref: "paper", x0: at, x1: at, y0: 0, y1: 1, line }];
  });
}

async function extend(plot, fresh) {
  if (!plot.drawn) return draw(plot);
  const rows = fresh.filter((point) => plot.key in point);
  if (!rows.length) return undefined;
  const added = { x: [rows.map((row) => row.step)], y: [rows.map((row) => row[plot.key])] };
  await Plotly.extendTraces(plot.box, added, [0]);
  const { range, dtick } = stepsAxis();
  return Plotly.relayout(plot.box, {
    shapes: restarts(), "xaxis.range": range, "xaxis.dtick": dtick,
  });
}

function summarize(plot) {
  const values = points.filter((point) => plot.key in point).map((point) => point[plot.key]);
  if (!values.length) return;
  const [last, first] = [values.at(-1), values[0]].map((value) => value.toFixed(plot.digits));
  const [low, high] = [Math.min(...values), Math.max(...values)].map((value) => value.toFixed(plot.digits));
  plot.summary.textContent = values.length === 1
    ? interpolate(gettext("One point: %(last)s."), { last }, true)
    : interpolate(
      gettext("Now %(last)s, at first %(first)s; between %(low)s and %(high)s."),
      { last, first, low, high }, true,
    );
}

function addRow(point) {
  const row = table.insertRow();
  const cells = [point.step, point.attempt, ...columns.map(({ dataset: { key, digits } }) => (
    key in point ? point[key].toFixed(Number(digits)) : "–"
  ))];
  for (const value of cells) {
    const cell = row.insertCell();
    cell.className = "number";
    cell.textContent = value;
  }
}

let fetching = false;
let again = false;

async function fetchPoints() {
  if (fetching) { again = true; return; }
  fetching = true;
  try {
    const after = points.at(-1)?.step ?? -1;
    const { points: fresh, state } = await call("GET", `${root.dataset.url}?after=${after}`);
    root.dataset.state = state;
    if (fresh.length) await take(fresh);
  } catch {
    // The next nudge or poll asks again from the same step.
  } finally {
    fetching = false;
    if (again) { again = false; fetchPoints(); }
  }
}

async function take(fresh) {
  points.push(...fresh);
  fresh.forEach(addRow);
  for (const plot of plots) {
    await extend(plot, fresh);
    summarize(plot);
  }
  root.dataset.points = points.length;
  document.getElementById("charts-status").textContent = interpolate(
    gettext("Step %s is done."), [fresh.at(-1).step],
  );
}

points.forEach(addRow);
root.dataset.points = points.length;
plots.forEach(draw);
document.addEventListener("theme", () => plots.forEach(draw));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plots.forEach(draw));
document.addEventListener("changed", ({ detail: { what, id } }) => {
  if (what === "job" && (id === null || id === root.dataset.job)) fetchPoints();
});
setInterval(() => {
  if (!document.hidden && ACTIVE.includes(root.dataset.state)) fetchPoints();
}, POLL);
document.addEventListener("visibilitychange", () => { if (!document.hidden) fetchPoints(); });
