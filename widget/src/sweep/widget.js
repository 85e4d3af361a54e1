// The anywidget module of a sweep.
import { join, receive } from "../comm/connection.js";
import { OVER } from "./states.js";
import { Grid } from "./view.js";

/** @type {import("@anywidget/types").Render} */
function render(props) {
  return join(props, (name, say) => {
    const grid = new Grid(name, say);
    const over = () => OVER.includes(grid.model.status?.state ?? "");
    return Object.assign(grid, { over, close: () => grid.destroy() });
  }, (grid, link, message, buffers) => {
    if (message.kind === "answer") grid.asks.hear(message);
    if (message.kind !== "sweep") return null;
    const verdict = receive(link, message.sequence, message.snapshot, performance.now());
    if (verdict === "apply") grid.model.apply(message, buffers);
    return verdict === "apply" ? "ack" : verdict === "ask" ? "snapshot" : null;
  });
}

export default { render };
