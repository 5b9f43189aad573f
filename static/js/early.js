// What is pressed before the scripts of a page are there waits for them: no thumb goes nowhere. The
// only classic script: it hears from the first button on, and modules run once the page is read.

{
  const pressed = new Set(); // again and again, as nothing seems to happen, means once
  const hold = (event) => {
    const button = event.target.closest("button");
    const goesByItself = button?.type === "submit" && (button.form?.method ?? "dialog") !== "dialog";
    if (!button || goesByItself) return;
    event.stopImmediatePropagation(); // some of them may be there: it would come twice
    pressed.add(button);
  };
  addEventListener("click", hold, true);
  addEventListener("DOMContentLoaded", () => { // all of them have run
    removeEventListener("click", hold, true);
    for (const button of pressed) if (button.isConnected) button.click();
  });
}
