// Puts the page together: the door for whoever is not logged in, and the chat for whoever is.

import { get, post } from "./api.js";
import { Live } from "./live.js";
import { Room } from "./messages.js";
import { Sidebar } from "./sidebar.js";

const by = (id) => document.getElementById(id);
const invite = new URLSearchParams(location.hash.slice(1)).get("invite");
// The secret must not stay in the address, nor in the history.
if (invite) history.replaceState(null, "", location.pathname);
// Whoever follows an invitation where the page is open already comes in by it all the same.
addEventListener("hashchange", () => location.reload());

let room, thread, sidebar, live;
// The newest message that was heard of: what is older was edited or answered.
let newest = 0;

function showDoor() {
  live?.stop();
  by("chat").hidden = true;
  by("door").hidden = false;
  by("join").hidden = !invite;
  (invite ? by("join") : by("login")).querySelector("input").focus();
}

async function enter(path, body) {
  const error = by("door").querySelector(".error");
  error.textContent = "";
  try {
    const answer = await post(path, body);
    if (answer.key) {
      by("key").textContent = answer.key;
      by("kept").showModal();
    }
    if (invite && path === "login") await accept();
    await start();
  } catch (refusal) {
    error.textContent = refusal.message;
  }
}

// Whoever has an account joins with that one.
const accept = () => post("join", { invite }).catch((refusal) => status(refusal.message));

async function start() {
  const overview = await get("me");
  by("door").hidden = true;
  by("chat").hidden = false;
  by("me").textContent = overview.me.name;
  room = new Room(by("room"), overview.me, openThread, () => {});
  thread = new Room(by("thread"), overview.me, () => {}, closeThread);
  sidebar = new Sidebar(by("places"), open);
  live = new Live(heard, (is) => status(is ? "Reconnecting…" : ""));
  for (const menu of document.querySelectorAll(".menu")) {
    menu.addEventListener("click", () => by("chat").classList.toggle("choosing"));
  }
  sidebar.show(overview);
  newest = overview.seq;
  live.start(overview.seq);
  if (sidebar.entries.length) await open(sidebar.entries[0]);
}

async function open(entry) {
  closeThread();
  by("chat").classList.remove("choosing");
  try {
    if (entry.bot) {
      const id = (await post(`bots/${entry.bot}/chat`)).chat;
      for (const each of sidebar.entries) if (each.bot === entry.bot) each.id = id;
      entry = { ...entry, id };
    }
    sidebar.select(entry.id);
    await room.open(entry.id, entry.title);
  } catch (refusal) {
    failed(refusal);
  }
}

async function openThread(message) {
  try {
    const chat = message.thread?.id ?? (await post(`messages/${message.id}/thread`)).chat;
    by("thread").hidden = false;
    await thread.open(chat, "Thread");
  } catch (refusal) {
    failed(refusal);
  }
}

function closeThread() {
  by("thread").hidden = true;
  thread.close();
}

// Look at everything anew: what the sidebar has, and what is open.
async function refresh(resume) {
  try {
    const overview = await get("me");
    sidebar.show(overview);
    if (resume) live.start(overview.seq);
    if (room.chat && !sidebar.find(room.chat)) {
      closeThread();
      room.close();
      if (sidebar.entries.length) await open(sidebar.entries[0]);
    } else if (resume) {
      await Promise.all([room, thread].filter((each) => each.chat).map((each) => each.load()));
    }
  } catch (refusal) {
    failed(refusal);
    if (resume && refusal.status !== 401) setTimeout(() => refresh(true), 3000);
  }
}

function heard(name, data) {
  if (name === "reset") refresh(true);
  else if (name === "access") refresh(false);
  else if (name === "typing") {
    for (const each of [room, thread]) if (each.chat === data.chat) each.heardTyping(data.author);
  } else {
    for (const each of [room, thread]) if (each.has(data)) each.heard(data);
    if (data.id > newest) {
      newest = data.id;
      sidebar.heard(data.parent ?? data.chat);
    }
  }
}

function failed(refusal) {
  if (refusal.status === 401) showDoor();
  else status(refusal.message);
}

function status(text) {
  by("status").textContent = text;
  by("status").hidden = !text;
}

by("join").addEventListener("submit", (event) => {
  event.preventDefault();
  enter("join", { invite, name: new FormData(event.target).get("name") });
});
by("login").addEventListener("submit", (event) => {
  event.preventDefault();
  enter("login", { key: new FormData(event.target).get("key").trim() });
});
by("ask").addEventListener("click", () => by("help").showModal());
by("leave").addEventListener("click", async () => {
  await post("logout").catch(() => {});
  location.reload();
});
document.addEventListener("keydown", (event) => {
  if (by("chat").hidden) return;
  if (event.altKey && (event.key === "ArrowUp" || event.key === "ArrowDown")) {
    event.preventDefault();
    sidebar.step(event.key === "ArrowUp" ? -1 : 1);
  } else if (event.key === "Escape" && !by("thread").hidden) {
    closeThread();
  }
});

try {
  if (invite) {
    await get("me");
    await accept();
  }
  await start();
} catch (refusal) {
  if (refusal.status === 401) showDoor();
  else status(refusal.message);
}
