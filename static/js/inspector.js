// A session's page: how a reply is shown, rating in place, other versions' answers; keys are in inspector-keys.js.

import { call } from "./api.js";
import { currentTurn, paintMap, watchKeys } from "./inspector-keys.js";
import { notify } from "./notices.js";
import { refresh } from "./parts.js";
import { Rating } from "./rating.js";
import { paintWhy } from "./receipt.js";

const status = document.getElementById("status");
const ratings = new Map(); // by the turn's card

function say(words) {
  status.textContent = words;
}

// A card's part is fetched anew with what is asked for, and stays so when it is fetched again.
function ask(element, name, value) {
  const part = element.closest("[data-part]");
  const url = new URL(part.dataset.part, location.href);
  if (url.searchParams.get(name) === value) return;
  url.searchParams.set(name, value);
  part.dataset.part = url.pathname + url.search;
  refresh(part);
}

document.addEventListener("click", ({ target }) => {
  const button = target.closest("button[data-ask]");
  if (button) ask(button, button.dataset.ask, button.dataset.value);
});
// `toggle` does not bubble, and a part that is fetched again brings new elements.
document.addEventListener("toggle", ({ target }) => {
  if (target.matches("details[data-ask]") && target.open) ask(target, target.dataset.ask, target.dataset.value);
}, true);

// What rating.js needs of a turn on this page.
class Card {
  constructor(article) {
    this.article = article;
    this.read();
  }

  read() {
    this.turn = { ...this.turn, ...JSON.parse(this.article.querySelector("[data-turn-json]").dataset.turnJson) };
  }

  part(name) {
    return this.article.querySelector(`.rate .${name}`);
  }

  paintVote(turn) {
    this.article.querySelector(".rate").hidden = !turn.can_rate; // until the reply is whole
    const value = turn.feedback?.value ?? null;
    this.part("up").setAttribute("aria-pressed", String(value === 1));
    this.part("down").setAttribute("aria-pressed", String(value === -1));
    this.part("why").hidden = value !== -1 || Boolean(this.part("strip"));
    paintWhy(this.part("why"), turn.feedback);
  }
}

for (const article of document.querySelectorAll(".inspected")) {
  const card = new Card(article);
  const onReceipt = () => {
    const detail = { what: "receipt", id: card.turn.id };
    document.dispatchEvent(new CustomEvent("changed", { detail }));
  };
  ratings.set(article, new Rating(card, { say, onReceipt }));
  card.paintVote(card.turn);
}

document.addEventListener("part", ({ detail: element }) => {
  if (element.id === "minimap") paintMap();
  const article = element.parentElement;
  const rating = ratings.get(article);
  if (!rating || rating.strip || rating.sent !== rating.answered || !element.querySelector("[data-turn-json]")) return;
  rating.view.read();
  rating.view.paintVote(rating.view.turn);
});

document.addEventListener("submit", async (event) => {
  const form = event.target.closest("[data-replay]");
  if (!form) return;
  event.preventDefault();
  const button = form.querySelector("button");
  button.disabled = true;
  try {
    const { id, second } = await call("POST", form.dataset.replay, { with: form.elements.with.value, kind: "recheck" });
    show(form.closest(".rate").querySelector(".replays"), id, second.id);
    say(gettext("Asked. The answer appears below the reply."));
  } catch (problem) {
    notify(problem.message);
  } finally {
    button.disabled = false;
  }
});

function show(place, id, turn) {
  const address = `/parts/replays/${id}/`;
  let part = place.querySelector(`[data-part="${address}"]`);
  if (!part) {
    part = document.createElement("div");
    Object.assign(part.dataset, { part: address, on: "turn", id: turn, now: "" });
    part.setAttribute("aria-busy", "true");
    part.textContent = gettext("Asking …");
    place.append(part);
  }
  refresh(part);
}

addEventListener("pagehide", () => { for (const rating of ratings.values()) rating.leave(); });

watchKeys({
  rate(article) {
    const rating = ratings.get(article);
    if (!rating.view.turn.can_rate) return say(gettext("This turn cannot be rated."));
    if (rating.view.turn.feedback?.value === -1) return rating.openStrip().querySelector("input, textarea").focus();
    return rating.view.part("up").focus();
  },
});

// A link may name a turn that is on another page of a long session.
function follow() {
  const wanted = location.hash.slice(1);
  const isElsewhere = wanted.startsWith("turn-") && !document.getElementById(wanted);
  if (isElsewhere && !location.search.includes(wanted)) {
    location.replace(`?turn=${encodeURIComponent(wanted)}#${wanted}`);
  } else {
    currentTurn(wanted);
  }
}

addEventListener("hashchange", follow);
follow();
