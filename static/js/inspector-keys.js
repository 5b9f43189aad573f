// Going through a session's turns: the map beside them, and the keys j k n p e ? with their switch.

const SWITCH = "clawweb.keys"; // localStorage: "off" turns single keys off
const map = document.getElementById("minimap");
const dialog = document.getElementById("keys");
const box = document.getElementById("keys-on");

const cards = () => [...document.querySelectorAll(".inspected")];
let current = null; // the card that keys start from

function allowed() {
  try {
    return localStorage.getItem(SWITCH) !== "off";
  } catch {
    return true; // no storage: the switch holds for this page
  }
}

// The turn that was last gone to while it can be seen, else the first that can.
function here() {
  if (current?.isConnected && isSeen(current)) return current;
  return cards().find(isSeen) ?? cards()[0] ?? null;
}

function isSeen(card) {
  const { top, bottom } = card.getBoundingClientRect();
  return bottom > 80 && top < innerHeight;
}

function goTo(card) {
  current = card;
  card.focus({ preventScroll: true });
  card.scrollIntoView({ block: "start" });
  paintMap();
}

// By one turn; over the page's end to the next page.
function step(by) {
  const all = cards();
  const from = here();
  // A turn that is seen but was not gone to comes first itself.
  const next = by > 0 && from !== current ? from : all[all.indexOf(from) + by];
  if (next) return goTo(next);
  const link = document.querySelector(`.pages a[rel=${by > 0 ? "next" : "prev"}]`);
  if (link) location.assign(`${link.href}#${by > 0 ? "first" : "last"}`);
  return undefined;
}

// By one turn that something is noted about: the map knows them all.
function stepNoted(by) {
  if (!map) return;
  const from = here();
  const ticks = [...map.querySelectorAll("a")];
  const at = placeOf(ticks, from);
  const way = by > 0 ? ticks.slice(at + 1) : ticks.slice(0, Math.max(at, 0)).reverse();
  const tick = way.find((link) => "noted" in link.dataset);
  if (!tick) return;
  const card = document.getElementById(tick.dataset.turn);
  if (card) goTo(card);
  else location.assign(tick.href);
}

// The index of a card's tick; of plain turns drawn together, that of the row that holds it.
function placeOf(ticks, card) {
  const all = cards();
  for (let index = all.indexOf(card); index >= 0; index -= 1) {
    const at = ticks.findIndex((link) => link.dataset.turn === all[index].id);
    if (at >= 0) return at;
  }
  return -1;
}

export function paintMap() {
  if (!map) return;
  const ticks = [...map.querySelectorAll("a")];
  const at = placeOf(ticks, here());
  ticks.forEach((link, index) => {
    link.tabIndex = index === Math.max(at, 0) ? 0 : -1; // one stop for Tab; arrows go on from there
    link.toggleAttribute("aria-current", index === at);
    if (index === at) link.setAttribute("aria-current", "true");
  });
  const seen = ticks[at];
  if (!seen) return;
  const list = map.firstElementChild;
  list.scrollTop = seen.offsetTop - list.clientHeight / 2;
  list.scrollLeft = seen.offsetLeft - list.clientWidth / 2;
}

map?.addEventListener("keydown", (event) => {
  const by = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
  if (!by) return;
  event.preventDefault();
  const ticks = [...map.querySelectorAll("a")];
  ticks[ticks.indexOf(document.activeElement) + by]?.focus();
});

map?.addEventListener("click", (event) => {
  const card = document.getElementById(event.target.closest("a")?.dataset.turn ?? "");
  if (!card) return; // it is on another page
  event.preventDefault();
  history.replaceState(null, "", `#${card.id}`);
  goTo(card);
});

let painting = null;
document.addEventListener("scroll", () => {
  painting ??= setTimeout(() => { painting = null; paintMap(); }, 150);
}, { passive: true });

// The turn that the address names, with the keyboard at it.
export function currentTurn(name) {
  const all = cards();
  const card = name === "last" ? all.at(-1) : name === "first" ? all[0] : all.find(({ id }) => id === name);
  if (card) goTo(card);
  else paintMap();
}

function isTyping(target) {
  return target.closest("input, textarea, select, [contenteditable], dialog") !== null;
}

export function watchKeys({ rate }) {
  const acts = {
    j: () => step(1), k: () => step(-1), n: () => stepNoted(1), p: () => stepNoted(-1),
    e: () => here() && rate(here()), "?": () => dialog.showModal(),
  };
  box.checked = allowed();
  box.addEventListener("change", () => {
    try {
      localStorage.setItem(SWITCH, box.checked ? "on" : "off");
    } catch {
      // It holds for this page.
    }
  });
  document.getElementById("keys-open").addEventListener("click", () => dialog.showModal());
  document.addEventListener("keydown", (event) => {
    if (!box.checked || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (!acts[event.key] || dialog.open || isTyping(event.target)) return;
    event.preventDefault();
    acts[event.key]();
  });
}
