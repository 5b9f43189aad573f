// A turn as the server has it now, asked for after a nudge.

import { call } from "./api.js";

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
