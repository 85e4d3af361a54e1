// Puts text into the notebook cell after the one that an element is in. A widget has no API of the notebook,
// so this changes the page as a user does: it fills an empty code cell, or inserts one and fills it.

/** @typedef {"filled" | "inserted" | "copied" | "failed"} Outcome */
/** The part of a CodeMirror 6 editor that is used.
 * @typedef {{ state: { doc: { length: number, toString: () => string }, readOnly: boolean }, dispatch: (change: object) => void }} Editor */

const PATIENCE = 10000; // milliseconds until a requested cell must exist: a busy page takes seconds
const INSERT = '[data-command="notebook:insert-cell-below"]';

/**
 * Sets the text of the next cell if that is an empty code cell, else of a cell inserted there. Existing text is
 * never overwritten. Where neither is possible, as outside a notebook, the text is copied.
 * @param {Element} element in the output of a cell
 * @param {string} text
 * @returns {Promise<Outcome>} "filled" the empty cell that was there, "inserted" one, "copied" to the clipboard, or "failed"
 */
export async function fillNextCell(element, text) {
  const cell = element.closest(".jp-Cell");
  const next = cell && nextCell(cell);
  if (next && write(next, text)) return "filled";
  if (cell && write(await insertBelow(cell), text)) return "inserted";
  return (await copy(text)) ? "copied" : "failed";
}

/** The cell after another, if the page has it: a long notebook renders only cells near the visible ones. @param {Element} cell */
function nextCell(cell) {
  const cells = [...(cell.closest(".jp-Notebook")?.querySelectorAll(".jp-Cell") ?? [])];
  const next = cells[cells.indexOf(cell) + 1];
  const [here, there] = [cell, next].map((each) => Number(each?.getAttribute("data-windowed-list-index") ?? NaN));
  return next && (Number.isNaN(here) || Number.isNaN(there) || there === here + 1) ? next : null;
}

/** Writes into a cell if it is an empty, editable code cell. @param {Element | null} cell @param {string} text */
function write(cell, text) {
  const content = cell?.matches(".jp-CodeCell") ? cell.querySelector(".jp-InputArea-editor .cm-content") : null;
  if (!content || !isEmpty(content)) return false;
  const editor = editorOf(content);
  if (editor) editor.dispatch({ changes: { from: 0, to: editor.state.doc.length, insert: text }, userEvent: "input.paste" });
  else paste(content, text);
  return read(content) === text.trim();
}

/** @param {Element} content */
function isEmpty(content) {
  const writable = content.getAttribute("contenteditable") === "true" && !editorOf(content)?.state.readOnly;
  return writable && read(content) === "";
}

/** The trimmed text of an editor. @param {Element} content */
function read(content) {
  const lines = [...content.querySelectorAll(".cm-line")].map((line) => line.textContent);
  return (editorOf(content)?.state.doc.toString() ?? lines.join("\n")).trim();
}

/** The editor of an element: CodeMirror keeps it in a property of the element, with one of two names.
 * @param {any} content @returns {Editor | undefined} */
function editorOf(content) {
  return content.cmTile?.root?.view ?? content.cmTile?.view ?? content.cmView?.rootView?.view ?? content.cmView?.view;
}

/** Pastes into an editor, which needs none of its private properties. @param {Element} content @param {string} text */
function paste(content, text) {
  const clipboardData = new DataTransfer();
  clipboardData.setData("text/plain", text);
  content.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
}

/** Inserts a cell below another, with the notebook's button or key. @param {Element} cell @returns {Promise<Element | null>} */
async function insertBelow(cell) {
  const notebook = cell.closest(".jp-Notebook");
  if (!notebook) return null;
  const before = new Set(notebook.querySelectorAll(".jp-Cell"));
  const fresh = () => {
    const next = nextCell(cell);
    return next && !before.has(next) && next.querySelector(".cm-content") ? next : null;
  };
  const focused = document.activeElement;
  for (const ask of [pressButton, pressKey]) {
    activate(cell);
    const found = ask(cell) && (await waitFor(fresh, notebook));
    if (!found) continue;
    // The focus returns to the widget; the notebook has activated the new cell.
    if (focused instanceof HTMLElement && cell.contains(focused)) focused.focus({ preventScroll: true });
    return found;
  }
  return null;
}

/** Makes a cell the active one of the notebook that has the focus. @param {Element} cell */
function activate(cell) {
  /** @type {HTMLElement} */ (cell).focus({ preventScroll: true });
  pressMouse(cell.querySelector(".jp-InputPrompt") ?? cell);
}

/** @param {Element} place */
function pressMouse(place) {
  for (const kind of ["mousedown", "mouseup"]) place.dispatchEvent(new MouseEvent(kind, { bubbles: true, cancelable: true, button: 0 }));
}

/** Presses a button of a cell, if it has one: the notebook's own buttons react to mousedown, others to click.
 * @param {Element} cell @returns {boolean} whether there was one */
function pressButton(cell) {
  const buttons = cell.closest(".jp-NotebookPanel")?.querySelectorAll(INSERT) ?? [];
  const [button] = [...buttons].filter((each) => !each.closest(".jp-Cell") || cell.contains(each));
  if (!button) return false;
  pressMouse(button);
  /** @type {HTMLElement} */ (button).click();
  return true;
}

/** @param {Element} cell @returns {boolean} */
function pressKey(cell) {
  const b = { key: "b", code: "KeyB", keyCode: 66, bubbles: true, cancelable: true, composed: true };
  cell.dispatchEvent(new KeyboardEvent("keydown", b));
  return true;
}

/** Waits until `find` finds something: now, or after a change within `place`. @template T @param {() => T | null} find @param {Element} place @returns {Promise<T | null>} */
function waitFor(find, place) {
  return new Promise((resolve) => {
    const end = (/** @type {T | null} */ found) => {
      seen.disconnect();
      clearTimeout(timer);
      resolve(found);
    };
    const look = () => {
      const found = find();
      if (found) end(found);
    };
    const seen = new MutationObserver(look);
    seen.observe(place, { childList: true, subtree: true });
    const timer = setTimeout(() => end(find()), PATIENCE);
    look();
  });
}

/** @param {string} text @returns {Promise<boolean>} */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyOld(text); // without HTTPS there is no clipboard API, but copying a selection may work
  }
}

/** @param {string} text */
function copyOld(text) {
  const area = document.createElement("textarea");
  area.value = text;
  area.style.cssText = "position:fixed;opacity:0";
  const focused = document.activeElement;
  document.body.append(area);
  area.select();
  const copied = document.execCommand?.("copy") ?? false;
  area.remove();
  if (focused instanceof HTMLElement) focused.focus({ preventScroll: true });
  return copied;
}
