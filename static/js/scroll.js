// The thread follows the text at its end, until the user scrolls up; sending pins it again.

import { withNextPicture } from "./pictures.js";

const NEAR = 48;

export class Follow {
  constructor(thread, pill) {
    this.thread = thread;
    this.pill = pill;
    this.pinned = true;
    thread.addEventListener("wheel", (event) => { if (event.deltaY < 0) this.unpin(); }, { passive: true });
    thread.addEventListener("touchmove", () => this.look(), { passive: true });
    thread.addEventListener("keydown", (event) => {
      if (["PageUp", "ArrowUp", "Home"].includes(event.key)) this.unpin();
    });
    thread.addEventListener("scroll", () => this.look(), { passive: true });
    pill.addEventListener("click", () => { this.pin(); thread.focus({ preventScroll: true }); });
    this.follow = this.follow.bind(this);
    new ResizeObserver(this.follow).observe(thread);
  }

  distance() {
    const { scrollHeight, scrollTop, clientHeight } = this.thread;
    return scrollHeight - scrollTop - clientHeight;
  }

  look() {
    const { scrollTop } = this.thread;
    const down = scrollTop > (this.last ?? 0);
    this.last = scrollTop;
    // Smooth scrolling starts with small steps: on the way up, being near the end pins nothing.
    if (down && this.distance() <= NEAR) this.pinned = true;
    else if (!down && this.distance() > NEAR) this.pinned = false;
    this.pill.hidden = this.pinned;
  }

  unpin() {
    if (this.thread.scrollHeight <= this.thread.clientHeight) return;
    this.pinned = false;
    this.pill.hidden = false;
  }

  pin() {
    this.pinned = true;
    this.pill.hidden = true;
    this.follow();
  }

  // With the next picture: to look at the height at every token would lay the page out each time.
  soon() {
    withNextPicture(this.follow);
  }

  // An empty chat is read from its beginning.
  follow() {
    if (this.pinned && this.thread.querySelector(".turn")) this.thread.scrollTop = this.thread.scrollHeight;
  }
}
