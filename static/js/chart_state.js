// How the charts are looked at. It stands in the address, so that a link shows the same.

const AXES = ["step", "samples", "elapsed", "at"];

function read() {
  const given = new URLSearchParams(location.search);
  const smooth = Number(given.get("smooth"));
  const zoom = given.get("zoom")?.split("~") ?? [];
  return {
    smooth: smooth > 0 && smooth < 1 ? smooth : 0,
    x: AXES.includes(given.get("x")) ? given.get("x") : "step",
    log: given.has("log"),
    clip: given.has("clip"),
    with: given.getAll("with").flatMap((names) => names.split(",")).filter(Boolean),
    pins: (given.get("pin") ?? "").split(",").filter(Boolean),
    full: given.get("full") ?? "",
    zoom: zoom.length === 2 ? zoom : null,
  };
}

export const state = read();

export function keep(changes) {
  Object.assign(state, changes);
  const shown = new URLSearchParams();
  if (state.smooth) shown.set("smooth", state.smooth);
  if (state.x !== "step") shown.set("x", state.x);
  if (state.log) shown.set("log", "1");
  if (state.clip) shown.set("clip", "1");
  if (state.with.length) shown.set("with", state.with.join(","));
  if (state.pins.length) shown.set("pin", state.pins.join(","));
  if (state.full) shown.set("full", state.full);
  if (state.zoom) shown.set("zoom", state.zoom.join("~"));
  const query = shown.toString();
  history.replaceState(null, "", query ? `?${query}` : location.pathname);
}
