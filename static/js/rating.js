// Thumbs, and the strip that asks what was wrong. A click saves at once; the strip adds to it.

import { call } from "./api.js";
import { saysWhenFull } from "./composer.js";
import { complain, notify } from "./notices.js";
import { whyOf } from "./receipt.js";
import { contentOf, fill, isInUse, sayUnsent, watchCorrection, watchOpposites } from "./strip.js";

const STILL_WRITING = 12_000; // the server waits 20 s for a reason after the last word from here

export class Rating {
  constructor(view, { onReceipt, onCompare, say }) {
    Object.assign(this, { view, onReceipt, onCompare, say });
    this.last = Promise.resolve(); // of what was sent: the server hears it in this order
    this.sent = 0;
    this.answered = 0;
    view.part("up").addEventListener("click", () => this.vote(1));
    view.part("down").addEventListener("click", () => this.vote(-1));
    view.part("undo").addEventListener("click", () => this.undo());
    view.part("why").addEventListener("click", () => this.openStrip().querySelector("input").focus());
  }

  get url() {
    return `/api/turns/${this.view.turn.id}/feedback`;
  }

  send(said) {
    const { url } = this; // when its time has come another turn may stand here
    this.sent += 1;
    const sent = this.last.then(() => call("POST", url, said));
    this.last = sent.catch(() => {}).then(() => { this.answered += 1; });
    return sent;
  }

  async vote(clicked) {
    const { turn } = this.view;
    const before = turn.feedback;
    const written = this.strip && contentOf(this.strip); // and not sent yet
    const value = before?.value === clicked ? null : clicked;
    const voted = { value, reasons: [], comment: "", correction: "" };
    turn.feedback = voted;
    const cleared = value === -1 && written ? null : written ?? before;
    if (whyOf(cleared).length > 0) this.offerUndo(cleared);
    this.dropStrip();
    if (value === -1) this.openStrip(written ?? voted);
    try {
      this.onReceipt(this.view, await this.send({ value }));
      this.say({
        "1": gettext("Rated as good."),
        "-1": gettext("Rated as bad. You can say why below."),
        null: gettext("Rating taken back."),
      }[value]);
    } catch (problem) {
      if (turn.feedback !== voted) return complain(problem); // another click has said since what holds
      turn.feedback = before;
      this.offerUndo(null);
      if (isInUse(this.strip)) return this.keepStrip(problem);
      complain(problem);
      this.dropStrip();
      if (written) this.openStrip(written);
    }
    return undefined;
  }

  // `said`: what the last vote cleared, as it explained another one.
  offerUndo(said) {
    this.lost = said;
    this.view.part("undo").hidden = !said;
  }

  async undo() {
    const said = this.lost;
    try {
      const receipt = await this.send({ ...said, final: true });
      this.view.turn.feedback = said;
      this.dropStrip();
      this.view.part(said.value === 1 ? "up" : "down").focus(); // before its button goes
      this.offerUndo(null);
      this.onReceipt(this.view, receipt);
      this.say(gettext("Your rating is back, with what you had said."));
    } catch (problem) {
      complain(problem);
    }
  }

  // Straight to what was wanted instead.
  correct() {
    if (this.view.turn.feedback?.value !== -1) this.vote(-1);
    const strip = this.openStrip();
    strip.querySelector("details").open = true;
    strip.elements.correction.focus();
  }

  openStrip(said = this.view.turn.feedback) {
    if (this.strip) return this.strip;
    const template = document.getElementById("strip-template");
    this.strip = template.content.firstElementChild.cloneNode(true);
    watchCorrection(this.strip, this.view.turn.reply);
    watchOpposites(this.strip);
    for (const box of this.strip.querySelectorAll("textarea")) saysWhenFull(box);
    fill(this.strip, said);
    this.strip.addEventListener("submit", (event) => { event.preventDefault(); this.done(); });
    this.strip.querySelector(".compare")?.addEventListener("click", async () => {
      await this.done();
      if (!this.strip) this.onCompare(); // else it could not be saved, and says so
    });
    this.strip.addEventListener("keydown", (event) => this.pressed(event));
    this.strip.addEventListener("input", () => this.stillWriting());
    this.pinged = Date.now();
    this.view.part("strip-place").replaceChildren(this.strip);
    this.view.paintVote(this.view.turn);
    this.strip.scrollIntoView({ block: "nearest" });
    return this.strip;
  }

  // Its vote did not arrive; what was written below it meanwhile can be sent all the same.
  keepStrip(problem) {
    this.strip.querySelector(".strip-thanks").hidden = true; // nothing is saved
    sayUnsent(this.strip, problem);
    this.view.paintVote(this.view.turn);
  }

  pressed(event) {
    if (event.isComposing) return;
    if (event.key === "Escape" || (event.key === "Enter" && (event.ctrlKey || event.metaKey))) {
      event.preventDefault();
      event.stopPropagation(); // Esc here does not stop a reply
      this.done();
    }
  }

  // A bare thumb counts after a while by itself; who is still explaining it gets more time.
  stillWriting() {
    if (Date.now() - this.pinged < STILL_WRITING) return;
    this.pinged = Date.now();
    this.send({ value: -1 }).then((receipt) => this.onReceipt(this.view, receipt), () => {});
  }

  async done() {
    if (!this.strip) return;
    const content = contentOf(this.strip);
    const [button, error] = [".done", ".strip-error"].map((name) => this.strip.querySelector(name));
    button.disabled = true;
    error.textContent = "";
    const hadFocus = this.strip.contains(document.activeElement);
    try {
      const receipt = await this.send({ ...content, final: true });
      this.view.turn.feedback = content;
      if (whyOf(content).length > 0) this.offerUndo(null);
      const { activeElement } = document;
      const stayed = activeElement === document.body || this.strip.contains(activeElement);
      this.dropStrip();
      this.onReceipt(this.view, receipt);
      this.say(gettext("Saved."));
      // Who types elsewhere by now would hit Enter on the thumb, and take it back.
      if (hadFocus && stayed) this.view.part("down").focus();
    } catch (problem) {
      if (!this.strip) return;
      if (!this.strip.isConnected) complain(problem); // its reply has left the page
      button.disabled = false;
      sayUnsent(this.strip, problem);
    }
  }

  // Before another turn takes this one's place: what is being said here is not about that one.
  async settle() {
    await this.done();
    await this.last;
    if (this.strip) notify(this.strip.querySelector(".strip-error").textContent);
    this.dropStrip();
    this.offerUndo(null);
  }

  // The page is going away: say what there is, without waiting for any answer.
  leave() {
    if (!this.strip) return;
    call("POST", this.url, { ...contentOf(this.strip), final: true }, { keepalive: true }).catch(() => {});
  }

  dropStrip() {
    this.strip?.remove();
    this.strip = null;
    this.view.paintVote(this.view.turn);
  }
}
