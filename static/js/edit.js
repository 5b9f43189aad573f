// A message said again in other words: a form in the bubble's place; sending it makes a sibling.

import { saysWhenFull, sends } from "./composer.js";
import { notify } from "./notices.js";

export function watchEdit(view, onEdit) {
  const button = view.part("edit");
  const bubble = view.part("said-text");
  button.addEventListener("click", () => {
    if (view.part("edit-form")) return;
    const form = formFor(view.turn.text);
    bubble.hidden = true;
    button.hidden = true;
    bubble.after(form);
    form.elements.text.focus();

    function close() {
      form.remove();
      bubble.hidden = false;
      button.hidden = false;
      button.focus();
    }

    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const text = form.elements.text.value.trim();
      if (text && onEdit(view.turn.id, text)) close();
    });
    form.addEventListener("reset", close);
    form.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !event.isComposing) { event.stopPropagation(); close(); }
      if (!sends(event) || event.target !== form.elements.text) return;
      event.preventDefault();
      form.requestSubmit();
    });
  });
}

// What is being written in a message's place, and not sent, leaves the page with its turn: it is handed on.
export function rescueEdit(view, onLost) {
  const words = view.part("edit-form")?.elements.text.value.trim();
  if (!words || words === view.turn.text.trim()) return;
  onLost(words);
  notify(gettext("What you were writing is in the message box now."));
}

function formFor(text) {
  const form = document.createElement("form");
  form.className = "edit-form";
  const box = document.createElement("textarea");
  box.name = "text";
  box.dir = "auto";
  box.value = text;
  box.rows = Math.min(10, text.split("\n").length + 1);
  box.maxLength = 100_000;
  box.enterKeyHint = "send";
  box.setAttribute("aria-label", gettext("Your message in other words"));
  const row = document.createElement("p");
  row.append(buttonOf("reset", gettext("Cancel")), buttonOf("submit", gettext("Send")));
  form.append(box, row);
  saysWhenFull(box);
  return form;
}

function buttonOf(type, words) {
  const button = document.createElement("button");
  button.type = type;
  button.className = type === "submit" ? "small primary" : "small";
  button.textContent = words;
  return button;
}
