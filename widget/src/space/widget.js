// The anywidget module of the space editor: joins the page to the kernel.
import { captureKeys } from "../dom/keyboard.js";
import { Editor } from "./editor.js";

/** @type {import("@anywidget/types").Render} */
function render({ model, el }) {
  const view = `nbdist-${Math.random().toString(36).slice(2)}`;
  const editor = new Editor(view, (kind, more = {}) => {
    try {
      model.send({ kind, view, ...more });
    } catch {
      editor.disconnect(); // the kernel restarted or ended, and closed the channel
    }
  });
  el.append(editor.element);
  const leaveKeys = captureKeys(editor.element);
  const onMessage = (/** @type {any} */ message) => {
    if (message.kind === "state") editor.apply(message);
  };
  model.on("msg:custom", onMessage);
  editor.send("ready");
  return () => {
    model.off("msg:custom", onMessage);
    leaveKeys();
    editor.close();
  };
}

export default { render };
