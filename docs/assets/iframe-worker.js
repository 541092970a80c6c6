/* A page opened from disk may not start a worker. Its script runs in a frame then: the search. */
if (location.protocol === "file:") {
  const load = (page, url) =>
    new Promise((done, failed) => {
      const script = page.createElement("script");
      script.src = url;
      script.onload = done;
      script.onerror = failed;
      page.documentElement.appendChild(script);
    });

  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const element = document.createElement("iframe");
      element.hidden = true;
      document.documentElement.appendChild(element);
      this.frame = element.contentWindow;
      const page = this.frame.document;
      this.frame.importScripts = (...urls) => Promise.all(urls.map((each) => load(page, each)));
      Object.defineProperty(this.frame, "postMessage", { value: (data) => this.answer(data) });
      this.loaded = load(page, url);
    }
    postMessage(data) {
      this.loaded.then(() =>
        this.frame.dispatchEvent(new this.frame.MessageEvent("message", { data })),
      );
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
}
