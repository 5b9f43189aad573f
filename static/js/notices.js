// Short messages in the corner, read out by screen readers; the place for them is in base.html.

const SECONDS = 9;

// `undo`: {label, act}, a button beside the words.
export function notify(text, undo = null) {
  const place = document.getElementById("notices");
  const notice = document.createElement("div");
  notice.className = "notice";
  const words = document.createElement("span");
  words.textContent = text;
  const close = document.createElement("button");
  close.type = "button";
  close.className = "small";
  close.textContent = place.dataset.close;
  close.addEventListener("click", leave);
  notice.append(words);
  if (undo) {
    notice.dataset.undo = "";
    const button = document.createElement("button");
    button.type = "button";
    button.className = "small";
    button.textContent = undo.label;
    button.addEventListener("click", () => { leave(); undo.act(); });
    notice.append(button);
  }
  notice.append(close);
  place.querySelector(".notice:not([data-undo])")?.remove(); // what can be undone stays its time
  place.append(notice);
  let timer = setTimeout(leave, SECONDS * 1000);
  notice.addEventListener("pointerenter", () => clearTimeout(timer));
  let before = null; // what had the focus, and has it again when this is gone
  notice.addEventListener("focusin", ({ relatedTarget }) => {
    clearTimeout(timer);
    if (!notice.contains(relatedTarget)) before = relatedTarget;
  });
  notice.addEventListener("pointerleave", () => {
    timer = setTimeout(leave, 2000);
  });
  function leave() {
    const hadFocus = notice.contains(document.activeElement);
    notice.remove();
    if (hadFocus) before?.focus({ preventScroll: true });
  }
}

// What went wrong; with an error of the server's the id by which an admin finds it in the log.
export function complain(problem) {
  if (!problem.request) return notify(problem.message);
  return notify(problem.message, {
    label: gettext("Copy the error's id"),
    act: async () => {
      try {
        await navigator.clipboard.writeText(problem.request);
        notify(gettext("Copied."));
      } catch {
        notify(problem.request);
      }
    },
  });
}
