// Beside the charts: what deserves a look, which line is whose, the table, and how fresh it all is.

import { data } from "./chart_data.js";
import { colour, hidden } from "./chart_draw.js";

const TABLED = 200; // newest steps, as in the page that the server made
const SVG = "http://www.w3.org/2000/svg";
const STROKES = ["none", "6 4", "2 3", "6 3 2 3", "10 4", "10 3 2 3", "8 2 2 2", "2 6"]; // DASHES of chart_draw.js, as SVG says them

const table = document.querySelector("#points-table tbody");

export function listAlerts() {
  const box = document.getElementById("alerts");
  if (isAsBefore(box, data.alerts)) return;
  box.hidden = !data.alerts.length;
  box.querySelector("ul").replaceChildren(...data.alerts.map(({ key, step, text }) => {
    const item = document.createElement("li");
    item.textContent = interpolate(gettext("Step %s: %s"), [step, text]);
    const element = key && document.getElementById(`chart-${key}`);
    if (element) {
      const jump = document.createElement("button");
      jump.type = "button";
      jump.className = "link";
      jump.textContent = gettext("Show it");
      jump.addEventListener("click", () => find(element));
      item.append(" ", jump);
    }
    return item;
  }));
}

// Then it stays, with the focus that one of its buttons may have: points come twice a second.
function isAsBefore(element, facts) {
  const now = JSON.stringify(facts);
  const isSame = element.dataset.facts === now;
  element.dataset.facts = now;
  return isSame;
}

function find(element) {
  element.tabIndex = -1;
  element.focus({ preventScroll: true });
  element.scrollIntoView({ block: "center" });
  element.classList.add("found");
  setTimeout(() => element.classList.remove("found"), 2000);
}

// In words what stands in the charts as lines: when a version went live, and when it was left.
export function listMarks() {
  const box = document.getElementById("marks");
  box.hidden = !data.marks.length;
  box.textContent = data.marks.map(({ text, at }) => (
    `${text}: ${new Date(at).toLocaleString(document.documentElement.lang, { dateStyle: "medium", timeStyle: "short" })}`
  )).join(" · ");
}

export function listJobs(redraw) {
  const list = document.getElementById("series");
  if (isAsBefore(list, data.jobs.map(({ id, name }, i) => [id, name, colour(`--series-${i + 1}`)]))) return;
  list.hidden = data.jobs.length < 2;
  list.replaceChildren(...data.jobs.map((job, i) => {
    const item = document.createElement("li");
    const button = document.createElement("button");
    button.type = "button";
    button.className = "small";
    button.setAttribute("aria-pressed", String(!hidden.has(job.id)));
    button.append(swatchOf(i), job.name);
    button.addEventListener("click", () => {
      if (!hidden.delete(job.id)) hidden.add(job.id);
      button.setAttribute("aria-pressed", String(!hidden.has(job.id)));
      redraw();
    });
    item.append(button);
    return item;
  }));
}

function swatchOf(i) {
  const swatch = document.createElementNS(SVG, "svg");
  const line = document.createElementNS(SVG, "line");
  const look = { x1: 0, x2: 36, y1: 5, y2: 5, stroke: colour(`--series-${i + 1}`), "stroke-width": 3, "stroke-dasharray": STROKES[i] };
  for (const [name, value] of Object.entries(look)) line.setAttribute(name, value);
  swatch.setAttribute("aria-hidden", "true");
  swatch.append(line);
  return swatch;
}

// Those that are not there yet, as all come anew with another choice of jobs; returns them.
export function addRows(rows) {
  const last = Number(table.rows[table.rows.length - 1]?.cells[0].textContent ?? -1);
  const fresh = rows.filter(([step]) => Number(step) > last);
  for (const cells of fresh) {
    const row = table.insertRow();
    for (const value of cells) {
      const cell = row.insertCell();
      cell.className = "number";
      cell.textContent = value;
    }
  }
  while (table.rows.length > TABLED) table.deleteRow(0);
  document.getElementById("left-out").hidden = data.points <= table.rows.length;
  return fresh;
}

export function showFreshness() {
  const chip = document.getElementById("freshness");
  chip.hidden = data.state !== "training" || !data.last_at;
  if (chip.hidden) return;
  const seconds = Math.max(0, Math.round((Date.now() - Date.parse(data.last_at)) / 1000));
  const isSilent = data.alerts.some(({ rule }) => rule === "stalled");
  chip.className = isSilent ? "chip warn" : "chip live";
  chip.textContent = interpolate(isSilent ? gettext("silent, last step %s s ago") : gettext("live, last step %s s ago"), [seconds]);
}
