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

// A box that is full takes no more, and says so: what goes beyond is lost in silence otherwise.
export function saysWhenFull(box) {
  const note = document.createElement("p");
  note.className = "full";
  note.hidden = true;
  note.setAttribute("role", "alert");
  const room = box.maxLength.toLocaleString(document.documentElement.lang);
  note.textContent = interpolate(gettext("At most %s characters fit in here: what goes beyond was left out."), [room]);
  (box.closest("label") ?? box).after(note);
  const look = () => { note.hidden = box.value.length < box.maxLength; };
  box.addEventListener("input", look);
  return look;
}

// Where one writes on; on a phone its keyboard would open unasked.
export function toTheBox() {
  if (matchMedia("(pointer: fine)").matches) document.getElementById("say").focus();
}

export class Composer {
  constructor(form, { key, onSend }) {
    this.form = form;
    this.box = form.elements.say;
    this.sendButton = form.querySelector("#send");
    this.stopButton = form.querySelector("#stop");
    this.lookWhetherFull = saysWhenFull(this.box);
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
    this.forget();
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
    else this.forget();
  }

  forget() {
    localStorage.removeItem(this.key());
  }

  grow() {
    this.lookWhetherFull();
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
