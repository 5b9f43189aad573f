// One chart as large as the window, in a dialog. Esc, its button or a link back gives it to its place again.

import { keep, state } from "./chart_state.js";

const dialog = document.getElementById("full-chart");

// `place` puts every chart where the state says; `draw` draws one anew.
export function watchFull(figures, { place, draw }) {
  const button = ({ element }) => element.querySelector("[data-full]");

  function show() {
    const figure = figures.find(({ key }) => key === state.full);
    if (!figure || figure.element.hidden) return; // not measured in this job
    dialog.append(figure.element);
    dialog.setAttribute("aria-labelledby", figure.element.getAttribute("aria-labelledby"));
    button(figure).textContent = dialog.dataset.close;
    dialog.showModal();
    button(figure).focus();
    draw(figure);
  }

  dialog.addEventListener("close", () => {
    const figure = figures.find(({ element }) => dialog.contains(element));
    keep({ full: "" });
    place();
    if (!figure) return;
    button(figure).textContent = dialog.dataset.open;
    button(figure).focus();
    draw(figure);
  });

  document.addEventListener("click", ({ target }) => {
    if (target === dialog) return dialog.close(); // beside the chart
    const figure = figures.find((each) => button(each) === target);
    if (!figure) return;
    if (dialog.open) return dialog.close();
    keep({ full: figure.key });
    show();
  });
  show();
}
