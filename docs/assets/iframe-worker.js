/* A page opened from disk may not start a worker. Run the script of the search in a frame then. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.appendChild(frame);
      this.frame = frame.contentWindow;
      const inside = this.frame.document;
      this.frame.importScripts = (...urls) =>
        Promise.all(urls.map((each) => load(inside, each)));
      this.frame.postMessage = undefined;
      this.frame.parentPort = this;
      Object.defineProperty(this.frame, "postMessage", {
        value: (data) => this.answer(data),
      });
      load(inside, url).then(() => {
        this.ready = true;
        this.waiting.splice(0).forEach((data) => this.send(data));
      });
    }
    postMessage(data) {
      if (this.ready) this.send(data);
      else this.waiting.push(data);
    }
    send(data) {
      this.frame.dispatchEvent(new this.frame.MessageEvent("message", { data }));
    }
    answer(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    }
    terminate() {
      this.frame.frameElement.remove();
    }
  };
  var load = (inside, url) =>
    new Promise((done, failed) => {
      const script = inside.createElement("script");
      script.src = url;
      script.onload = done;
      script.onerror = failed;
      inside.documentElement.appendChild(script);
    });
}
