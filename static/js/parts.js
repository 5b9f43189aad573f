// Pieces of a page that the server renders, fetched again when a nudge names their subject.
// data-part: where from; data-on: which nudges; data-id: of what; data-poll: every so many seconds while the page is seen;
// data-now: it is not there yet, and fetched at once.

import { page } from "./api.js";

const GATHER = 250; // nudges come in bursts
const LONGEST_PRESS = 10_000;

const waiting = new Map();
const newest = new Map(); // answers may overtake each other
let isAway = false; // the banner says so, and on return all parts are asked for anew

// A button that goes between press and release is not clicked; a field that goes takes its words along.
let pressed = null;
let longest;
function release() {
  pressed = null;
}
addEventListener("pointerdown", ({ target, button }) => {
  if (button !== 0) return; // a menu opens, and keeps the release to itself
  pressed = target;
  clearTimeout(longest);
  longest = setTimeout(release, LONGEST_PRESS); // as a list of choices does
}, true);
for (const name of ["pointerup", "pointercancel"]) {
  addEventListener(name, () => setTimeout(release), true); // after the click
}

function isInUse(element) {
  const { activeElement } = document;
  const isWriting = activeElement?.matches("textarea, input:not([type=checkbox], [type=radio], [type=file])");
  return element.contains(pressed) || (isWriting && element.contains(activeElement));
}

// What somebody has closed stays so, though it comes anew open, as the tests of a refused version do.
const shut = new Set(); // ids of details
document.addEventListener("toggle", ({ target }) => {
  if (!target.id || !target.matches("[data-part] details")) return;
  if (target.open) shut.delete(target.id);
  else shut.add(target.id);
}, true);

export function refresh(element) {
  if (waiting.has(element)) return;
  waiting.set(element, setTimeout(async () => {
    waiting.delete(element);
    if (isInUse(element)) {
      refresh(element);
      return;
    }
    const asked = Symbol("asked");
    newest.set(element, asked);
    try {
      const html = await page(element.dataset.part);
      if (newest.get(element) !== asked) return;
      if (isInUse(element)) refresh(element);
      else swap(element, html);
    } catch {
      if (newest.get(element) === asked) sayFailed(element, () => refresh(element), "now" in element.dataset);
    }
  }, GATHER));
}

// Above what is there, or in the place of what never came: that it could not be fetched, and a way to try again.
export function sayFailed(element, act, isNew = false) {
  if (isAway && !isNew) return;
  const was = element.querySelector(":scope > .not-fetched");
  const hadFocus = was?.contains(document.activeElement);
  const place = document.createElement(element.matches("p") ? "span" : "p");
  const words = document.createElement("span");
  const again = document.createElement("button");
  place.className = "not-fetched";
  again.type = "button";
  again.className = "small";
  words.textContent = isNew ? gettext("This part could not be loaded.")
    : gettext("This part could not be brought up to date.");
  again.textContent = gettext("Try again");
  again.addEventListener("click", () => {
    words.textContent = gettext("Trying …");
    act();
  });
  place.append(words, " ", again);
  if (isNew) element.replaceChildren(place);
  else if (was) was.replaceWith(place);
  else element.prepend(place);
  element.removeAttribute("aria-busy");
  if (hadFocus) again.focus({ preventScroll: true });
}

function swap(element, html) {
  element.removeAttribute("aria-busy");
  delete element.dataset.now;
  const hadFocus = element.contains(document.activeElement);
  const focused = hadFocus ? document.activeElement.id : "";
  const open = [...element.querySelectorAll("details[open][id]")].map((details) => details.id);
  const chosen = [...element.querySelectorAll("select[id]")]
    .filter(({ selectedOptions: [option] }) => option && !option.defaultSelected);
  const scrolled = [...element.querySelectorAll(".scroll")].map(({ scrollLeft, scrollTop }) => [scrollLeft, scrollTop]);
  const fresh = document.createElement("template");
  fresh.innerHTML = html; // rendered and escaped by our own templates
  element.replaceChildren(fresh.content);
  for (const id of open) {
    const details = document.getElementById(id);
    if (details) details.open = true;
  }
  for (const id of shut) {
    const details = element.querySelector(`[id="${id}"]`);
    if (details) details.open = false;
  }
  for (const { id, value } of chosen) {
    const select = document.getElementById(id);
    if ([...select?.options ?? []].some((option) => option.value === value)) select.value = value;
  }
  const tables = element.querySelectorAll(".scroll");
  if (tables.length === scrolled.length) tables.forEach((table, i) => table.scrollTo(...scrolled[i]));
  if (hadFocus) {
    document.getElementById(focused)?.focus({ preventScroll: true });
    if (document.activeElement === document.body) { // what had it is gone, or takes none now
      element.tabIndex = -1;
      element.focus({ preventScroll: true });
    }
  }
  document.dispatchEvent(new CustomEvent("part", { detail: element }));
}

function parts() {
  return document.querySelectorAll("[data-part]");
}

function concerns(element, { what, id }) {
  if (!(element.dataset.on ?? "").split(" ").includes(what)) return false;
  const own = element.dataset.id;
  return !own || id === null || own === id || kind(own) !== kind(id);
}

function kind(id) { // of job-…, turn-…: a job's part cares for any turn, and only for its own job
  return id.split("-")[0];
}

export function watchParts(connection) {
  document.addEventListener("changed", ({ detail }) => {
    for (const element of parts()) if (concerns(element, detail)) refresh(element);
  });
  connection.addEventListener("state", ({ detail }) => {
    // Nudges may have been missed while away.
    if (detail === "open" && isAway) for (const element of parts()) refresh(element);
    isAway = detail !== "open";
  });
  for (const element of parts()) {
    if ("now" in element.dataset) refresh(element);
    const seconds = Number(element.dataset.poll);
    if (seconds) setInterval(() => document.hidden || refresh(element), seconds * 1000);
  }
}
