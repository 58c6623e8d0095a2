// The list of chats: channels by space, then bots.

export class Sidebar {
  constructor(root, open) {
    this.root = root;
    this.open = open;
    this.current = null;
    this.unread = new Set();
    this.entries = [];
  }

  show(overview) {
    this.entries = [];
    const parts = overview.spaces.map((space) =>
      this.group(
        space.name,
        space.channels.map((each) => ({
          id: each.id,
          title: `${each.private ? "🔒" : "#"} ${each.name}`,
          kind: "channel",
          level: each.level,
        })),
      ),
    );
    const bots = overview.bots.map((bot) => ({
      id: bot.chat ?? bot.id,
      bot: bot.id,
      title: `@${bot.name}`,
      kind: "dm",
      level: "write",
    }));
    parts.push(this.group("Direct messages", bots));
    this.root.replaceChildren(...parts);
    this.mark();
  }

  group(name, entries) {
    const section = document.createElement("section");
    const title = document.createElement("h2");
    title.dir = "auto";
    title.textContent = name;
    const list = document.createElement("ul");
    for (const entry of entries) {
      const button = document.createElement("button");
      button.type = "button";
      button.dir = "auto";
      button.textContent = entry.title;
      button.addEventListener("click", () => this.open(entry));
      const item = document.createElement("li");
      item.append(button);
      list.append(item);
      this.entries.push({ ...entry, button });
    }
    section.append(title, list);
    return section;
  }

  find(id) {
    return this.entries.find((entry) => entry.id === id);
  }

  select(id) {
    this.current = id;
    this.unread.delete(id);
    this.mark();
  }

  heard(id) {
    if (id === this.current) return;
    this.unread.add(id);
    this.mark();
  }

  step(by) {
    if (!this.entries.length) return;
    const at = this.entries.findIndex((entry) => entry.id === this.current);
    this.open(this.entries[(at + by + this.entries.length) % this.entries.length]);
  }

  mark() {
    for (const { id, button } of this.entries) {
      if (id === this.current) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
      button.classList.toggle("unread", this.unread.has(id));
    }
  }
}
