// The list of chats: search, and each chat's menu (rename, pin, keep out of training, delete).

import { call } from "./api.js";
import { complain, notify } from "./notices.js";
import { refresh } from "./parts.js";

const PAUSE = 250; // ms after the last letter before the list is asked for

export function watchSessions({ root, list, find }) {
  const showDrawer = watchDrawer(root);
  let timer = null;
  let sought = false; // what is found is on its way
  find.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && find.value) event.stopPropagation(); // it empties it, and stops no reply
  });
  find.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      sought = true;
      askFor(list, { q: find.value.trim(), show: "" });
    }, PAUSE);
  });
  let known = null; // how many there are, while older ones are on their way
  list.addEventListener("click", ({ target }) => {
    if (!target.dataset.show) return;
    known = list.querySelectorAll("[data-session]").length;
    askFor(list, { show: target.dataset.show });
  });
  document.addEventListener("part", ({ detail }) => {
    if (detail !== list) return;
    if (sought) document.getElementById("status").textContent = list.querySelector("[data-found]")?.textContent ?? "";
    sought = false;
    if (known && list.contains(document.activeElement)) list.querySelectorAll("[data-session] > a")[known]?.focus();
    known = null;
  });

  const acts = {
    rename: (item) => openRename(item),
    pin: (item, value) => patch(item, { pinned: value === "true" }),
    lock: (item, value) => patch(item, { locked: value === "true" }),
    delete: (item) => remove(item),
  };

  list.addEventListener("click", (event) => {
    const button = event.target.closest("[data-act]");
    if (!button) return;
    const item = button.closest("[data-session]");
    item.querySelector("a").focus({ preventScroll: true }); // the closed menu would take the focus along
    item.querySelector(".row-menu").open = false;
    acts[button.dataset.act](item, button.dataset.value);
  });
  list.addEventListener("toggle", ({ target }) => {
    if (!target.open) return;
    for (const other of list.querySelectorAll(".row-menu[open]")) if (other !== target) other.open = false;
  }, true);
  list.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    const menu = event.target.closest(".row-menu");
    const form = event.target.closest(".rename");
    if (menu?.open || form) event.stopPropagation(); // it stops no reply, and the drawer stays
    if (menu?.open) { menu.open = false; menu.querySelector("summary").focus(); }
    if (form) closeRename(form.closest("[data-session]"));
  });
  list.addEventListener("submit", (event) => {
    event.preventDefault();
    const item = event.target.closest("[data-session]");
    const title = event.target.elements.title.value;
    if (title.trim()) item.querySelector(".title").textContent = title;
    closeRename(item); // the list does not come anew while somebody writes in it
    patch(item, { title });
  });
  document.addEventListener("click", ({ target }) => {
    for (const menu of list.querySelectorAll(".row-menu[open]")) if (!menu.contains(target)) menu.open = false;
  });

  function openRename(item) {
    item.querySelector("a").hidden = true;
    const form = item.querySelector(".rename");
    form.hidden = false;
    form.elements.title.select();
    form.elements.title.focus();
  }

  function closeRename(item) {
    item.querySelector(".rename").hidden = true;
    item.querySelector("a").hidden = false;
    item.querySelector("a").focus();
  }

  // Who was at a chat that goes is at the one beside it then, not at the top of the page.
  function leave(item) {
    if (!item.contains(document.activeElement)) return;
    const all = [...list.querySelectorAll("[data-session]")];
    const at = all.indexOf(item);
    ((all[at + 1] ?? all[at - 1])?.querySelector("a") ?? find).focus({ preventScroll: true });
  }

  async function patch(item, values) {
    try {
      const session = await call("PATCH", address(item.dataset.session), values);
      if (session.id === root.dataset.session) nameChat(session.title);
      if ("locked" in values) {
        notify(session.locked ? gettext("This chat is kept out of training.") : gettext("This chat may train your agent."));
      }
    } catch (problem) {
      complain(problem);
    }
    refresh(list);
  }

  async function remove(item) {
    const id = item.dataset.session;
    let versions = [];
    try {
      ({ versions } = await call("GET", `/api/agent/chats/${encodeURIComponent(id)}`));
      await call("DELETE", address(id));
    } catch (problem) {
      complain(problem);
      return;
    }
    leave(item);
    item.hidden = true;
    const restore = async () => {
      try {
        await call("POST", `${address(id)}/restore`, {});
        if (id === root.dataset.session) location.reload();
      } catch (problem) {
        complain(problem);
      }
      refresh(list);
    };
    if (id === root.dataset.session) {
      showDrawer(false); // it would lie over what the chat now says
      close(root, deleted(versions), restore);
    } else {
      notify(deleted(versions, item), { label: gettext("Undo"), act: restore });
    }
    refresh(list);
  }
}

// The open chat's name, where the browser shows it and as the page's heading.
export function nameChat(title) {
  document.title = [title, "clawweb"].filter(Boolean).join(" · ");
  document.querySelector("h1").textContent = title || gettext("Chat");
}

// The list as its address asks for it from now on: with these words, so many of them, this one open.
export function askFor(list, values) {
  const url = new URL(list.dataset.part, location.href);
  for (const [name, value] of Object.entries(values)) {
    if (value) url.searchParams.set(name, value);
    else url.searchParams.delete(name);
  }
  list.dataset.part = url.pathname + url.search;
  refresh(list);
}

// On a narrow screen the list is a drawer: the button opens it; Esc or a touch beside it closes it.
function watchDrawer(root) {
  const toggle = document.getElementById("side-toggle");
  const set = (open) => {
    root.classList.toggle("side-open", open);
    toggle.setAttribute("aria-expanded", String(open));
  };
  toggle.addEventListener("click", () => {
    set(!root.classList.contains("side-open"));
    if (root.classList.contains("side-open")) root.querySelector(".side a").focus();
  });
  document.getElementById("thread").addEventListener("pointerdown", () => set(false));
  root.querySelector(".side").addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !root.classList.contains("side-open")) return;
    event.stopPropagation(); // it stops no reply
    set(false);
    toggle.focus();
  });
  return set;
}

// The open chat is deleted: what is left of it is only to be looked at, and says so. A notice in the
// corner would lie over that.
function close(root, words, restore) {
  const gone = document.getElementById("gone");
  const undo = gone.querySelector("button");
  root.classList.add("is-deleted");
  for (const part of root.querySelectorAll(".thread, .composer")) part.inert = true;
  gone.querySelector("span").textContent = words;
  document.getElementById("status").textContent = words; // for who does not see it
  gone.hidden = false;
  undo.addEventListener("click", restore);
  undo.focus();
}

function deleted(versions, item) { // by its name where it is not the open one: there may be several such notices
  const gone = item ? interpolate(gettext("“%s” is deleted."), [item.querySelector(".title").textContent]) : gettext("The chat is deleted.");
  const names = versions.map((number) => `v${number}`).join(", ");
  return names ? `${gone} ${interpolate(gettext("What %s learned from it stays in there: see My agent."), [names])}` : gone;
}

const address = (id) => `/api/sessions/${encodeURIComponent(id)}`;
