// Turns as the server has them now: one, asked for after a nudge; the newest, after a break; those
// before the ones on the page, when somebody asks for them.

import { call, page } from "./api.js";
import { complain } from "./notices.js";
import { ending } from "./turn.js";

const newest = new Map(); // by the turn's id; answers may overtake each other

// Into the thread, unless a vote has been on its way meanwhile: the answer may be older than that.
export async function refetch(id, thread, taken) {
  const asked = Symbol(id);
  newest.set(id, asked);
  const rating = thread.ratings.get(thread.get(id));
  const answered = rating?.answered;
  try {
    const turn = await call("GET", `/api/turns/${encodeURIComponent(id)}`);
    if (newest.get(id) !== asked) return;
    if (rating?.sent !== answered) {
      await rating.last;
      refetch(id, thread, taken);
    } else {
      taken(turn);
    }
  } catch { /* the receipt stays as it was; the next nudge tries again */ }
}

// Nudges may have been missed: those on the page as they are now, and those written elsewhere.
export async function resync(session, thread, taken) {
  const answered = new Map([...thread.ratings].map(([view, rating]) => [view, rating.answered]));
  try {
    const { turns } = await call("GET", `/api/sessions/${encodeURIComponent(session)}?last=40`);
    for (const turn of turns) {
      const view = thread.get(turn.id);
      const wasUnfinished = view?.isUnfinished;
      if (!view) taken(turn);
      else if (thread.ratings.get(view)?.sent === answered.get(view)) view.update(turn);
      else refetch(turn.id, thread, taken); // a vote has been on its way meanwhile
      if (wasUnfinished && !view.isUnfinished) thread.say(ending(view.turn)); // the socket will not
    }
  } catch { /* the rows will be asked again at the next nudge or reload */ }
}

// What is being read stays where it is.
export function watchEarlier({ place, thread, scroller, say }) {
  const button = place.querySelector("button");
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      const fetched = document.createElement("template");
      fetched.innerHTML = await page(`/parts/earlier/${thread.views[0].turn.id}/`); // our own template
      const turns = JSON.parse(fetched.content.querySelector("script").textContent);
      const box = fetched.content.querySelector("div");
      const below = scroller.scrollHeight - scroller.scrollTop;
      thread.prepend(turns, box.childNodes);
      place.hidden = !("more" in box.dataset);
      scroller.scrollTop = scroller.scrollHeight - below;
      say(gettext("Earlier messages are shown."));
    } catch (problem) {
      complain(problem);
    } finally {
      button.disabled = false;
      if (place.hidden) scroller.focus({ preventScroll: true });
      else button.focus({ preventScroll: true });
    }
  });
}
