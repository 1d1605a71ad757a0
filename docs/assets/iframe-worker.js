// Lets the search work from file://. Browsers start no Worker there, so this class runs the worker's script in a hidden
// frame. The offline plugin of Material for MkDocs would load such a class from another host.
"use strict"
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.appendChild(this.frame)
      const inside = this.frame.contentWindow
      inside.document.open()
      inside.document.write("<!doctype html><body></body>")
      inside.document.close()
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const load = source => new Promise((loaded, failed) => {
        const script = inside.document.createElement("script")
        script.src = source
        script.onload = loaded
        script.onerror = failed
        inside.document.body.appendChild(script)
      })
      inside.importScripts = (...sources) => sources.reduce((before, next) => before.then(() => load(next)), Promise.resolve())
      this.ready = load(new URL(url, location))
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.frame.remove()
    }
  }
  window.Worker = window.IFrameWorker
}
