// One plotly picture per figure: traces, marks, theme. What is hovered or zoomed in one is so in all.

import { data } from "./chart_data.js";
import { numbers, placeOfStep, placeOfTime, places, smoothed, stretched, takesLogarithm, withoutOutliers } from "./chart_math.js";
import { state } from "./chart_state.js";

const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "8px 2px 2px 2px", "2px 6px"];
const TITLES = () => ({
  step: gettext("step"), samples: gettext("replies used"), elapsed: gettext("seconds since the start"), at: "",
});
const SEPARATORS = (1000.5).toLocaleString(document.documentElement.lang).replaceAll(/\d/g, "").split("").reverse().join("");
const FEW = 60; // points that are also drawn as dots

export const hidden = new Set(); // jobs that the legend has switched off

export function colour(name) {
  // light-dark() resolves only where it is used as a colour
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

function linesOf(job, i, figure) {
  const trace = job.traces[figure.key];
  if (!trace || hidden.has(job.id)) return [];
  const raw = numbers(trace.y);
  const line = { color: colour(`--series-${i + 1}`), dash: DASHES[i], width: 2 };
  const mode = raw.length <= FEW ? "lines+markers" : "lines";
  const shared = {
    type: "scatter", x: places(trace, state.x), mode, line, marker: { color: line.color, size: 6 },
    name: job.name, connectgaps: false, showlegend: false,
    hovertemplate: `%{y:.${figure.digits}f}<extra>${data.jobs.length > 1 ? job.name : ""}</extra>`,
  };
  const spread = raw.length <= FEW && trace.spread?.some((value) => value !== null)
    ? { error_y: { type: "data", array: numbers(trace.spread), thickness: 1, color: line.color } } : {};
  if (!state.smooth) return [{ ...shared, ...spread, y: raw }];
  const ghost = { ...shared, y: raw, mode: "lines", opacity: 0.3, line: { ...line, width: 1 }, hoverinfo: "skip", hovertemplate: null };
  return [ghost, { ...shared, y: smoothed(raw, state.smooth) }];
}

function marks(figure) {
  const trace = data.jobs[0].traces[figure.key];
  if (!trace) return { shapes: [], annotations: [] };
  const restarts = trace.step.flatMap((step, i) => (
    i && trace.attempt[i] !== trace.attempt[i - 1] ? [{ step, mark: gettext("restarted"), name: "--quiet" }] : []
  ));
  const alerts = data.alerts.filter(({ key }) => !key || key === figure.key);
  const moves = movesOf(figure).map(({ text, isBack, x, anchor }) => ({ x, anchor, mark: text, name: isBack ? "--warn" : "--good" }));
  const phases = data.phases.map((phase) => ({ ...phase, name: "--quiet", anchor: "right", yanchor: "top" })); // inside: above stand versions
  const all = [...restarts, ...phases, ...alerts.map((alert) => ({ ...alert, name: "--warn" }))]
    .map((mark) => ({ ...mark, x: placeOfStep(trace, mark.step, state.x) })).filter(({ x }) => x !== null).concat(moves);
  return {
    shapes: all.map(({ x, name }) => ({
      type: "line", xref: "x", yref: "paper", x0: x, x1: x, y0: 0, y1: 1, line: { dash: "dot", width: 1.5, color: colour(name) },
    })),
    annotations: all.map(({ x, name, mark, rule, anchor, yanchor }) => ({
      x, y: 1, xref: "x", yref: "paper", xanchor: anchor ?? "center", yanchor: yanchor ?? "bottom", showarrow: false,
      text: rule === "not_a_number" ? `✕ ${mark}` : mark, font: { color: colour(name), size: 11 },
    })),
  };
}

// When versions of these jobs went live or were left; where no time is across, each job's newest word.
function movesOf(figure) {
  const isTime = state.x === "at" || state.x === "elapsed";
  return data.jobs.flatMap((job) => {
    const trace = job.traces[figure.key];
    if (!trace || hidden.has(job.id)) return [];
    const own = data.marks.filter((mark) => mark.job === job.id);
    return (isTime ? own : own.slice(-1)).map((mark) => ({
      text: mark.text, isBack: mark.kind === "rolled_back", x: placeOfTime(trace, mark.at, state.x),
      anchor: isTime ? "center" : "right", // beside the last point there is no room
    }));
  });
}

function shownNumbers(figure) {
  return data.jobs.filter(({ id }) => !hidden.has(id)).flatMap((job) => numbers(job.traces[figure.key]?.y ?? []));
}

// The y axis without what lies far from the rest, and in words how much that is.
function clipped(figure, log) {
  const values = state.clip ? shownNumbers(figure).map((value) => (log && value !== null ? Math.log10(value) : value)) : [];
  const near = withoutOutliers(values);
  figure.clipped.hidden = !near;
  if (!near) return { autorange: true };
  figure.clipped.textContent = interpolate(ngettext("%s point is outside the picture.", "%s points are outside the picture.", near.out), [near.out]);
  return { autorange: false, range: near.range };
}

function layoutOf(figure, values) {
  const [line, quiet] = [colour("--line"), colour("--quiet")];
  const axis = { gridcolor: line, linecolor: line, zerolinecolor: quiet };
  const log = state.log && takesLogarithm(values);
  figure.noLog.hidden = !state.log || log;
  const whole = state.x === "step" && new Set(data.jobs.flatMap((job) => job.traces[figure.key]?.step ?? [])).size <= 12;
  const across = data.jobs.flatMap(({ traces }) => (traces[figure.key] ? places(traces[figure.key], state.x) : []));
  const range = state.zoom ?? stretched(across, movesOf(figure).map(({ x }) => x), state.x);
  return {
    autosize: true, separators: SEPARATORS, margin: { l: figure.unit ? 70 : 56, r: 12, t: 20, b: 40 }, hovermode: "x", showlegend: false,
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: quiet, family: getComputedStyle(document.body).fontFamily, size: 12 },
    hoverlabel: { bgcolor: colour("--surface"), bordercolor: quiet, font: { color: colour("--ink") } },
    xaxis: {
      ...axis, zeroline: false, title: { text: TITLES()[state.x] }, type: state.x === "at" ? "date" : "linear", dtick: whole ? 1 : null,
      ...(range ? { range, autorange: false } : { autorange: true }),
    },
    yaxis: { ...axis, title: { text: figure.unit, standoff: 8 }, type: log ? "log" : "linear", nticks: 5, fixedrange: true, ...clipped(figure, log), exponentformat: "e" }, // powers are set with styles, which the policy forbids
    ...marks(figure),
  };
}

export async function draw(figure) {
  figure.stale = false;
  const lines = data.jobs.flatMap((job, i) => linesOf(job, i, figure));
  const config = { responsive: true, displayModeBar: false, doubleClick: false };
  await Plotly.react(figure.box, lines, layoutOf(figure, lines.flatMap(({ y }) => y)), config);
  if (!figure.linked) link(figure);
  const isLarge = Boolean(figure.element.closest("dialog"));
  if (isLarge !== figure.isLarge) await Plotly.Plots.resize(figure.box);
  figure.isLarge = isLarge;
}

let figures = [];
let leading = null; // the picture under the pointer; what it causes in others must not come back

export function linkAll(all) { figures = all; }

function others(figure) {
  return figures.filter((other) => other !== figure && other.linked && !other.element.hidden);
}

function link(figure) {
  figure.linked = true;
  figure.box.on("plotly_hover", ({ xvals }) => {
    if (leading) return;
    leading = figure;
    for (const { box } of others(figure)) {
      try { Plotly.Fx.hover(box, { xval: xvals[0] }, ["xy"]); } catch { /* nothing of it is drawn there */ }
    }
    leading = null;
  });
  figure.box.on("plotly_unhover", () => others(figure).forEach(({ box }) => Plotly.Fx.unhover(box)));
  figure.box.on("plotly_relayout", (change) => {
    const range = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    if (range.includes(undefined)) return;
    document.dispatchEvent(new CustomEvent("zoom", { detail: range.map(String) }));
  });
  figure.box.on("plotly_doubleclick", () => document.dispatchEvent(new CustomEvent("zoom", { detail: null })));
}

export function save(figure, format) {
  const filename = `${document.title.split(" · ")[0]} ${figure.key}`.replaceAll(" ", "-").toLowerCase();
  return Plotly.downloadImage(figure.box, { format, filename, width: 900, height: 400 });
}
