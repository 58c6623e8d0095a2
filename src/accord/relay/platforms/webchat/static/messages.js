// One open chat: its messages, who is typing, and the field to write in. The room and the thread
// beside it are two of them.

import { get, newKey, patch, post } from "./api.js";
import { markdown } from "./markdown.js";

const TYPING_MS = 6000;
const TELL_TYPING_MS = 3000;

// Several agents may speak through one bot.
const speaker = (message) => message.agent ?? message.author.name;

export class Room {
  constructor(root, me, openThread, close) {
    this.root = root;
    this.me = me;
    this.openThread = openThread;
    root.replaceChildren(document.getElementById("room-parts").content.cloneNode(true));
    const part = (name) => root.querySelector(name);
    this.title = part("h1");
    this.list = part(".messages");
    this.older = part(".older");
    this.typists = part(".typing");
    this.form = part(".composer");
    this.field = part("textarea");
    this.mode = part(".mode");
    this.error = part(".composer .error");
    this.typing = new Map();
    this.close();
    this.older.addEventListener("click", () => this.load(this.oldest()));
    this.form.addEventListener("submit", (event) => this.send(event));
    this.field.addEventListener("keydown", (event) => this.pressed(event));
    this.field.addEventListener("input", () => this.written());
    this.mode.querySelector("button").addEventListener("click", () => this.reset());
    part(".close").addEventListener("click", close);
  }

  close() {
    this.chat = null;
    this.known = new Map();
    this.list.replaceChildren();
    for (const { timer } of this.typing.values()) clearTimeout(timer);
    this.typing.clear();
    this.showTyping();
    this.reset();
  }

  async open(chat, title, { focus = true } = {}) {
    this.close();
    this.chat = chat;
    this.title.textContent = title;
    await this.load();
    if (focus) this.field.focus();
  }

  async load(before) {
    const chat = this.chat;
    const page = await get(`chats/${chat}/messages${before ? `?before=${before}` : ""}`);
    if (chat !== this.chat) return;
    this.kind = page.chat.kind;
    const mayWrite = page.chat.level === "write" || page.chat.level === "manage";
    this.form.hidden = !mayWrite;
    const height = this.list.scrollHeight;
    if (page.root && !this.known.has(page.root.id)) this.put(page.root);
    for (const message of page.messages) this.put(message);
    this.older.hidden = !page.more;
    if (before) this.list.scrollTop += this.list.scrollHeight - height;
    else this.list.scrollTop = this.list.scrollHeight;
  }

  oldest() {
    const here = [...this.known.values()].filter(({ message }) => message.chat === this.chat);
    return Math.min(...here.map(({ message }) => message.id));
  }

  // Whether a message belongs here: said in this chat, or what this thread is about.
  has(message) {
    return message.chat === this.chat || this.known.has(message.id);
  }

  heard(message) {
    const atEnd = this.list.scrollHeight - this.list.scrollTop - this.list.clientHeight < 80;
    // Older than what is shown: it comes with its page.
    if (!this.known.has(message.id) && message.id < this.oldest() && !this.older.hidden) return;
    this.put(message);
    this.typing.delete(message.author.id);
    this.showTyping();
    if (atEnd) this.list.scrollTop = this.list.scrollHeight;
  }

  put(message) {
    const item = this.render(message);
    const before = this.known.get(message.id);
    this.known.set(message.id, { message, item });
    if (before) {
      before.item.replaceWith(item);
      return;
    }
    let place = null;
    for (const node of [...this.list.children].reverse()) {
      if (Number(node.dataset.id) < message.id) break;
      place = node;
    }
    this.list.insertBefore(item, place);
  }

  render(message) {
    const made = document.getElementById("message-parts").content.cloneNode(true).firstElementChild;
    const part = (name) => made.querySelector(name);
    const own = message.author.id === this.me.id;
    made.dataset.id = message.id;
    made.classList.toggle("own", own);
    part(".author").textContent = speaker(message);
    part(".badge").hidden = !message.author.bot;
    // By which it is mentioned, whatever the agent behind it is called.
    part(".badge").textContent = `bot @${message.author.name}`;
    const sent = new Date(message.sent_at);
    part("time").dateTime = sent.toISOString();
    part("time").textContent = sent.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
    part("time").title = sent.toLocaleString();
    part(".edited").hidden = message.edited_at === null;
    part(".text").append(markdown(message.text));
    const answered = this.known.get(message.reply_to)?.message;
    if (answered) {
      part(".quoted").hidden = false;
      part(".quoted").textContent = `${speaker(answered)}: ${answered.text.slice(0, 120)}`;
    }
    part(".reply").addEventListener("click", () => this.reply(message));
    part(".edit").hidden = !own;
    part(".edit").addEventListener("click", () => this.edit(message));
    const inThread = part(".in-thread");
    inThread.hidden = this.kind !== "channel";
    inThread.addEventListener("click", () => this.openThread(message));
    const replies = part(".replies");
    if (message.thread && this.kind === "channel") {
      replies.hidden = false;
      const count = message.thread.count;
      replies.textContent = count === 1 ? "1 reply" : `${count} replies`;
      replies.addEventListener("click", () => this.openThread(message));
    }
    return made;
  }

  reply(message) {
    this.reset();
    this.replyTo = message.id;
    this.showMode(`Answering ${speaker(message)}`);
  }

  edit(message) {
    this.reset();
    this.editing = message.id;
    this.field.value = message.text;
    this.grow();
    this.showMode("Editing your message");
  }

  showMode(text) {
    this.mode.hidden = false;
    this.mode.querySelector("span").textContent = text;
    this.field.focus();
  }

  reset() {
    this.replyTo = null;
    this.editing = null;
    this.key = newKey();
    this.toldTyping = 0;
    this.mode.hidden = true;
    this.error.textContent = "";
    this.field.value = "";
    this.grow();
  }

  async send(event) {
    event.preventDefault();
    const text = this.field.value.trim();
    if (!text || !this.chat || this.sending) return;
    const chat = this.chat;
    this.sending = true;
    this.error.textContent = "";
    try {
      // The key stays the same until it worked, so that trying again says nothing twice.
      const message = this.editing
        ? await patch(`messages/${this.editing}`, { text })
        : await post(`chats/${chat}/messages`, { text, key: this.key, reply_to: this.replyTo });
      if (chat !== this.chat) return;
      this.reset();
      this.heard(message);
      this.list.scrollTop = this.list.scrollHeight;
    } catch (refusal) {
      this.error.textContent = refusal.message;
    } finally {
      this.sending = false;
    }
  }

  pressed(event) {
    if (event.isComposing) return;
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      this.form.requestSubmit();
    } else if (event.key === "Escape" && !this.mode.hidden) {
      event.stopPropagation();
      this.reset();
    } else if (event.key === "ArrowUp" && !event.altKey && this.field.value === "") {
      const own = [...this.known.values()].filter(
        ({ message }) => message.author.id === this.me.id && message.chat === this.chat,
      );
      const last = own.reduce((a, b) => (a && a.message.id > b.message.id ? a : b), null);
      if (last) {
        event.preventDefault();
        this.edit(last.message);
      }
    }
  }

  written() {
    this.grow();
    const now = Date.now();
    if (this.editing || !this.field.value || now - this.toldTyping < TELL_TYPING_MS) return;
    this.toldTyping = now;
    post(`chats/${this.chat}/typing`).catch(() => {});
  }

  grow() {
    const lines = this.field.value.split("\n").length;
    this.field.rows = Math.min(8, Math.max(1, lines));
  }

  heardTyping(author) {
    clearTimeout(this.typing.get(author.id)?.timer);
    const timer = setTimeout(() => {
      this.typing.delete(author.id);
      this.showTyping();
    }, TYPING_MS);
    this.typing.set(author.id, { name: author.name, timer });
    this.showTyping();
  }

  showTyping() {
    const names = [...this.typing.values()].map((each) => each.name);
    const verb = names.length === 1 ? "is" : "are";
    this.typists.textContent = names.length ? `${names.join(", ")} ${verb} typing…` : "";
  }
}
