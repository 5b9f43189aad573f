// One websocket for the page, opened again for as long as the page lives. Fires "message" and "state".

const LONGEST = 30_000;
const SIGNED_OUT = 4401;
const WRONG_ORIGIN = 4403;

class Connection extends EventTarget {
  constructor(path) {
    super();
    this.path = path;
    this.tries = 0;
    this.isOpen = false;
    this.retryAt = 0;
    this.stayed = false;
    addEventListener("online", () => this.now());
    addEventListener("offline", () => this.socket?.close());
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) this.now();
    });
    this.open();
  }

  open() {
    clearTimeout(this.timer);
    this.timer = null;
    const url = new URL(this.path, location.href);
    url.protocol = url.protocol.replace("http", "ws");
    const socket = new WebSocket(url);
    this.socket = socket;
    socket.onopen = () => {
      this.isOpen = true;
      // The server accepts before it refuses: only a socket that stays counts as a success.
      this.settled = setTimeout(() => { this.tries = 0; this.stayed = true; }, 3000);
      this.fire("open");
    };
    socket.onmessage = (event) => {
      this.dispatchEvent(new CustomEvent("message", { detail: JSON.parse(event.data) }));
    };
    socket.onclose = (event) => {
      if (socket === this.socket) this.closed(event.code);
    };
  }

  closed(code) {
    this.isOpen = false;
    clearTimeout(this.settled);
    // One that stayed asks once more: another tab may have changed the password, and be signed in anew.
    const asksAgain = code === SIGNED_OUT && this.stayed;
    this.stayed = false;
    if (!asksAgain && (code === SIGNED_OUT || code === WRONG_ORIGIN)) {
      this.fire(code === SIGNED_OUT ? "signed_out" : "refused");
      return;
    }
    const delay = Math.min(LONGEST, 500 * 2 ** this.tries) * (0.75 + Math.random() / 2);
    this.tries += 1;
    this.retryAt = Date.now() + delay;
    this.timer = setTimeout(() => this.open(), delay);
    this.fire("closed");
  }

  now() {
    if (this.timer) this.open();
  }

  send(message) {
    if (!this.isOpen || this.socket.readyState !== WebSocket.OPEN) return false;
    this.socket.send(JSON.stringify(message));
    return true;
  }

  fire(state) {
    this.dispatchEvent(new CustomEvent("state", { detail: state }));
  }
}

export const connection = new Connection(document.body.dataset.socket);

// What the server nudges about goes to whoever shows it.
connection.addEventListener("message", ({ detail }) => {
  if (detail.type === "changed") {
    document.dispatchEvent(new CustomEvent("changed", { detail }));
  }
});

// The browser's own name for a message, by which the server knows one that is sent again.
export function newId() {
  // randomUUID exists on https and localhost only
  return crypto.randomUUID?.() ?? [...crypto.getRandomValues(new Uint32Array(4))].join("-");
}
