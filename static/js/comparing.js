// The comparison on the page, one at a time, and the offer to try a new version below the last turn.

import { call } from "./api.js";
import { Comparison } from "./compare.js";
import { toTheBox } from "./composer.js";
import { notify } from "./notices.js";

export class Comparing {
  constructor({ say, last, get, onChosen }) {
    Object.assign(this, { say, last, onChosen });
    this.offer = document.getElementById("offer");
    this.offer.querySelector(".try").addEventListener("click", () => this.again());
    this.offer.querySelector(".later").addEventListener("click", () => { this.offer.hidden = true; toTheBox(); });
    document.addEventListener("version", ({ detail }) => this.propose(detail));
    this.propose(Number(this.offer.dataset.version));
    const waiting = this.offer.dataset.comparison;
    if (waiting) this.resume(waiting, get);
  }

  propose(version) {
    const turn = this.last()?.turn;
    const fits = version && turn?.reply && turn.recorded && turn.version !== version;
    this.offer.hidden = !fits;
    if (!fits) return;
    this.offer.querySelector(".offer-words").textContent =
      interpolate(gettext("Version %s of your agent answers from now on."), [version]);
    this.offer.querySelector(".in-older").hidden = !turn.parent;
    this.offer.querySelector(".try").textContent =
      interpolate(gettext("Try your last question again with v%s"), [version]);
  }

  again() {
    this.offer.hidden = true;
    this.open(this.last(), { kind: "again", with: "live" });
  }

  async open(view, body = {}) {
    try {
      this.show(view, await call("POST", `/api/turns/${view.turn.id}/compare`, body));
    } catch (problem) {
      notify(problem.message);
    }
  }

  async resume(id, get) {
    try {
      const pair = await call("GET", `/api/comparisons/${id}`);
      if (get(pair.first.id)) this.show(get(pair.first.id), pair, { focus: false });
    } catch {
      // Closed in another window.
    }
  }

  show(view, pair, { focus = true } = {}) {
    if (this.shown?.pair.id === pair.id) return;
    this.leave();
    this.shown = new Comparison(view, pair, {
      say: this.say, onChosen: this.onChosen, onGone: (gone) => { if (this.shown === gone) this.shown = null; },
    });
    if (!focus) return;
    this.shown.part("comparison-title").focus();
    this.shown.element.scrollIntoView({ block: "nearest" });
    this.say(gettext("Another answer is being written beside this one."));
  }

  // The conversation goes on as it is.
  leave() {
    this.offer.hidden = true;
    this.shown?.close({ focus: false });
  }
}
