/* Search works in a worker, and browsers start none for a page that was opened from a folder. There
   its script runs in a hidden frame instead: the same messages, the same answers. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<!doctype html>";
      this.ready = new Promise((ready) => {
        frame.addEventListener("load", () => {
          const inside = frame.contentWindow;
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          const script = frame.contentDocument.createElement("script");
          script.src = url;
          script.addEventListener("load", () => ready(inside));
          frame.contentDocument.head.append(script);
        }, { once: true });
      });
      document.documentElement.append(frame);
    }

    async postMessage(data) {
      const inside = await this.ready;
      inside.dispatchEvent(new MessageEvent("message", { data }));
    }
  };
}
