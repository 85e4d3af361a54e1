// The anywidget module of a run.
import { applyFrame, connect } from "../comm/connection.js";
import { FINAL_STATES } from "./header.js";
import { RunView } from "./view.js";

/** @type {import("@anywidget/types").Render} */
function render(props) {
  return connect(props, (name, send) => {
    const view = new RunView(name, send);
    return Object.assign(view, { over: () => FINAL_STATES.includes(view.progress.state) });
  }, (view, link, message, buffers) => {
    if (message.kind !== "frame") return null;
    return applyFrame(link, message, buffers[0], performance.now(), (_, segments) => view.apply(message, segments));
  });
}

export default { render };
