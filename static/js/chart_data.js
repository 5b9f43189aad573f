// The points of the jobs in the charts: those of the page, and new ones after a nudge, one fetch for all charts.

import { call } from "./api.js";
import { joined } from "./chart_math.js";
import { state } from "./chart_state.js";
import { sayFailed } from "./parts.js";
import { connection } from "./socket.js";

const MOST = 2000; // points per trace; beyond it the server chooses again
const APART = 500; // ms between two fetches, so between two draws
const GATHER = 200; // ms; an admin's browser hears twice of an own job
const POLL = 5000;
const ACTIVE = ["queued", "loading", "training", "gating", "deploying"];

const root = document.getElementById("charts");
export const data = JSON.parse(document.getElementById("series-data").textContent);

export function isActive() {
  return ACTIVE.includes(data.state);
}

function newestStep() {
  const steps = Object.values(data.jobs[0].traces).map((trace) => trace.step.at(-1) ?? -1);
  return steps.length ? Math.max(...steps) : -1;
}

function query(values) {
  const given = new URLSearchParams(values);
  if (state.with.length) given.set("with", state.with.join(","));
  return `${root.dataset.url}?${given}`;
}

function grow(job, fresh) {
  let longest = 0;
  for (const [key, trace] of Object.entries(fresh.traces)) {
    job.traces[key] = joined(job.traces[key], trace);
    longest = Math.max(longest, job.traces[key].step.length);
  }
  job.total += fresh.total;
  return longest;
}

let era = 0; // begins anew with all that is asked for, and with its answer: one to what was asked before says nothing

// Whether it came; if not, the page says so above the charts, and `again` is what it offers.
async function load(values, take, again) {
  const asked = era;
  let rows;
  try {
    const fresh = await call("GET", query(values), undefined, { cache: "no-cache" });
    if (asked !== era) return false;
    rows = take(fresh);
  } catch {
    if (asked === era) sayFailed(root, again);
    return false;
  }
  root.querySelector(":scope > .not-fetched")?.remove();
  document.dispatchEvent(new CustomEvent("points", { detail: { rows } }));
  return true;
}

// All that is asked for, in place of what is there: other jobs, or another stretch of steps.
export function reload(window = {}) {
  const take = (fresh) => {
    era += 1;
    Object.assign(data, fresh, { isStretch: "from" in window });
    return fresh.rows;
  };
  era += 1;
  return load(window, take, () => reload(window));
}

async function tail() {
  let isFull = false;
  const asked = era;
  const take = (fresh) => {
    const [main, ...others] = data.jobs;
    isFull = grow(main, fresh.jobs[0]) > MOST;
    Object.assign(data, fresh, { jobs: [main, ...others] });
    return fresh.rows;
  };
  await load({ after: newestStep() }, take, () => soon(tail)); // one at a time: a step joins once
  if (asked !== era) soon(tail); // dropped: it would join steps that came with all the rest
  else if (isFull) await reload();
}

let waiting = null;
let last = 0;
let next = null; // tail, or reload, which brings what tail does and the other jobs' points

// Soon, or once the page is seen again; what is asked for while a fetch is on its way may be about a moment after it.
function soon(fetchIt) {
  if (next !== reload) next = fetchIt;
  if (waiting || document.hidden) return;
  const wait = Math.max(GATHER, last + APART - Date.now());
  waiting = setTimeout(async () => {
    const wanted = next;
    next = null;
    try {
      if (!data.isStretch) await wanted();
    } finally {
      last = Date.now();
      waiting = null;
      if (next) soon(next);
    }
  }, wait);
}

export function watchPoints() {
  document.addEventListener("changed", ({ detail: { what, id } }) => {
    if (what !== "job" || data.isStretch) return; // a stretch of the past does not move
    const main = id === null || id === root.dataset.job;
    if (main) soon(tail);
    else if (data.jobs.some((job) => job.id === id)) soon(reload);
  });
  let isAway = false;
  connection.addEventListener("state", ({ detail }) => { // and for those of a time without a connection
    if (detail === "open" && isAway && !data.isStretch) soon(tail);
    isAway = detail !== "open";
  });
  setInterval(() => { // for nudges that were lost
    const isQuiet = Date.now() - last >= POLL;
    if (isQuiet && isActive() && !document.hidden && !data.isStretch) soon(tail);
  }, POLL);
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && next) soon(next);
  });
}
