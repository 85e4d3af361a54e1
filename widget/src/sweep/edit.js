// Edits the space of a sweep while it runs: one line for each parameter, as %%sweep takes them.
import { make } from "../dom.js";
import { Told } from "./asks.js";
import { button } from "./button.js";

const OUTSIDE = [["finish", "let them finish"], ["stop", "stop them"]];

export class Edit {
  /** @param {string} name unique in the page @param {import("./asks.js").Ask} ask @param {() => void} close */
  constructor(name, ask, close) {
    this.shown = ""; // what the kernel last said
    this.told = new Told();
    this.field = make("textarea", { class: "nbs-space", id: `${name}-space`, spellcheck: "false", rows: "4", "aria-describedby": `${name}-space-help` });
    this.choices = OUTSIDE.map(([value]) => make("input", { type: "radio", name: `${name}-outside`, value }));
    this.choices[0].checked = true;
    const send = async () => {
      const space = this.field.value.split("\n").map((line) => line.trim()).filter(Boolean).join(" ");
      const outside = this.choices.find((one) => one.checked)?.value;
      const { ok } = await this.told.follow(ask("edit", { space, outside }));
      if (ok) this.shown = this.field.value; // what comes next from the kernel may take its place
    };
    this.element = make("form", { class: "nbs-form", id: `${name}-edit` },
      make("label", { for: `${name}-space` }, "Search space for new trials"), this.field,
      make("p", { class: "nbs-help", id: `${name}-space-help` }, "One parameter a line: lr=log(1e-4, 1e-1)  hidden=[32, 64]  layers=int(1, 4)  dropout=uniform(0, 0.5)"),
      make("fieldset", {}, make("legend", {}, "Running trials outside of it"),
        ...OUTSIDE.map(([, words], i) => make("label", {}, this.choices[i], words))),
      make("div", { class: "nbs-row" }, button("Change the space", "Trials asked for from now on are of this space", send), button("Close", "Nothing changes", close), this.told.element));
    this.element.addEventListener("submit", (event) => event.preventDefault());
  }

  /** What is being written by hand is left alone. @param {import("./model.js").Head} head */
  show(head) {
    const text = spaceLines(head.space, head.parameters.map(({ name }) => name));
    if (text === this.shown) return;
    if (this.field.value === this.shown || document.activeElement !== this.field) this.field.value = text;
    this.shown = text;
    this.field.rows = Math.min(12, Math.max(3, text.split("\n").length));
  }
}

/** A space with each parameter on a line of its own. @param {string} space @param {string[]} names in their order */
export function spaceLines(space, names) {
  let [text, at] = [space, 0];
  for (const name of names.slice(1)) {
    const found = text.indexOf(` ${name}=`, at);
    if (found < 0) continue;
    text = `${text.slice(0, found)}\n${text.slice(found + 1)}`;
    at = found + 1;
  }
  return text;
}
