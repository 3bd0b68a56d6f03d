// A site opened from disk may start no workers. The search's then runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      const inside = frame.contentWindow
      inside.document.open()
      inside.document.write("<body></body>")
      inside.document.close()
      const base = new URL(url, location)
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      const load = (address) =>
        new Promise((loaded, failed) => {
          const script = inside.document.createElement("script")
          script.onload = loaded
          script.onerror = failed
          script.src = new URL(address, base)
          inside.document.body.appendChild(script)
        })
      inside.importScripts = async (...addresses) => {
        for (const address of addresses) await load(address)
      }
      this.inside = inside
      this.ready = load(base)
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.inside.frameElement.remove()
    }
  }
}
