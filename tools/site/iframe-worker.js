// Lets the search work in pages that are read from files, to which browsers refuse workers: there, a hidden frame runs
// the worker's script. It has what the search uses of a worker: messages both ways, and importScripts.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const scope = frame.contentWindow;
      const run = (address) => new Promise((resolve, reject) => {
        const script = scope.document.createElement("script");
        script.src = new URL(address, document.baseURI);
        script.onload = resolve;
        script.onerror = () => reject(new Error(`cannot load ${address}`));
        scope.document.body.append(script);
      });
      scope.importScripts = (...addresses) => addresses.reduce((before, one) => before.then(() => run(one)), Promise.resolve());
      scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.ready = run(url);
      this.scope = scope;
      this.frame = frame;
    }

    postMessage(data) {
      this.ready.then(() => this.scope.dispatchEvent(new this.scope.MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
