// The anywidget module of a sweep.
import { connect, receive } from "../comm/connection.js";
import { FINAL_STATES } from "./states.js";
import { SweepView } from "./view.js";

/** @type {import("@anywidget/types").Render} */
function render(props) {
  return connect(props, (name, send) => {
    const grid = new SweepView(name, send);
    const over = () => FINAL_STATES.includes(grid.model.status?.state ?? "");
    return Object.assign(grid, { over, close: () => grid.destroy() });
  }, (grid, link, message, buffers) => {
    if (message.kind === "answer") grid.commands.receive(message);
    if (message.kind !== "sweep") return null;
    const verdict = receive(link, message.sequence, message.snapshot, performance.now());
    if (verdict === "apply") grid.model.apply(message, buffers);
    return verdict === "apply" ? "ack" : verdict === "ask" ? "snapshot" : null;
  });
}

export default { render };
