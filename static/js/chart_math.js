// Sums behind the charts: smoothing, places on x, what a logarithm takes. Knows no page and no plotly.

const ENOUGH = 8; // values, below which none is called far from the rest
const COLUMNS = ["step", "attempt", "samples", "elapsed", "at", "y", "spread"];

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

// The others' range, and how many values lie far from them: more than three times the span of the
// middle half away from it. Null when none does, or too few are there to say.
export function withoutOutliers(values) {
  const sorted = values.filter((value) => value !== null).sort((a, b) => a - b);
  if (sorted.length < ENOUGH) return null;
  const [low, high] = [0.25, 0.75].map((share) => sorted[Math.round(share * (sorted.length - 1))]);
  const far = 3 * (high - low);
  const near = sorted.filter((value) => value >= low - far && value <= high + far);
  const out = sorted.length - near.length;
  if (!out) return null;
  const air = 0.05 * (near.at(-1) - near[0]) || 0.05 * Math.abs(near[0]) || 1;
  return { range: [near[0] - air, near.at(-1) + air], out };
}

// Where a time stands along x: after the trace's last point where x counts steps or replies.
export function placeOfTime(trace, iso, x) {
  if (x === "at") return localTime(iso);
  if (x === "elapsed") return trace.elapsed.at(-1) + (Date.parse(iso) - Date.parse(trace.at.at(-1))) / 1000;
  return trace[x].at(-1);
}

// From where to where a time axis reaches so that marks soon after its last point are seen; null when
// none is: what came much later would leave the lines no room.
export function stretched(points, marks, x) {
  const number = (place) => (x === "at" ? Date.parse(place) : place);
  const at = points.filter((place) => place !== null).map(number);
  if (!at.length || (x !== "at" && x !== "elapsed")) return null;
  const [low, high] = at.reduce(([a, b], each) => [Math.min(a, each), Math.max(b, each)], [Infinity, -Infinity]);
  const soon = marks.map(number).filter((place) => place > high && place - high <= high - low);
  if (!soon.length) return null;
  const air = 0.05 * (Math.max(...soon) - low);
  const ends = [low - air, Math.max(...soon) + air];
  return x === "at" ? ends.map((end) => localTime(end)) : ends;
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
