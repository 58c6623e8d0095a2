// Hears what happens, and hears on after an interruption. The browser resumes by itself, from the
// number of the last event that it got; only where it has given up is the connection made anew.

const AGAIN_MS = 3000;

export class Live {
  constructor(heard, lost) {
    this.heard = heard;
    this.lost = lost;
    this.source = null;
    this.timer = null;
  }

  start(seq) {
    this.stop();
    const source = (this.source = new EventSource(`api/events?after=${seq}`));
    for (const name of ["message", "typing", "access", "reset"]) {
      source.addEventListener(name, (event) => this.heard(name, JSON.parse(event.data)));
    }
    source.addEventListener("open", () => this.lost(false));
    source.addEventListener("error", () => {
      this.lost(true);
      if (source.readyState === EventSource.CLOSED && this.source === source) {
        this.timer = setTimeout(() => this.heard("reset", {}), AGAIN_MS);
      }
    });
  }

  stop() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }
}
