// The receipt: what became of a rating, in the server's words, linked to the job or version it names;
// and what had been said with it.

export function paintReceipt(place, receipt) {
  const key = receipt ? JSON.stringify([receipt.text, receipt.state, receipt.job, receipt.adapter]) : "";
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  place.dataset.state = receipt?.state ?? "";
  place.replaceChildren();
  if (!receipt) return;
  const href = target(receipt);
  const words = document.createElement(href ? "a" : "span");
  words.textContent = receipt.text;
  if (href) words.href = href;
  place.append(words);
}

// What was said beside the vote: reasons as the strip calls them, a comment, a correction.
export function whyOf(feedback) {
  const { content } = document.getElementById("strip-template");
  const reasons = (feedback?.reasons ?? []).map((slug) => (
    content.querySelector(`[value="${slug}"]`)?.nextElementSibling.textContent ?? slug
  ));
  return [...reasons, feedback?.comment, feedback?.correction].filter(Boolean);
}

// The way to say more; what was said so far is shown to who points at it.
export function paintWhy(button, feedback) {
  button.title = whyOf(feedback).join(" · ");
  button.textContent = button.title ? gettext("Change what you said") : gettext("Say why");
}

function target({ state, job, adapter }) {
  if (state === "learned" && adapter) return `/adapters/#${encodeURIComponent(adapter)}`;
  return job ? `/jobs/${encodeURIComponent(job)}/` : null;
}
