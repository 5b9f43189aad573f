// Two answers to the same words side by side, and the user's verdict.

import { call } from "./api.js";
import { notify } from "./notices.js";
import { connection } from "./socket.js";
import { TurnView, versionText } from "./turn.js";

// One of both answers: a turn without the tools around it.
class Answer extends TurnView {
  update(turn) {
    const was = this.turn;
    this.turn = turn;
    this.article.dataset.state = turn.state;
    this.part("version").textContent = this.isUnfinished && !turn.version ? "" : versionText(turn);
    this.paintReply(turn, was);
    for (const button of this.article.querySelectorAll(".copy-code")) button.remove();
    this.part("trouble").hidden = this.isUnfinished || turn.reply !== "";
    this.part("trouble").textContent = turn.error || gettext("No answer came.");
  }
}

export class Comparison {
  constructor(view, pair, { say, onChosen, onGone }) {
    Object.assign(this, { view, pair, say, onChosen, onGone });
    const template = document.getElementById("comparison-template");
    this.element = template.content.firstElementChild.cloneNode(true);
    const panes = this.element.querySelectorAll(".pane");
    this.names = pair.kind === "blind"
      ? [gettext("Answer A"), gettext("Answer B")] : [gettext("Before"), gettext("Now")];
    this.answers = {};
    pair.order.forEach((which, index) => {
      panes[index].setAttribute("aria-label", this.names[index]);
      panes[index].querySelector(".pane-name").textContent = this.names[index];
      this.answers[which] = new Answer(panes[index], pair[which]);
    });
    this.part("close").addEventListener("click", () => this.close());
    this.element.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || event.isComposing) return;
      event.stopPropagation(); // Esc here does not stop a reply
      this.close();
    });
    this.buttons();
    view.article.classList.add("comparing");
    view.part("compare-place").replaceChildren(this.element);
    this.listen();
    this.paint();
  }

  part(name) {
    return this.element.querySelector(`.${name}`);
  }

  buttons() {
    const [a, b] = this.pair.order;
    const choices = this.pair.kind === "blind"
      ? [[gettext("A is better"), a], [gettext("B is better"), b], [gettext("About the same"), "tie"], [gettext("Both are bad"), "neither"]]
      : [[gettext("Better"), "second"], [gettext("Same"), "tie"], [gettext("Worse"), "first"]];
    this.part("comparison-title").textContent = this.pair.kind === "blind"
      ? gettext("Which answer do you prefer?") : gettext("Is the new answer better?");
    this.part("verdicts").setAttribute("aria-label", this.part("comparison-title").textContent);
    for (const [words, verdict] of choices) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "small";
      button.textContent = words;
      button.addEventListener("click", () => this.decide(verdict));
      this.part("verdicts").append(button);
    }
  }

  // The second answer comes over the page's socket; after a break it is asked for from where it is.
  listen() {
    this.gone = new AbortController();
    const { second } = this.answers;
    const { signal } = this.gone;
    const follow = () => {
      if (second.isUnfinished) connection.send({ type: "follow", turn: second.turn.id, cursor: second.shown });
    };
    connection.addEventListener("message", ({ detail }) => {
      if (detail.type === "delta" && detail.turn === second.turn.id) {
        if (!second.append(detail.cursor, detail.text)) follow();
      } else if (detail.type === "done" && detail.turn.id === second.turn.id && second.isUnfinished) {
        second.update(detail.turn);
        this.paint();
        this.say(second.turn.reply ? gettext("Both answers are there.") : gettext("No answer came."));
      } else if (detail.gone && detail.turn === second.turn.id && second.isUnfinished) {
        second.update({ ...second.turn, state: "failed", reply: "", error: detail.message });
        this.paint();
      }
    }, { signal });
    connection.addEventListener("state", ({ detail }) => { if (detail === "open") follow(); }, { signal });
    follow();
  }

  paint() {
    const { isUnfinished, turn } = this.answers.second;
    this.part("verdicts").hidden = !isUnfinished && turn.reply === ""; // that can only be closed
    for (const button of this.part("verdicts").children) button.disabled = isUnfinished;
  }

  async decide(verdict) {
    for (const button of this.part("verdicts").children) button.disabled = true;
    try {
      this.pair = await call("POST", `/api/comparisons/${this.pair.id}`, { verdict });
    } catch (problem) {
      this.paint();
      notify(problem.message);
      return;
    }
    for (const which of ["first", "second"]) this.answers[which].update(this.pair[which]);
    this.part("verdicts").replaceChildren();
    const result = this.part("comparison-result");
    result.textContent = this.result();
    result.hidden = false;
    this.say(result.textContent);
    this.part("close").textContent = gettext("Done");
    this.part("close").focus();
    if (verdict === "second") {
      this.onChosen(this.view, this.pair.second);
      history.replaceState(null, "", `/chat/${this.pair.second.session}/`); // it may ask for the first one
    } else this.view.update(this.pair.first);
  }

  result() {
    const next = this.pair.verdict === "second"
      ? gettext("The chat goes on from the answer that you chose.")
      : gettext("The chat stays as it was.");
    if (this.pair.kind !== "blind") return next;
    const who = this.pair.order.map((which) => versionText(this.pair[which]));
    return `${interpolate(gettext("A: %s, B: %s."), who)} ${next}`;
  }

  // Away from the page; without a verdict the server forgets it, too.
  async close({ focus = true } = {}) {
    this.gone.abort();
    this.element.remove();
    this.view.article.classList.remove("comparing");
    this.onGone(this);
    if (focus) this.view.part("again").focus();
    if (this.pair.verdict) return;
    try {
      await call("DELETE", `/api/comparisons/${this.pair.id}`);
      this.view.update(await call("GET", `/api/turns/${this.view.turn.id}`));
    } catch (problem) {
      if (problem.status !== 404) notify(problem.message);
    }
  }
}
