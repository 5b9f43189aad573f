// The message box: Enter sends, Shift+Enter breaks the line, the draft outlives the page.

const DRAFT = "draft:";
const GROWS = CSS.supports("field-sizing", "content"); // chat.css has it grow: no layout at each key

// What was being written, by user and chat, stays in the browser until it is sent.
export const draftKey = (user, chat) => `${DRAFT}${user}:${chat || "new"}`;

export function forgetDrafts() {
  for (const key of Object.keys(localStorage)) if (key.startsWith(DRAFT)) localStorage.removeItem(key);
}

// keyCode 229: Safari ends a composition before the Enter that chose a word.
export const sends = ({ key, shiftKey, isComposing, keyCode }) => (
  key === "Enter" && !shiftKey && !isComposing && keyCode !== 229
);

export class Composer {
  constructor(form, { key, onSend }) {
    this.form = form;
    this.box = form.elements.say;
    this.sendButton = form.querySelector("#send");
    this.stopButton = form.querySelector("#stop");
    this.full = form.querySelector("#full");
    this.key = key;
    this.onSend = onSend;
    if (!this.box.value) this.box.value = localStorage.getItem(key()) ?? "";
    this.box.addEventListener("input", () => { this.keep(); this.grow(); });
    this.box.addEventListener("keydown", (event) => this.pressed(event));
    form.addEventListener("submit", (event) => { event.preventDefault(); this.send(); });
    this.grow();
  }

  pressed(event) {
    if (!sends(event)) return;
    event.preventDefault();
    this.send();
  }

  send() {
    const text = this.box.value.trim();
    if (text && this.onSend(text)) this.clear();
  }

  clear() {
    localStorage.removeItem(this.key());
    this.box.value = "";
    this.grow();
  }

  putBack(text) {
    this.box.value = this.box.value ? `${text}\n${this.box.value}` : text;
    this.keep();
    this.grow();
    this.box.focus();
  }

  keep() {
    if (this.box.value) localStorage.setItem(this.key(), this.box.value);
    else localStorage.removeItem(this.key());
  }

  grow() {
    this.full.hidden = this.box.value.length < this.box.maxLength;
    if (GROWS) return;
    this.box.style.height = "auto"; // through the CSSOM, which the content policy allows
    this.box.style.height = `${this.box.scrollHeight}px`;
  }

  busy(isBusy) {
    // The button that goes takes the focus with it.
    const going = isBusy ? this.sendButton : this.stopButton;
    if (document.activeElement === going) this.box.focus();
    this.stopButton.hidden = !isBusy;
    this.sendButton.hidden = isBusy;
  }
}
