// Writing what one wanted instead: begins with the reply, and shows what is changed, word by word.

let loading = null;

// Half of the chat page's other scripts together: fetched when somebody first corrects a reply.
function differ(url) {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = url;
    script.addEventListener("load", () => resolve(window.Diff));
    script.addEventListener("error", reject);
    document.head.append(script);
  });
  return loading;
}

export function watchCorrection(strip, reply) {
  const details = strip.querySelector("details");
  const box = strip.elements.correction;
  const shown = strip.querySelector(".changes");
  box.defaultValue = reply; // there before the field opens: who types at once writes over it
  box.defaultValue = box.value; // line ends as the field gives them back
  details.addEventListener("toggle", () => { if (details.open) paint(); });
  box.addEventListener("input", paint);

  async function paint() {
    try {
      const { diffWordsWithSpace } = await differ(shown.dataset.diff);
      const parts = diffWordsWithSpace(reply, box.value).map(({ value, added, removed }) => {
        const part = document.createElement(added ? "ins" : removed ? "del" : "span");
        part.textContent = value;
        return part;
      });
      shown.replaceChildren(...parts);
      shown.hidden = box.value === box.defaultValue;
    } catch {
      shown.hidden = true; // the correction itself does not need it
    }
  }
}

// What was written instead; nothing when the reply stands there unchanged.
export function correctionIn(strip) {
  const { value, defaultValue } = strip.elements.correction;
  return value.trim() === defaultValue.trim() ? "" : value.trim();
}
