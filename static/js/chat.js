// The chat page: what the socket says goes into the thread; what the user does goes into the socket.

import { Composer, draftKey, toTheBox } from "./composer.js";
import { watchKeys } from "./keys.js";
import { notify } from "./notices.js";
import { refetch, resync, watchEarlier } from "./refetch.js";
import { Follow } from "./scroll.js";
import { askFor, nameChat, watchSessions } from "./sessions.js";
import { connection, newId } from "./socket.js";
import { Thread } from "./thread.js";
import { ending } from "./turn.js";

const root = document.getElementById("chat");
const status = document.getElementById("status");
const sessions = document.getElementById("sessions");
const follow = new Follow(document.getElementById("thread"), document.getElementById("to-end"));
const unsent = new Map(); // client_id -> {message, view, wasSent}
const asked = new Map(); // client_id -> what takes a reply's place, until it is known to have arrived

const say = (words) => { status.textContent = words; };
const thread = new Thread(document.getElementById("turns"), {
  say, onAgain: regenerate, onEdit: edit, onLost: (words) => composer.putBack(words),
});
const composer = new Composer(document.getElementById("composer"), {
  key: () => draftKey(root.dataset.user, root.dataset.session || ("temporary" in root.dataset && "temporary")),
  onSend: send,
});
// What follows from the turns as they are now.
const settled = () => { composer.busy(Boolean(thread.running())); thread.showMemory(); };

// A second reply would take the place of the first, and of what is said below it.
function mustWait() {
  const must = asked.size > 0 || thread.running();
  if (must) notify(gettext("Wait for the reply, or stop it first."));
  return must;
}

function send(text) {
  if (mustWait()) return false;
  thread.closeStrips();
  const message = {
    type: "send", session: root.dataset.session || null, text, client_id: newId(),
  };
  if ("temporary" in root.dataset) message.temporary = true;
  const parent = thread.last();
  if (parent) message.parent = parent.turn.id;
  const view = thread.addUnsent(text);
  const entry = { message, view, wasSent: connection.send(message) };
  unsent.set(message.client_id, entry);
  if (!entry.wasSent) thread.markUnsent(view);
  document.getElementById("welcome").hidden = true;
  composer.busy(true);
  follow.pin();
  return true;
}

async function regenerate(turnId) {
  // The reply leaves the page, and with it what is being said of it.
  if (mustWait() || !await thread.closeStrips() || mustWait()) return;
  ask({ type: "regenerate", turn: turnId, client_id: newId() });
}

function edit(turnId, text) {
  if (mustWait()) return false;
  const wasSent = ask({ type: "send", edits: turnId, text, client_id: newId() });
  if (wasSent) thread.closeStrips(); // their replies leave the page
  return wasSent;
}

function ask(message) {
  const wasSent = connection.send(message);
  if (wasSent) asked.set(message.client_id, message);
  else notify(gettext("There is no connection. Try again in a moment."));
  return wasSent;
}

// What did not get through goes back into the box.
function takeBack(clientId) {
  const { view, message } = unsent.get(clientId);
  unsent.delete(clientId);
  thread.remove(view);
  composer.putBack(message.text);
  document.getElementById("welcome").hidden = thread.views.length > 0;
  settled();
}

function stop() {
  const view = thread.running();
  if (!view) return;
  const [waiting] = [...unsent].find(([, entry]) => entry.view === view && !entry.wasSent) ?? [];
  if (waiting) {
    takeBack(waiting);
    return say(gettext("Stopped."));
  }
  view.isUnwanted = !view.turn.id && connection.isOpen; // it has no id yet: stopped once it has
  if (view.isUnwanted || connection.send({ type: "stop", turn: view.turn.id })) say(gettext("Stopping."));
  else notify(gettext("There is no connection, so the reply cannot be stopped now."));
  return undefined;
}

const followReply = (view) => connection.send({ type: "follow", turn: view.turn.id, cursor: view.shown });

const handlers = {
  turn({ turn, session, client_id: clientId }) {
    const entry = unsent.get(clientId);
    unsent.delete(clientId);
    asked.delete(clientId);
    if (!root.dataset.session) enter(session);
    if (turn.session !== root.dataset.session) return;
    history.replaceState(null, "", `/chat/${turn.session}/`); // it may name another reply
    thread.place(turn, entry?.view);
    settled();
    follow.pin();
    if (entry?.view.isUnwanted) stop();
    else say(gettext("The agent is answering."));
  },
  queue({ turn, before }) {
    thread.get(turn)?.showPlace(before);
  },
  delta({ turn, cursor, text }) {
    const view = thread.get(turn);
    if (view && !view.append(cursor, text)) followReply(view);
    follow.soon();
  },
  done({ turn }) {
    const view = thread.get(turn.id);
    if (!view) return;
    view.update(turn);
    settled();
    follow.follow();
    say(ending(turn));
  },
  error({ message, client_id: clientId, turn, gone }) {
    const edited = asked.get(clientId)?.text;
    asked.delete(clientId);
    if (unsent.has(clientId)) takeBack(clientId);
    else if (edited) composer.putBack(edited);
    if (gone && thread.cutOff(turn, message)) settled();
    notify(message);
  },
};

function enter(session) {
  composer.forget(); // what is being written meanwhile is of this chat, and of no other new one
  root.dataset.session = session.id;
  composer.keep();
  nameChat(session.title);
  askFor(sessions, { current: session.id });
}

let isBehind = false; // nudges may have been missed
async function opened() {
  for (const entry of unsent.values()) {
    // The same client_id: what had arrived after all makes no second turn.
    entry.wasSent = connection.send(entry.message) || entry.wasSent;
  }
  for (const message of asked.values()) connection.send(message);
  const missed = isBehind && root.dataset.session;
  isBehind = false;
  if (missed) {
    await resync(root.dataset.session, thread, take);
    settled();
  }
  for (const view of thread.unfinished()) followReply(view);
}

function take(turn) {
  if (turn.session !== root.dataset.session || !thread.take(turn)) return;
  settled();
  follow.follow();
}

connection.addEventListener("message", ({ detail }) => handlers[detail.type]?.(detail));
connection.addEventListener("state", ({ detail }) => { if (detail === "open") opened(); else isBehind = true; });
document.addEventListener("changed", ({ detail: { what, id } }) => {
  if (what === "turn" || what === "receipt") refetch(id, thread, take);
  if (what === "adapter") for (const view of thread.learned()) refetch(view.turn.id, thread, take);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !event.isComposing && thread.running()) stop();
});
composer.stopButton.addEventListener("click", stop);
watchSessions({ root, list: sessions, find: document.getElementById("find") });
for (const button of document.querySelectorAll("[data-starter]")) {
  button.addEventListener("click", () => send(button.textContent) && toTheBox()); // it goes
}
watchKeys(thread, root);
watchEarlier({
  place: document.getElementById("earlier"), thread, scroller: document.getElementById("thread"), say,
});
addEventListener("pagehide", () => {
  thread.leave();
  for (const [clientId, { wasSent }] of [...unsent]) if (!wasSent || !connection.isOpen) takeBack(clientId);
});

settled();
if (thread.last()) follow.pin(); // an empty chat is read from its top
if (connection.isOpen) opened();
toTheBox();
