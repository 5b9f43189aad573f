// The question before a job is stopped: go on, keep what it has, or throw it away. It stands beside the parts, which come and go.

const dialog = document.getElementById("stop-job");
let asked = ""; // the job's id

document.addEventListener("click", ({ target }) => {
  const button = target.closest("[data-stop]");
  if (!button) return;
  const { stop, name } = button.dataset;
  asked = stop;
  document.getElementById("stop-job-name").textContent = name;
  dialog.querySelector("[data-keep]").hidden = !("keeps" in button.dataset);
  document.getElementById("stop-keep").dataset.post = `/api/jobs/${stop}/finish`;
  document.getElementById("stop-discard").dataset.post = `/api/jobs/${stop}/cancel`;
  dialog.showModal();
});

dialog.addEventListener("click", ({ target }) => {
  // What posts does so by itself (shell.js); a click beside the box is a click on the dialog.
  if (target === dialog || target.closest("button")) dialog.close();
});

// What opened it may have come anew meanwhile; the browser then gives the focus to nothing.
dialog.addEventListener("close", () => {
  const { activeElement } = document;
  if (activeElement !== document.body && !dialog.contains(activeElement)) return;
  document.querySelector(`[data-stop="${asked}"]`)?.focus();
});
