// The line above the page that says whether the server is there. What was written is kept meanwhile.

import { connection } from "./socket.js";

const PATIENCE = 1200; // ms; a change of pages does not flash it

const banner = document.getElementById("connection");
let waiting = null; // until it is shown, then each second until the next try

function show(words, { again = false } = {}) {
  if (banner.hidden || banner.dataset.words !== words) {
    banner.dataset.words = words;
    // The words are read out once; the seconds are for the eye, or they would be read out each time.
    const text = document.createElement("span");
    text.setAttribute("role", "status");
    const left = document.createElement("span");
    left.className = "left";
    left.setAttribute("aria-hidden", "true");
    banner.replaceChildren(text, " ", left);
    if (again) banner.append(tryNow());
    banner.hidden = false;
    text.textContent = words;
  }
}

function tryNow() {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "small";
  button.textContent = gettext("Try now");
  button.addEventListener("click", () => connection.now());
  return button;
}

function countDown() {
  show(navigator.onLine
    ? gettext("Connection lost. What you write is kept and sent later.")
    : gettext("You are offline. What you write is kept and sent later."), { again: true });
  const seconds = Math.max(0, Math.ceil((connection.retryAt - Date.now()) / 1000));
  banner.querySelector(".left").textContent = seconds
    ? interpolate(ngettext("Next try in %s second.", "Next try in %s seconds.", seconds), [seconds])
    : gettext("Trying …");
  waiting = setTimeout(countDown, 1000);
}

function onState(state) {
  clearTimeout(waiting);
  banner.dataset.state = state;
  if (state === "open") {
    banner.hidden = true;
  } else if (state === "signed_out") {
    const next = encodeURIComponent(location.pathname + location.search);
    location.assign(`/signin/?next=${next}`);
  } else if (state === "refused") {
    show(gettext("Live updates are refused: this page was opened under another address than the server expects."));
  } else if (banner.hidden) {
    waiting = setTimeout(countDown, PATIENCE);
  } else {
    countDown();
  }
}

connection.addEventListener("state", ({ detail }) => onState(detail));
