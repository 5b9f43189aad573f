// <time> elements in the reader's own words: relative, with the exact time on hover. After "since"
// it is the exact one (data-exact), among what happened within minutes the clock's (data-clock).

const relative = new Intl.RelativeTimeFormat(document.documentElement.lang, { numeric: "auto" });
const exact = new Intl.DateTimeFormat(document.documentElement.lang, {
  dateStyle: "medium", timeStyle: "medium",
});
const clock = new Intl.DateTimeFormat(document.documentElement.lang, { timeStyle: "medium" });
const DAY = 86_400;
const UNITS = [["hour", 3600], ["minute", 60]];

export function paintTimes(root) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const at = new Date(element.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    element.title = exact.format(at);
    element.textContent = worded(at, element.dataset);
  }
}

function worded(at, asked) {
  if ("exact" in asked) return exact.format(at);
  return "clock" in asked ? clock.format(at) : ago(at);
}

function ago(at) {
  const seconds = (at - Date.now()) / 1000;
  if (Math.abs(seconds) >= DAY) return relative.format(dayOf(at) - dayOf(new Date()), "day");
  for (const [unit, size] of UNITS) {
    if (Math.abs(seconds) >= size) return relative.format(Math.trunc(seconds / size), unit);
  }
  return gettext("just now");
}

// By the calendar: what is 47 hours ago is two nights ago, and not "yesterday".
function dayOf(time) {
  return Date.UTC(time.getFullYear(), time.getMonth(), time.getDate()) / 1000 / DAY;
}
