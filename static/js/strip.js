// The strip below a reply as a form: what stands in it, and that it could not be sent. What one wanted
// instead begins with the reply, and shows what is changed, word by word.

import { whyOf } from "./receipt.js";

let loading = null;

// Half of the chat page's other scripts together: fetched when somebody first corrects a reply.
function differ(url) {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = url;
    script.addEventListener("load", () => resolve(window.Diff));
    script.addEventListener("error", reject);
    document.head.append(script);
  });
  return loading;
}

export function watchCorrection(strip, reply) {
  const details = strip.querySelector("details");
  const box = strip.elements.correction;
  const shown = strip.querySelector(".changes");
  box.defaultValue = reply; // there before the field opens: who types at once writes over it
  box.defaultValue = box.value; // line ends as the field gives them back
  details.addEventListener("toggle", () => { if (details.open) paint(); });
  box.addEventListener("input", paint);

  async function paint() {
    try {
      const { diffWordsWithSpace } = await differ(shown.dataset.diff);
      const parts = diffWordsWithSpace(reply, box.value).map(({ value, added, removed }) => {
        const part = document.createElement(added ? "ins" : removed ? "del" : "span");
        part.textContent = value;
        return part;
      });
      shown.replaceChildren(...parts);
      shown.hidden = box.value === box.defaultValue;
    } catch {
      shown.hidden = true; // the correction itself does not need it
    }
  }
}

// What was written instead; nothing when the reply stands there unchanged.
function correctionIn(strip) {
  const { value, defaultValue } = strip.elements.correction;
  return value.trim() === defaultValue.trim() ? "" : value.trim();
}

export function fill(strip, feedback) {
  const { comment, correction } = strip.elements;
  for (const box of strip.querySelectorAll("[name=reason]")) {
    box.checked = feedback?.reasons?.includes(box.value) ?? false;
    box.parentElement.hidden &&= !box.checked; // hidden: in use no more
  }
  comment.value = feedback?.comment ?? "";
  if (feedback?.correction) {
    correction.value = feedback.correction;
    strip.querySelector("details").open = true;
  }
}

// Who ticks "Too short" has changed their mind about "Too long".
export function watchOpposites(strip) {
  strip.addEventListener("change", ({ target }) => {
    const { axis, pole } = target.dataset;
    if (!axis || !target.checked) return;
    for (const box of strip.querySelectorAll("[name=reason]:checked")) {
      if (box.dataset.axis === axis && box.dataset.pole !== pole) box.checked = false;
    }
  });
}

export function contentOf(strip) {
  const chosen = strip.querySelectorAll("[name=reason]:checked");
  return {
    value: -1,
    reasons: [...chosen].map((box) => box.value),
    comment: strip.elements.comment.value.trim(),
    correction: correctionIn(strip),
  };
}

// Whether somebody is at it, or has said something in it.
export function isInUse(strip) {
  return Boolean(strip) && (strip.contains(document.activeElement) || whyOf(contentOf(strip)).length > 0);
}

export function sayUnsent(strip, { message }) {
  strip.querySelector(".strip-error").textContent =
    interpolate(gettext("%s What you wrote is still here."), [message]);
}
