// One turn on the page: made from the template or taken over from the server's HTML, then kept true.

import { withNextPicture } from "./pictures.js";
import { paintReceipt, paintWhy } from "./receipt.js";

const UNFINISHED = ["sending", "pending", "streaming"];

export class TurnView {
  constructor(article, turn) {
    this.article = article;
    this.shown = 0; // characters (code points) of the reply on the page, as the server counts them
    this.late = ""; // what of them the next frame paints
    this.update(turn);
  }

  static blank() {
    const template = document.getElementById("turn-template");
    return template.content.firstElementChild.cloneNode(true);
  }

  part(name) {
    return this.article.querySelector(`.${name}`);
  }

  get isUnfinished() {
    return UNFINISHED.includes(this.turn.state);
  }

  update(turn) {
    const was = this.turn;
    // An answer that a newer one has overtaken: a finished reply does not begin again.
    if (was && was.id === turn.id && !this.isUnfinished && UNFINISHED.includes(turn.state)) return;
    this.turn = turn;
    this.article.id = turn.id;
    this.article.dataset.state = turn.state;
    this.article.toggleAttribute("data-fallback", Boolean(turn.fallback));
    this.part("said-text").textContent = turn.text;
    this.part("unsent").hidden = true;
    this.part("version").textContent = namesNobody(turn) ? "" : versionText(turn);
    this.part("version").title = turn.adapter ?? "";
    this.part("prompted").textContent = promptedText(turn.prompted_hints?.length ?? 0);
    this.paintReply(turn, was);
    this.paintTrouble(turn);
    this.paintSiblings(turn);
    this.paintVote(turn);
    paintReceipt(this.part("receipt"), turn.receipt);
  }

  paintReply(turn, was) {
    const reply = this.part("reply");
    const length = Array.from(turn.reply).length;
    if (!this.isUnfinished || length >= this.shown) this.late = ""; // it is in what is painted now
    if (!this.isUnfinished) {
      if (turn.html !== was?.html || !was) reply.innerHTML = turn.html ?? ""; // sanitized by the server
      reply.classList.toggle("plain", turn.html === null);
      for (const block of reply.querySelectorAll(":scope pre")) addCopy(block);
      this.shown = length;
    } else if (length >= this.shown) {
      reply.classList.add("plain");
      reply.textContent = turn.reply;
      this.shown = length;
    }
    this.part("waiting").hidden = !(this.isUnfinished && this.shown === 0);
  }

  // How many replies are begun before this one; null once it is begun itself.
  showPlace(before) {
    let words = gettext("Thinking");
    if (before === 0) words = gettext("Yours is the next reply");
    if (before > 0) {
      words = interpolate(ngettext("%s reply before yours", "%s replies before yours", before), [before]);
    }
    this.part("place").textContent = words;
  }

  // Text that arrived, up to `cursor`. False when something before it is missing.
  append(cursor, text) {
    if (!this.isUnfinished || cursor <= this.shown) return true;
    const points = Array.from(text);
    const start = cursor - points.length;
    if (start > this.shown) return false;
    if (!this.late) withNextPicture(() => this.paintLate());
    this.late += points.slice(this.shown - start).join("");
    this.shown = cursor;
    this.turn.state = "streaming";
    this.article.dataset.state = "streaming";
    return true;
  }

  // One node and one layout for all that came since the last picture.
  paintLate() {
    if (!this.late) return;
    const reply = this.part("reply");
    if (reply.lastChild?.nodeType === Node.TEXT_NODE) reply.lastChild.appendData(this.late);
    else reply.append(this.late);
    this.late = "";
    this.part("waiting").hidden = true;
  }

  paintTrouble(turn) {
    const trouble = this.part("trouble");
    const words = {
      failed: turn.error || gettext("No reply came. Your message is kept."),
      interrupted: turn.error || gettext("The reply was cut off. What had arrived is kept."),
      stopped: gettext("You stopped this reply."),
    };
    let text = words[turn.state] ?? "";
    if (turn.state === "complete" && turn.finish_reason === "length") {
      text = gettext("The reply reached its longest length and was cut there.");
    }
    trouble.textContent = text;
    trouble.hidden = !text;
    const isTooLong = turn.error_code === "context_length_exceeded"; // and would be so again
    this.part("retry").hidden = isTooLong || !["failed", "interrupted"].includes(turn.state);
    this.part("again").hidden = isTooLong;
    const canRate = !this.isUnfinished && turn.reply !== "" && turn.recorded !== false;
    for (const name of ["up", "down"]) this.part(name).hidden = !canRate;
    this.part("copy").hidden = turn.reply === "";
    this.part("edit").hidden = this.isUnfinished || !turn.text || Boolean(this.part("edit-form"));
  }

  paintSiblings(turn) {
    const place = this.part("siblings");
    const ids = turn.siblings ?? [];
    const key = [turn.session, turn.id, ...ids].join(" ");
    if (place.dataset.key === key) return; // who is at one of the links stays there
    place.dataset.key = key;
    place.replaceChildren();
    if (ids.length < 2) return;
    const at = ids.indexOf(turn.id);
    place.append(
      this.siblingLink(turn, ids[at - 1], "‹", gettext("Earlier answer")),
      document.createTextNode(`${at + 1}/${ids.length}`),
      this.siblingLink(turn, ids[at + 1], "›", gettext("Later answer")),
    );
  }

  siblingLink(turn, id, sign, name) {
    const link = document.createElement(id ? "a" : "span");
    link.textContent = sign;
    if (id) {
      link.href = `/chat/${turn.session}/?turn=${id}`;
      link.setAttribute("aria-label", name);
    } else {
      link.setAttribute("aria-hidden", "true");
    }
    return link;
  }

  paintVote(turn) {
    const value = turn.feedback?.value ?? null;
    this.part("up").setAttribute("aria-pressed", String(value === 1));
    this.part("down").setAttribute("aria-pressed", String(value === -1));
    this.part("why").hidden = value !== -1 || Boolean(this.part("strip"));
    paintWhy(this.part("why"), turn.feedback);
  }
}

function addCopy(block) {
  if (block.parentElement.classList.contains("code")) return;
  const frame = document.createElement("div");
  frame.className = "code";
  const button = document.createElement("button");
  button.type = "button";
  button.className = "small copy-code";
  button.textContent = gettext("Copy");
  block.replaceWith(frame);
  frame.append(block, button);
}

// Before it is known who answers; and of a reply that never came.
function namesNobody({ state, reply, version }) {
  return UNFINISHED.includes(state) ? !version : !reply && state !== "complete";
}

export function versionText(turn) {
  if (turn.blind) return "";
  if (turn.fallback) {
    return interpolate(gettext("base model answered: %s"), [turn.fallback]);
  }
  if (turn.trial) return interpolate(gettext("v%s, on trial"), [turn.version]);
  return turn.version ? `v${turn.version}` : gettext("base model");
}

// What a screen reader hears when a reply has ended.
export function ending(turn) {
  if (turn.state === "stopped") return gettext("Stopped.");
  if (turn.state !== "complete") return gettext("The reply was cut off.");
  const words = turn.reply.split(/\s+/).filter(Boolean).length;
  return interpolate(ngettext("Answer ready, %s word.", "Answer ready, %s words.", words), [words]);
}

function promptedText(count) {
  if (!count) return "";
  return interpolate(ngettext("reminded of %s note", "reminded of %s notes", count), [count]);
}
