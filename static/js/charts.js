// The charts of a job's page: their controls and pins. Drawn when seen, redrawn when changed.

import { data, isActive, reload, watchPoints } from "./chart_data.js";
import { draw, linkAll, save } from "./chart_draw.js";
import { watchFull } from "./chart_full.js";
import { addRows, listAlerts, listJobs, listMarks, showFreshness } from "./chart_lists.js";
import { stepsBetween } from "./chart_math.js";
import { keep, state } from "./chart_state.js";
import { notify } from "./notices.js";

const MOST_OTHERS = 7;

const root = document.getElementById("charts");
const controls = document.getElementById("chart-controls");
const pinned = document.getElementById("pinned");
const figures = [...root.querySelectorAll("figure")].map((element) => ({
  element, key: element.dataset.key, digits: Number(element.dataset.digits), unit: element.dataset.unit,
  box: element.querySelector(".plot"), summary: element.querySelector(".summary"), noLog: element.querySelector(".no-log"),
  clipped: element.querySelector(".clipped"), isLarge: false,
  home: element.parentElement, next: element.nextElementSibling, seen: false, stale: true, linked: false,
}));
linkAll(figures);

const watcher = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    const figure = figures.find(({ element }) => element === target);
    figure.seen = isIntersecting;
    if (isIntersecting && figure.stale) draw(figure);
  }
}, { rootMargin: "200px" });

function redraw() {
  for (const figure of figures) {
    figure.stale = true;
    if (figure.seen && !figure.element.hidden) draw(figure);
  }
}

function say() {
  const measured = new Set(data.jobs.flatMap((job) => Object.keys(job.traces)));
  for (const { element, key, summary } of figures) {
    element.hidden = !measured.has(key);
    summary.textContent = data.words[key];
  }
  const left = figures.filter(({ key }) => !measured.has(key)).map(({ element }) => element.querySelector("h4").textContent);
  const unmeasured = document.getElementById("unmeasured");
  unmeasured.querySelector("span").textContent = left.join(", ");
  unmeasured.hidden = !measured.size || !left.length;
  const waiting = document.getElementById("waiting");
  waiting.hidden = measured.size > 0;
  if (!isActive()) waiting.textContent = waiting.dataset.none; // it ended while this page was open
  root.dataset.points = data.points;
  listAlerts();
  listMarks();
  listJobs(redraw);
}

function placePins() {
  for (const figure of figures.toReversed()) if (figure.element.parentElement !== figure.home) figure.home.insertBefore(figure.element, figure.next?.parentElement === figure.home ? figure.next : null);
  for (const key of state.pins) {
    const figure = figures.find((one) => one.key === key);
    if (figure) pinned.append(figure.element);
  }
  pinned.hidden = !state.pins.length;
  for (const { element, key } of figures) element.querySelector("[data-pin]").setAttribute("aria-pressed", String(state.pins.includes(key)));
}

function showControls() {
  controls.elements.smooth.value = state.smooth;
  controls.querySelector("output").value = state.smooth || gettext("off");
  controls.elements.x.value = state.x;
  controls.elements.log.checked = state.log;
  controls.elements.clip.checked = state.clip;
  controls.querySelector("[data-reset]").hidden = !state.zoom;
  document.getElementById("csv").href = root.dataset.csv + (state.with.length ? `?with=${state.with.join(",")}` : "");
}

// A stretch of a long job is asked for anew, with the points that were left out.
async function zoom(range) {
  const longest = data.jobs.flatMap((job) => Object.values(job.traces)).reduce((a, b) => (b.step.length > (a?.step.length ?? 0) ? b : a), null);
  const isThinned = data.jobs.some((job) => Object.values(job.traces).some((trace) => trace.step.length < job.total));
  const steps = range && longest ? stepsBetween(longest, state.x, range) : null;
  keep({ zoom: range });
  showControls();
  let isRedrawn = false;
  if (steps && isThinned) isRedrawn = await reload({ from: steps[0], to: steps[1] });
  else if (!range && data.isStretch) isRedrawn = await reload();
  if (!isRedrawn) redraw();
}

controls.addEventListener("input", async ({ target: { name } }) => {
  if (name === "with") {
    const chosen = [...controls.querySelectorAll("[name=with]:checked")].map(({ value }) => value);
    if (chosen.length > MOST_OTHERS) notify(interpolate(gettext("At most %s other jobs can be compared; the first ones are."), [MOST_OTHERS]));
    keep({ with: chosen.slice(0, MOST_OTHERS) });
    showControls();
    await reload();
    return;
  }
  const x = controls.elements.x.value;
  keep({ smooth: Number(controls.elements.smooth.value), x, log: controls.elements.log.checked, clip: controls.elements.clip.checked, zoom: x === state.x ? state.zoom : null });
  showControls();
  redraw();
});
controls.querySelector("[data-reset]").addEventListener("click", () => zoom(null));
root.addEventListener("click", ({ target }) => {
  const figure = figures.find(({ element }) => element.contains(target));
  if (!figure) return;
  if (target.dataset.image) save(figure, target.dataset.image);
  if ("table" in target.dataset) showColumn(figure.key);
  if (!("pin" in target.dataset)) return;
  const pins = state.pins.includes(figure.key) ? state.pins.filter((key) => key !== figure.key) : [...state.pins, figure.key];
  keep({ pins });
  placePins();
  target.focus();
});

function showColumn(key) {
  document.getElementById("points-table").open = true;
  for (const head of document.querySelectorAll("#points-table th[data-key]")) {
    head.classList.toggle("chosen", head.dataset.key === key);
    if (head.dataset.key === key) head.focus();
  }
}

document.addEventListener("zoom", ({ detail }) => zoom(detail));
document.addEventListener("points", ({ detail: { rows } }) => {
  const fresh = addRows(rows ?? []);
  say();
  redraw();
  if (fresh.length) document.getElementById("charts-status").textContent = interpolate(gettext("Step %s is done."), [fresh.at(-1)[0]]);
});
document.addEventListener("theme", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

for (const element of root.querySelectorAll(".with-script, .figure-tools")) element.hidden = false;
for (const element of root.querySelectorAll(".without-script")) element.hidden = true;
showControls();
placePins();
say();
for (const { element } of figures) watcher.observe(element);
watchFull(figures, { place: placePins, draw });
watchPoints();
if (state.zoom) zoom(state.zoom);
setInterval(showFreshness, 1000);
showFreshness();
