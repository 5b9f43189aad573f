// The turns on the page, in order: one branch of the session.

import { Comparing } from "./comparing.js";
import { rescueEdit, watchEdit } from "./edit.js";
import { Rating } from "./rating.js";
import { paintReceipt } from "./receipt.js";
import { notify } from "./notices.js";
import { refetch } from "./refetch.js";
import { TurnView } from "./turn.js";

export class Thread {
  constructor(element, { say, onAgain, onEdit, onLost }) {
    Object.assign(this, { element, say, onAgain, onEdit, onLost });
    this.views = [];
    this.ratings = new Map();
    this.memory = document.getElementById("memory");
    for (const turn of JSON.parse(document.getElementById("turns-data").textContent)) {
      this.views.push(this.wire(new TurnView(document.getElementById(turn.id), turn)));
    }
    this.comparing = new Comparing({
      say, last: () => this.last(), get: (id) => this.get(id),
      onChosen: (view, turn) => this.exchange(view, turn),
    });
  }

  prepend(turns, nodes) {
    this.element.prepend(...nodes);
    this.views.unshift(...turns.map((turn) => (
      this.wire(new TurnView(document.getElementById(turn.id), turn))
    )));
    this.showMemory();
  }

  // The line above the first turn that the newest one's prompt still holds.
  showMemory() {
    const first = this.get(this.last()?.turn.memory_begins);
    this.memory.hidden = !first?.turn.parent; // nothing was said before it, or it is not shown
    if (!this.memory.hidden && this.memory.nextSibling !== first.article) first.article.before(this.memory);
  }

  wire(view) {
    const rating = new Rating(view, {
      say: this.say, onReceipt: (rated, receipt) => this.showReceipt(rated, receipt),
      onCompare: () => this.comparing.open(view),
    });
    this.ratings.set(view, rating);
    for (const name of ["again", "retry"]) {
      view.part(name).addEventListener("click", () => this.onAgain(view.turn.id));
    }
    view.part("copy").addEventListener("click", () => copy(view.turn.reply, view.part("reply")));
    view.part("reply").addEventListener("click", ({ target }) => {
      const code = target.closest(".copy-code")?.parentElement.querySelector("pre");
      if (code) copy(code.textContent, code);
    });
    watchEdit(view, this.onEdit);
    return view;
  }

  get(id) {
    return this.views.find((view) => view.turn.id === id);
  }

  last() {
    return this.views.at(-1);
  }

  running() {
    return this.views.find((view) => view.isUnfinished);
  }

  unfinished() {
    return this.views.filter((view) => view.isUnfinished && view.turn.id);
  }

  // A reply of a chat that is not there any more: nobody writes it, and it is not asked for again.
  cutOff(id, error) {
    const view = this.unfinished().find(({ turn }) => turn.id === id);
    view?.update({ ...view.turn, state: "interrupted", error });
    return view;
  }

  learned() {
    return this.views.filter((view) => ["learned", "in_training"].includes(view.turn.receipt?.state));
  }

  addUnsent(text) {
    const view = this.wire(new TurnView(TurnView.blank(), {
      id: "", state: "sending", text, reply: "", html: null, version: 0, siblings: [], receipt: null,
      memory_begins: this.last()?.turn.memory_begins,
    }));
    this.element.append(view.article);
    this.views.push(view);
    return view;
  }

  markUnsent(view) {
    const note = view.part("unsent");
    note.textContent = gettext("Not sent yet: it will be, once the connection is back.");
    note.hidden = false;
    view.part("waiting").hidden = true;
  }

  remove(view) {
    rescueEdit(view, this.onLost);
    view.article.remove();
    this.views = this.views.filter((other) => other !== view);
    this.ratings.delete(view);
  }

  // A turn that was opened: after its parent, in the place of what stood there (a sibling, a draft).
  place(turn, draft = undefined) {
    const known = this.get(turn.id);
    if (known) {
      if (draft && draft !== known) this.remove(draft);
      known.update(turn);
      return;
    }
    if (draft) {
      draft.update(turn);
      return;
    }
    const parent = turn.parent ? this.get(turn.parent) : null;
    // What it follows may be among the earlier turns that are not shown; its siblings then tell.
    let from = this.views.findIndex(({ turn: other }) => other.parent === turn.parent);
    if (parent) from = this.views.indexOf(parent) + 1;
    if (from < 0 && turn.parent) return;
    const gone = this.views.slice(Math.max(from, 0));
    const hadFocus = gone.some(({ article }) => article.contains(document.activeElement));
    for (const view of gone) this.remove(view);
    const view = this.wire(new TurnView(TurnView.blank(), turn));
    this.element.append(view.article);
    this.views.push(view);
    if (hadFocus) view.article.focus({ preventScroll: true }); // else it would be nowhere
  }

  // Another answer in the place of one: what followed that one is another branch.
  async exchange(view, turn) {
    await this.ratings.get(view).settle();
    for (const later of this.views.slice(this.views.indexOf(view) + 1)) this.remove(later);
    view.update(turn);
    this.showMemory();
  }

  // A turn as it is now. One that was written elsewhere joins when it continues what is shown.
  take(turn) {
    const view = this.get(turn.id);
    if (view) {
      if (view.isUnfinished && ["pending", "streaming"].includes(turn.state)) return false;
      const was = view.turn.receipt;
      view.update(turn);
      this.showReceipt(view, turn.receipt, was);
      return true;
    }
    if (turn.turn_type !== "main" || this.running() || turn.parent !== (this.last()?.turn.id ?? null)) return false;
    this.place(turn);
    return true;
  }

  // All counted ratings share one count: the newest receipt tells it for all of its kind, given or
  // read by a judge; one of the other kind has to be asked, and another when one is counted no more.
  showReceipt(view, receipt, was = view.turn.receipt) {
    view.turn.receipt = receipt;
    paintReceipt(view.part("receipt"), receipt);
    const counted = this.views.filter(({ turn }) => turn.receipt?.state === "counted");
    if (receipt?.state === "counted") {
      for (const other of counted.filter(({ turn }) => turn.receipt.judged === receipt.judged)) {
        other.turn.receipt = { ...other.turn.receipt, text: receipt.text, count: receipt.count };
        paintReceipt(other.part("receipt"), other.turn.receipt);
      }
      const behind = counted.find(({ turn }) => turn.receipt.count?.have !== receipt.count?.have);
      if (behind) refetch(behind.turn.id, this, (turn) => this.take(turn));
    } else if (was?.state === "counted" && counted.length > 0) {
      refetch(counted[0].turn.id, this, (turn) => this.take(turn));
    }
  }

  // Whether all that was being said of replies is saved; what is not stays open and says so.
  async closeStrips() {
    this.comparing.leave();
    const ratings = [...this.ratings.values()];
    await Promise.all(ratings.map((rating) => rating.done()));
    return ratings.every(({ strip }) => !strip);
  }

  leave() {
    for (const rating of this.ratings.values()) rating.leave();
    for (const view of this.views) rescueEdit(view, this.onLost);
  }
}

async function copy(text, element) {
  try {
    await navigator.clipboard.writeText(text);
    notify(gettext("Copied."));
  } catch {
    getSelection().selectAllChildren(element);
    notify(gettext("Press Ctrl+C to copy what is selected."));
  }
}
