// Turns before those on the page, fetched when asked for. What is being read stays where it is.

import { page } from "./api.js";
import { complain } from "./notices.js";

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
