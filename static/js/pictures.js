// Words may arrive faster than anybody reads: what they change is drawn with one picture for all of
// them, thirty times a second at most, so that keys pressed meanwhile need not wait.

const APART = 30; // ms; every second picture of a usual screen

const waiting = new Set();
let isPlanned = false;
let last = 0;

export function withNextPicture(act) {
  waiting.add(act);
  if (isPlanned) return;
  isPlanned = true;
  const left = last + APART - performance.now();
  if (left > 0) setTimeout(() => requestAnimationFrame(drawAll), left);
  else requestAnimationFrame(drawAll);
}

function drawAll() {
  isPlanned = false;
  last = performance.now();
  const acts = [...waiting];
  waiting.clear();
  for (const act of acts) act();
}
