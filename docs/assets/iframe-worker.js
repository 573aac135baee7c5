// Pages opened from files may not start a worker, and the search is one. Here it runs in a hidden frame that answers as a worker does.
// The theme's search looks for this class by its name and then loads its languages beside its own script.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      inside.importScripts = (...urls) =>
        urls.reduce((before, each) => before.then(() => this.load(each)), Promise.resolve());
      this.load(url).then(() => {
        this.inside = inside;
        this.waiting.splice(0).forEach((data) => this.postMessage(data));
      });
    }

    load(url) {
      return new Promise((loaded, failed) => {
        const script = this.frame.contentDocument.createElement("script");
        script.src = String(url);
        script.onload = loaded;
        script.onerror = () => failed(new Error(`cannot load ${url}`));
        this.frame.contentDocument.body.appendChild(script);
      });
    }

    postMessage(data) {
      if (!this.inside) {
        this.waiting.push(data);
        return;
      }
      const event = new this.inside.MessageEvent("message", { data });
      this.inside.dispatchEvent(event);
      if (this.inside.onmessage) this.inside.onmessage(event);
    }

    terminate() {
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
