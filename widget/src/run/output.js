// The output of each rank: a tab for each beside curves, else one below the other. Text nodes, and spans for
// terminal colours; they are appended, so the cost of a call depends on the new text only.
import { make, setText } from "../dom/elements.js";
import { coloured } from "../text/ansi.js";
import { formatCount, shortTask } from "../text/format.js";

/** @typedef {{ task: string, text: string, open: string, cut: number, drop?: number }} OutputUpdate drop: last lines that change again */

const LIMIT = 200_000; // characters kept per rank, as in Python
const OPENED = 4; // ranks whose output is open at first
const MOST_COLOURED = 4_000; // elements kept per rank: the oldest lines lose their colours beyond them
const MOST_UNREAD = 99; // lines that are counted on a tab

class RankOutput {
  /** @param {string} task @param {string} id unique in the page @param {boolean} unfolded */
  constructor(task, id, unfolded) {
    this.task = task;
    this.line = make("span"); // the line that is still being written
    this.open = "";
    /** @type {{ piece: HTMLElement, spans: number }[]} */
    this.coloured = []; // the pieces of text that have colours, oldest first
    this.spans = 0; // elements in all of them
    this.note = make("div", { class: "nbd-cut" });
    this.note.hidden = true;
    this.text = make("pre", { tabindex: "0", role: "group", "aria-label": `output of ${shortTask(task)}` }, this.line);
    this.body = make("div", { class: "nbd-body" }, this.note, this.text);
    this.count = make("span", { class: "nbd-count" });
    this.details = make("details", { class: "nbd-section" },
      make("summary", { title: task }, make("span", { class: "nbd-task" }, shortTask(task)), this.count));
    this.details.open = unfolded;
    this.unread = make("span", { class: "nbd-unread" });
    this.meaning = make("span", { class: "nbd-spoken" });
    this.tab = make("button", { class: "nbd-tab", type: "button", role: "tab", id: `${id}-tab`, "aria-controls": id, title: task },
      make("span", {}, shortTask(task)), this.unread, this.meaning);
    this.panel = make("div", { class: "nbd-panel", role: "tabpanel", id, "aria-labelledby": `${id}-tab` });
    this.kept = this.lines = 0;
    this.written = this.seen = 0; // characters of finished lines: now, and when the output was last visible
    this.news = 0; // lines since then
    this.following = true; // the view scrolls with the output
  }

  clear() {
    this.text.replaceChildren(this.line);
    this.coloured = [];
    this.spans = 0;
    this.kept = this.lines = this.written = this.news = 0;
  }

  /** @param {OutputUpdate} news @param {boolean} visible whether it is on the screen */
  add({ text, open, cut, drop = 0 }, visible) {
    const seen = this.text.clientHeight > 0;
    if (seen) this.following = this.text.scrollTop + this.text.clientHeight >= this.text.scrollHeight - 4;
    if (drop) this.dropLines(drop);
    if (text) {
      this.append(text);
      const start = this.written || cut; // after a snapshot the first text follows the cut one
      this.written = start + text.length;
      for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) {
        this.lines++;
        if (start + at >= this.seen) this.news++;
      }
    }
    while (this.kept > LIMIT && this.text.firstChild && this.text.firstChild !== this.line) {
      const oldest = this.text.firstChild;
      this.kept -= oldest.textContent?.length ?? 0;
      if (oldest === this.coloured[0]?.piece) this.dropColours();
      oldest.remove();
    }
    if (this.open !== open) this.line.replaceChildren(...coloured(open));
    this.open = open;
    this.note.hidden = cut === 0;
    setText(this.note, cut ? `… ${formatCount(cut)} characters cut …` : "");
    const lines = this.lines + open.split("\n").length - 1; // with those that may still change
    setText(this.count, lines ? `${formatCount(lines)} ${lines === 1 ? "line" : "lines"}` : "");
    if (visible) this.markRead();
    else this.showUnread();
    if (seen) this.follow();
  }

  /** Removes the last finished lines: bars that a program moves up to. @param {number} count */
  dropLines(count) {
    const range = document.createRange();
    range.setStart(this.text, 0);
    range.setEndBefore(this.line);
    const texts = document.createTreeWalker(this.text, NodeFilter.SHOW_TEXT);
    texts.currentNode = this.line;
    for (let left = count + 1, node = texts.previousNode(); node && left; node = texts.previousNode()) {
      const { data } = /** @type {Text} */ (node);
      for (let at = data.lastIndexOf("\n"); at >= 0 && left; at = at ? data.lastIndexOf("\n", at - 1) : -1) {
        if (!--left) range.setStart(node, at + 1);
      }
    }
    const { length } = range.toString();
    range.deleteContents();
    this.coloured = this.coloured.filter(({ piece }) => piece.parentNode === this.text);
    this.spans = this.coloured.reduce((sum, { spans }) => sum + spans, 0);
    this.kept -= length;
    this.written -= length;
    this.lines = Math.max(0, this.lines - count);
    this.seen = Math.min(this.seen, this.written);
    this.news = Math.max(0, this.news - count);
  }

  /** Adds finished lines. @param {string} text */
  append(text) {
    const nodes = coloured(text);
    const spans = nodes.filter((node) => node.nodeType === Node.ELEMENT_NODE).length;
    const piece = spans ? make("span", {}, ...nodes) : document.createTextNode(nodes.map((node) => node.textContent).join(""));
    this.line.before(piece);
    this.kept += piece.textContent?.length ?? 0;
    if (!spans) return;
    this.coloured.push({ piece: /** @type {HTMLElement} */ (piece), spans });
    this.spans += spans;
    while (this.spans > MOST_COLOURED) {
      const { piece } = this.dropColours();
      piece.textContent = piece.textContent;
    }
  }

  dropColours() {
    const oldest = /** @type {{ piece: HTMLElement, spans: number }} */ (this.coloured.shift());
    this.spans -= oldest.spans;
    return oldest;
  }

  follow() {
    if (this.following) this.text.scrollTop = this.text.scrollHeight;
  }

  markRead() {
    this.seen = this.written;
    this.news = 0;
    this.showUnread();
  }

  showUnread() {
    const { news } = this;
    setText(this.unread, news ? (news > MOST_UNREAD ? `${MOST_UNREAD}+` : String(news)) : "");
    setText(this.meaning, news ? (news === 1 ? "new line" : "new lines") : "");
  }
}

export class Output {
  /** @param {string} name unique in the page */
  constructor(name) {
    this.name = name;
    /** @type {Map<string, RankOutput>} */
    this.sections = new Map();
    /** @type {RankOutput[]} */
    this.order = []; // tasks in display order
    this.tabbed = false;
    /** @type {RankOutput | undefined} */
    this.chosen = undefined;
    this.tabs = make("div", { class: "nbd-tabs", role: "tablist", "aria-label": "Output of" });
    this.tabs.addEventListener("keydown", (event) => this.onKey(event));
    this.element = make("div", { class: "nbd-output", role: "group", "aria-label": "Output" });
    this.element.hidden = true;
  }

  clear() {
    for (const section of this.sections.values()) section.clear();
  }

  /** As tabs, or one below the other. @param {boolean} tabbed */
  setTabbed(tabbed) {
    if (tabbed === this.tabbed) return;
    this.tabbed = tabbed;
    const sections = this.order;
    this.tabs.replaceChildren();
    this.element.replaceChildren(...(tabbed ? [this.tabs] : []));
    for (const section of sections) this.place(section, null);
    if (tabbed && sections.length) this.choose(this.chosen ?? sections[0]);
  }

  /** @param {RankOutput} section @param {RankOutput | null} before */
  place(section, before) {
    if (this.tabbed) {
      this.tabs.insertBefore(section.tab, before?.tab ?? null);
      this.element.insertBefore(section.panel, before?.panel ?? null);
      section.panel.append(section.body);
    } else {
      this.element.insertBefore(section.details, before?.details ?? null);
      section.details.append(section.body);
    }
  }

  /** @param {OutputUpdate[]} news @param {string[]} tasks in the order they stand */
  add(news, tasks) {
    for (const item of news) {
      let section = this.sections.get(item.task);
      if (!section) {
        section = this.make(item.task);
        const after = tasks.slice(tasks.indexOf(item.task) + 1);
        const next = this.order.findIndex(({ task }) => after.includes(task));
        this.sections.set(item.task, section);
        this.place(section, this.order[next] ?? null);
        this.order.splice(next < 0 ? this.order.length : next, 0, section);
        if (this.tabbed) this.choose(this.chosen ?? section);
      }
      section.add(item, !this.tabbed || section === this.chosen);
    }
    this.element.hidden = this.sections.size === 0;
  }

  /** @param {string} task */
  make(task) {
    const section = new RankOutput(task, `${this.name}-output-${this.sections.size}`, this.sections.size < OPENED);
    section.tab.addEventListener("click", () => this.choose(section));
    return section;
  }

  /** @param {RankOutput} section */
  choose(section) {
    this.chosen = section;
    for (const other of this.sections.values()) {
      const chosen = other === section;
      other.panel.hidden = !chosen;
      other.tab.setAttribute("aria-selected", String(chosen));
      other.tab.tabIndex = chosen ? 0 : -1;
    }
    section.markRead();
    section.follow();
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    const all = this.order;
    const here = all.findIndex((section) => section === this.chosen);
    const moves = /** @type {Record<string, number>} */ ({
      ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: all.length - 1,
    });
    if (!(event.key in moves)) return;
    const next = all[(moves[event.key] + all.length) % all.length];
    this.choose(next);
    next.tab.focus();
    event.preventDefault();
  }
}
