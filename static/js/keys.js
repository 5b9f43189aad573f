// Keys of the thread. Letters work only where a reply has the focus, so that none is pressed by
// accident or by voice: Alt+↑ and Alt+↓ go from reply to reply, there u and d rate, c corrects.

export function watchKeys(thread, root) {
  root.addEventListener("keydown", (event) => {
    if (event.isComposing || event.ctrlKey || event.metaKey) return;
    const at = thread.views.findIndex(({ article }) => article.contains(document.activeElement));
    if (event.altKey) {
      const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
      if (!step) return;
      const next = thread.views[at < 0 ? thread.views.length - 1 : at + step];
      if (next) go(next);
      else if (at >= 0 && step > 0) document.getElementById("say").focus();
      event.preventDefault();
      return;
    }
    if (at < 0 || event.target.matches("input, textarea, select")) return;
    const view = thread.views[at];
    if (view.part("up").hidden) return; // it cannot be rated
    const act = {
      u: () => view.part("up").click(),
      d: () => view.part("down").click(),
      c: () => thread.ratings.get(view).correct(),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
}

function go(view) {
  view.article.focus();
  view.article.scrollIntoView({ block: "nearest" });
}
