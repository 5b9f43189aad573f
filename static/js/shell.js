// What every page has: theme, menus, the buttons that post, times, live parts.

import { call } from "./api.js";
import "./banner.js";
import { forgetDrafts } from "./composer.js";
import { complain, notify } from "./notices.js";
import { watchParts } from "./parts.js";
import { connection } from "./socket.js";
import { paintTimes } from "./times.js";

const YEAR = 31_536_000;
const READ_FIRST = "[data-read-first], .wrong :is(input, select, textarea), form .message.error";

// A page whose catalogue did not come speaks English, and works.
globalThis.gettext ??= (words) => words;
globalThis.ngettext ??= (one, many, count) => (count === 1 ? one : many);
globalThis.interpolate ??= (words, values) => values.reduce((text, value) => text.replace("%s", value), words);

// Who sent a form reads on where it says what is wrong, or what it shows only once.
document.querySelector(READ_FIRST)?.focus();

document.getElementById("theme")?.addEventListener("change", ({ target }) => {
  const age = target.value ? YEAR : 0;
  document.cookie = `theme=${target.value}; path=/; max-age=${age}; samesite=lax`;
  if (target.value) document.documentElement.dataset.theme = target.value;
  else delete document.documentElement.dataset.theme;
  document.dispatchEvent(new CustomEvent("theme"));
});

// Which day is today, and when a day begins: the pages that the server makes from now on go by it.
document.cookie = `ahead=${-new Date().getTimezoneOffset()}; path=/; max-age=${YEAR}; samesite=lax`;

const menu = document.getElementById("user-menu");
document.addEventListener("click", (event) => {
  if (menu?.open && !menu.contains(event.target)) menu.open = false;
});
menu?.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  event.stopPropagation(); // it closes the menu and stops no reply
  menu.open = false;
  menu.querySelector("summary").focus();
});

const fieldsOf = (ids) => ids.split(" ").filter(Boolean).map((id) => document.getElementById(id));

// What fields hold, by their ids; one named "settings.teacher" is sent within "settings". A number
// that is not given is not sent.
function held(ids) {
  const body = {};
  for (const { name, type, value: text, valueAsNumber: number } of fieldsOf(ids)) {
    if (type === "number" && !text) continue;
    const value = type === "number" ? number : text;
    const [outer, inner] = name.split(".");
    if (inner) (body[outer] ??= {})[inner] = value;
    else body[outer] = value;
  }
  return body;
}

// A number that cannot be read has no value: it would count as not given. The browser says what is wrong.
function areSound(ids) {
  const wrong = fieldsOf(ids).find(({ type, validity }) => type === "number" && (validity.badInput || validity.rangeUnderflow));
  for (let place = wrong?.closest("details"); place; place = place.parentElement.closest("details")) place.open = true;
  return !wrong || wrong.reportValidity();
}

// Buttons that change something: data-post is the API's address, data-with the fields it sends,
// data-what and data-id what has changed then; data-method and data-confirm where it cannot be undone.
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-post]");
  if (!button || button.disabled || button.ariaDisabled === "true") return;
  if (button.dataset.confirm && !confirm(button.dataset.confirm)) return;
  button.ariaDisabled = "true"; // keeps the focus, which a part that comes before the answer passes on
  try {
    if (!areSound(button.dataset.with ?? "")) return;
    const body = held(button.dataset.with ?? "");
    const answer = await call(button.dataset.method ?? "POST", button.dataset.post, body);
    notify(answer?.why || (button.dataset.done ?? gettext("Done."))); // why only half of it was done
    const what = button.dataset.what ?? (button.dataset.post.includes("adapter") ? "adapter" : "job");
    const id = button.dataset.id ?? null;
    document.dispatchEvent(new CustomEvent("changed", { detail: { what, id } }));
  } catch (problem) {
    complain(problem);
  } finally {
    button.ariaDisabled = null;
    if (document.activeElement === document.body) button.focus(); // Safari gives none to what is clicked
  }
});

// A button outside the part that knows whether it may be pressed: as the one there, by its id.
document.addEventListener("part", () => {
  for (const button of document.querySelectorAll("[data-disabled-as]")) {
    button.disabled = document.getElementById(button.dataset.disabledAs)?.disabled ?? false;
  }
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const source = document.querySelector(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(source.textContent);
    notify(gettext("Copied."));
  } catch {
    getSelection().selectAllChildren(source);
    notify(gettext("Press Ctrl+C to copy what is selected."));
  }
});

// Forms that cannot be undone ask first. Who signs out leaves no drafts behind.
document.addEventListener("submit", (event) => {
  const { confirm: question } = event.target.dataset;
  if (question && !confirm(question)) event.preventDefault();
  if (event.target.matches("[data-signout]")) {
    forgetDrafts();
    sessionStorage.removeItem(LIVE);
  }
});

// A version that goes live says so wherever its user is, and on the next page if that was between
// two pages or without a connection.
const LIVE = "live-version";
async function lookAtVersion() {
  try {
    const { version } = await call("GET", "/api/status");
    const known = sessionStorage.getItem(LIVE);
    sessionStorage.setItem(LIVE, version);
    if (known !== null && version > Number(known)) {
      notify(interpolate(gettext("Version %s of your agent answers from now on."), [version]));
      document.dispatchEvent(new CustomEvent("version", { detail: version }));
    }
  } catch {
    // The next nudge asks again.
  }
}
document.addEventListener("changed", ({ detail }) => { if (detail.what === "adapter") lookAtVersion(); });
connection.addEventListener("state", ({ detail }) => { if (detail === "open") lookAtVersion(); });

watchParts(connection);
paintTimes(document);
setInterval(() => paintTimes(document), 30_000);
document.addEventListener("part", ({ detail }) => paintTimes(detail));
