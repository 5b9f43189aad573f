// JSON calls to our own API. A refusal becomes a Problem whose message is a sentence for the user.

class Problem extends Error {
  constructor(status, title, detail, request = "") {
    super(detail || title);
    this.request = request; // its id, under which the server's log has it; of errors on its side
    this.status = status;
    this.title = title;
  }
}

function csrfToken() {
  const cookie = document.cookie.split("; ").find((pair) => pair.startsWith("csrftoken="));
  if (cookie) return cookie.slice("csrftoken=".length);
  return document.querySelector("[name=csrfmiddlewaretoken]")?.value ?? "";
}

export async function call(method, url, body = undefined, options = {}) {
  const headers = { Accept: "application/json", "X-CSRFToken": csrfToken() };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(url, {
      method, headers, credentials: "same-origin", cache: "no-store",
      body: body === undefined ? undefined : JSON.stringify(body), ...options,
    });
  } catch {
    throw new Problem(0, "network", gettext("The server cannot be reached. Nothing was changed; try again."));
  }
  if (!response.ok) throw await problemOf(response);
  return response.status === 204 ? null : response.json();
}

async function problemOf(response) {
  if (response.status === 401) {
    return new Problem(401, "signed_out", gettext("You are signed out. Sign in again in another tab."));
  }
  const request = response.status >= 500 ? response.headers.get("X-Request-Id") ?? "" : "";
  try {
    const body = await response.json();
    const detail = typeof body.detail === "string" ? body.detail : "";
    if (response.status === 403 && /csrf/i.test(detail)) {
      return new Problem(403, "csrf", gettext("This page is out of date. Load it again and repeat what you did."));
    }
    return new Problem(response.status, body.title ?? "", detail || body.title || wordsFor(response), request);
  } catch {
    return new Problem(response.status, "", wordsFor(response), request);
  }
}

function wordsFor(response) {
  return interpolate(gettext("The server answered with error %s."), [response.status]);
}

export async function page(url) {
  const response = await fetch(url, { credentials: "same-origin", cache: "no-store" });
  if (!response.ok || response.redirected) throw await problemOf(response);
  return response.text();
}
