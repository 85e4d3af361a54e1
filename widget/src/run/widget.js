// The anywidget module of a run.
import { join, take } from "../comm/connection.js";
import { OVER } from "./header.js";
import { View } from "./view.js";

/** @type {import("@anywidget/types").Render} */
function render(props) {
  return join(props, (name, say) => {
    const view = new View(name, say);
    return Object.assign(view, { over: () => OVER.includes(view.progress.state) });
  }, (view, link, message, buffers) => {
    if (message.kind !== "frame") return null;
    return take(link, message, buffers[0], performance.now(), (_, runs) => view.apply(message, runs));
  });
}

export default { render };
