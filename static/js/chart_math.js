// Sums behind the charts: smoothing, places on x, what a logarithm takes. Knows no page and no plotly.

export const COLUMNS = ["step", "attempt", "samples", "elapsed", "at", "y", "spread"];

// An exponential mean without the pull of its start (Adam's correction): the first value stays itself.
export function smoothed(values, weight) {
  let sum = 0;
  let whole = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    whole = weight * whole + (1 - weight);
    return Number((sum / whole).toPrecision(12)); // or what is level would tremble in its last digit
  });
}

// What was not measured, and what is no number ("nan"), leave a gap.
export function numbers(values) {
  return values.map((value) => (typeof value === "number" ? value : null));
}

export function places(trace, x) {
  return x === "at" ? trace.at.map(localTime) : trace[x];
}

function localTime(iso) { // plotly draws a time as it is written
  const at = new Date(iso);
  return new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, -1);
}

// Steps come to the others by the nearest point of a trace that has one.
export function placeOfStep(trace, step, x) {
  const at = trace.step.findIndex((own) => own >= step);
  return at < 0 ? null : places(trace, x)[at];
}

export function takesLogarithm(values) {
  return values.some((value) => value !== null) && values.every((value) => value === null || value > 0);
}

// Between which steps the places from `low` to `high` lie, one more on each side; null without any.
export function stepsBetween(trace, x, [low, high]) {
  const at = places(trace, x).map((place) => (x === "at" ? Date.parse(place) : place));
  const [from, to] = [low, high].map((end) => (x === "at" ? Date.parse(end) : Number(end)));
  const inside = trace.step.filter((_, i) => at[i] !== null && at[i] >= from && at[i] <= to);
  return inside.length ? [Math.max(0, inside[0] - 1), inside.at(-1) + 1] : null;
}

export function joined(old, fresh) {
  if (!old) return fresh;
  return Object.fromEntries(COLUMNS.filter((name) => fresh[name]).map((name) => (
    [name, [...(old[name] ?? []), ...fresh[name]]]
  )));
}
